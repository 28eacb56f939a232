"""What an environment tells the reward service alone leaves its session sealed."""

from typing import Any

import pytest
from gymfleet_contracts.session import ForkSupport, Session
from gymfleet_env_server.catalogue import Entry
from gymfleet_env_server.sessions.limits import Limits
from gymfleet_env_server.sessions.sessions import Sessions
from gymfleet_envs.environment import AsyncEnvironment, Outcome
from gymfleet_kit.sealing import Opener, Sealer, new_private_key
from gymfleet_kit.session_problems import EnvironmentFailed

from tests.unit.env_server.test_start_info import Corridor


class Telling(Corridor):
    name = "telling"

    def reset(self, task: int, seed: int) -> str:
        self.start_private = {"gold": task}
        return super().reset(task, seed)

    def step(self, action: str) -> Outcome:
        if action == "object":
            return Outcome("", private={"gold": object()})  # type: ignore[dict-item]
        return Outcome("on", private={} if action == "quiet" else {"heard": action})

    def state_key(self) -> str:
        return "the same"


class Replayed(Telling):
    name = "replayed"
    fork = ForkSupport.REPLAY


class Awaiting(AsyncEnvironment[int]):
    name = "awaiting"
    version = "1"
    summary = "Awaits"
    instructions = "Go."
    max_turns = 9
    task_source = Corridor.task_source

    async def reset(self, task: int, seed: int) -> str:
        self.start_private = {"gold": task}
        return "the entrance"

    async def step(self, action: str) -> Outcome:
        return Outcome("on", private={"heard": action})


OPENER = Opener(new_private_key())


def made(*, sealed: bool = True) -> Sessions:
    kinds = (Telling, Replayed, Awaiting)
    entries = {
        kind.name: Entry(kind=kind, tasks=(tasks := kind.task_source(None)), spec=kind.spec(tasks)) for kind in kinds
    }
    seal = Sealer(OPENER.public_key).seal if sealed else None
    return Sessions("p", entries, Limits(1000, lambda *_: None), lease_s=60, expert_splits=(), seal=seal)


def opened(sessions: Sessions, env: str, **more: Any) -> Session:
    return Session.model_validate(sessions.handle("open", "", {"env": env, "task_index": 0, "seed": 5, **more}))


def told(sealed: str | None, session: Session) -> tuple[int, dict[str, Any]]:
    assert sealed is not None
    return OPENER.open(sealed, session.task)


@pytest.mark.parametrize("env", ["telling", "replayed"])
def test_it_goes_with_the_beginning_and_with_each_step(env: str) -> None:
    sessions = made()
    session = opened(sessions, env)
    kind = Telling if env == "telling" else Replayed
    gold = {"gold": kind.task_source(None).by_index("train", "a", 0).data}

    steps = [
        sessions.handle("step", session.session_id, {"index": index, "action": action})
        for index, action in enumerate(("left", "quiet", "right"))
    ]

    assert told(session.sealed, session) == (0, gold)
    assert told(steps[0]["sealed"], session) == (1, {"heard": "left"})
    assert "sealed" not in steps[1]
    assert told(steps[2]["sealed"], session) == (3, {"heard": "right"})
    (child,) = sessions.handle("fork", session.session_id, {"count": 1})
    assert child["sealed"] == sessions.handle("get", session.session_id, {})["sealed"] == steps[2]["sealed"]


def test_it_goes_beside_a_state_key() -> None:
    sessions = made()
    session = opened(sessions, "telling", state_keys=True)

    loud = sessions.handle("step", session.session_id, {"index": 0, "action": "left"})
    quiet = sessions.handle("step", session.session_id, {"index": 1, "action": "quiet"})

    assert loud["state_key"] == quiet["state_key"] == session.state_key
    assert told(loud["sealed"], session) == (1, {"heard": "left"})
    assert "sealed" not in quiet


def test_that_of_a_coroutine_environment_too() -> None:
    sessions = made()
    session = opened(sessions, "awaiting")
    result = sessions.handle("step", session.session_id, {"index": 0, "action": "left"})

    assert told(session.sealed, session)[0] == 0
    assert told(result["sealed"], session) == (1, {"heard": "left"})


def test_without_a_key_it_goes_nowhere() -> None:
    sessions = made(sealed=False)
    session = opened(sessions, "telling")

    result = sessions.handle("step", session.session_id, {"index": 0, "action": "left"})

    assert session.sealed is None
    assert set(result) == {
        "index", "observation", "reward", "terminated", "truncated", "score", "action_valid", "info",
    }  # fmt: skip


def test_what_is_no_json_fails_the_environment() -> None:
    sessions = made()
    session = opened(sessions, "telling")

    with pytest.raises(EnvironmentFailed, match="TypeError"):
        sessions.handle("step", session.session_id, {"index": 0, "action": "object"})
