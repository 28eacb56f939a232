"""What an environment says beside its first observation reaches the caller, as `info` does beside the others."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
from gymfleet_contracts.session import ForkSupport, Session
from gymfleet_env_server.catalogue import Entry
from gymfleet_env_server.sessions.limits import Limits
from gymfleet_env_server.sessions.sessions import Sessions
from gymfleet_envs.environment import Environment, Outcome
from gymfleet_envs.tasks import GeneratedTasks, TaskSource
from gymfleet_kit.session_problems import EnvironmentFailed


class Corridor(Environment[int]):
    """Says at each place which doors there are."""

    name: ClassVar[str] = "corridor"
    version: ClassVar[str] = "1"
    summary: ClassVar[str] = "Doors"
    instructions: ClassVar[str] = "Go."
    max_turns: ClassVar[int] = 9

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[int]:
        counts: Any = {"train": 9, "validation": 1, "test": 1}
        return GeneratedTasks(
            cls.name, lambda rng, _: rng.randrange(2**30), str, levels=("a",), default_level="a", counts=counts
        )

    def reset(self, task: int, seed: int) -> str:
        self.place = 0
        self.start_info = {"doors": ["left", "right"]}
        return "the entrance"

    def step(self, action: str) -> Outcome:
        self.place += 1
        return Outcome(f"room {self.place}", info={"doors": [action]})


class Replayed(Corridor):
    name: ClassVar[str] = "replayed"
    fork: ClassVar[ForkSupport] = ForkSupport.REPLAY


class Silent(Corridor):
    name: ClassVar[str] = "silent"

    def reset(self, task: int, seed: int) -> str:
        return "the dark"

    def step(self, action: str) -> Outcome:
        return Outcome("still dark")


class HalfDone(Corridor):
    name: ClassVar[str] = "halfdone"

    def reset(self, task: int, seed: int) -> str:
        self.start_score = 0.5
        return super().reset(task, seed)


class Overdone(Corridor):
    name: ClassVar[str] = "overdone"
    start_score = 1.5


class Wrong(Corridor):
    name: ClassVar[str] = "wrong"

    def reset(self, task: int, seed: int) -> str:
        self.start_info = {"doors": object()}  # type: ignore[dict-item]
        return "nowhere"


@pytest.fixture
def sessions() -> Sessions:
    kinds = (Corridor, Replayed, Silent, HalfDone, Overdone, Wrong)
    entries = {
        kind.name: Entry(kind=kind, tasks=(tasks := kind.task_source(None)), spec=kind.spec(tasks)) for kind in kinds
    }
    return Sessions("p", entries, Limits(1000, lambda *_: None), lease_s=60, expert_splits=())


def opened(sessions: Sessions, env: str) -> Session:
    return Session.model_validate(sessions.handle("open", "", {"env": env, "task_index": 0}))


@pytest.mark.parametrize("env", ["corridor", "replayed"])
def test_a_session_tells_the_info_of_the_observation_that_it_shows(sessions: Sessions, env: str) -> None:
    first = opened(sessions, env)
    assert first.info == {"doors": ["left", "right"]}
    [early] = sessions.handle("fork", first.session_id, {"count": 1})
    sessions.handle("step", first.session_id, {"index": 0, "action": "left"})

    seen = Session.model_validate(sessions.handle("get", first.session_id, {}))
    [late] = sessions.handle("fork", first.session_id, {"count": 1})

    assert (seen.observation, seen.info) == ("room 1", {"doors": ["left"]})
    assert (early["observation"], early["info"]) == ("the entrance", {"doors": ["left", "right"]})
    assert (late["observation"], late["info"]) == ("room 1", {"doors": ["left"]})
    assert opened(sessions, env).info == first.info, "one episode's is no other's"


def test_where_an_environment_says_nothing_it_is_empty(sessions: Sessions) -> None:
    first = opened(sessions, "silent")
    sessions.handle("step", first.session_id, {"index": 0, "action": "x"})

    assert first.info == sessions.handle("get", first.session_id, {})["info"] == {}


def test_what_is_no_json_fails_the_environment_and_not_the_shard(sessions: Sessions) -> None:
    with pytest.raises(EnvironmentFailed, match="ValidationError"):
        opened(sessions, "wrong")
    assert len(sessions) == 0


def test_a_session_that_begins_with_part_of_its_success_says_so(sessions: Sessions) -> None:
    first = opened(sessions, "halfdone")
    [child] = sessions.handle("fork", first.session_id, {"count": 1})

    assert (first.score, child["score"], opened(sessions, "corridor").score) == (0.5, 0.5, 0.0)
    assert sessions.handle("get", first.session_id, {})["score"] == 0.5


def test_a_score_beyond_one_fails_the_environment(sessions: Sessions) -> None:
    with pytest.raises(EnvironmentFailed, match="ValueError"):
        opened(sessions, "overdone")
