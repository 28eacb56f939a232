"""What a stage plays outside of training: which episodes count, which are asked for again, and for how long."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, cast

import pytest
from gymfleet_contracts.rollout import GroupRequest, StrategySpec
from gymfleet_contracts.trajectory import ScoredTrajectory, Status
from gymfleet_trainer.errors import TooManyFailures
from gymfleet_trainer.run.groups import Group
from gymfleet_trainer.run.playing import Playing, Wanted
from gymfleet_trainer.run.run_directory import RunDirectory
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.stage import Plays

from tests.fixtures.scored import RUN_ID, make_recipe, make_scored
from tests.fixtures.trainer_plans import make_planner

MAX_REPLACEMENTS: Final = 2
MEASURED: Final = Plays(3, 2)
SHOWN: Final = Plays(3, purpose="demonstration", strategy=StrategySpec(use="expert"))
CURRENT, SAME, OLD = 7, 6, 5
"""Versions: 6 and 7 are of the same weights."""


class ScriptedCollector:
    """Hands out groups whose episodes end as `ends` says, in the order in which they were asked for or backwards."""

    def __init__(self, ends: Callable[[str, int], dict[str, Any]], *, backwards: bool) -> None:
        self._ends = ends
        self._place = -1 if backwards else 0
        self._open: list[GroupRequest] = []
        self.most_open = 0
        self.asked: list[GroupRequest] = []
        self.settled: list[str] = []
        self.trees_kept = 0
        self.steps_of: Callable[[str], int] = lambda _: 1

    @property
    def num_open(self) -> int:
        return len(self.asked) - len(self.settled)

    async def ask(self, requests: Iterable[GroupRequest]) -> None:
        given = list(requests)
        self.asked += given
        self._open += given
        self.most_open = max(self.most_open, self.num_open)

    def settle(self, group_id: str) -> None:
        self.settled.append(group_id)

    async def keep_search_trees(self, _: RunDirectory) -> None:
        self.trees_kept += 1

    def env_steps(self, group_id: str) -> int:
        assert group_id not in self.settled, "what is settled is forgotten"
        assert self.trees_kept > len(self.settled), "the search's record is read first"
        return self.steps_of(group_id)

    async def next_group(self, wanted: Callable[[str], bool]) -> Group:
        request = self._open.pop(self._place)
        assert wanted(request.group_id)
        return Group(request, dict(enumerate(self._episodes(request))))

    def _episodes(self, request: GroupRequest) -> list[ScoredTrajectory]:
        return [self._episode(request.group_id, sample) for sample in range(request.num_samples)]

    def _episode(self, group_id: str, sample: int) -> ScoredTrajectory:
        told = {"version": CURRENT, "success": True, "rewarded": True, **self._ends(group_id, sample)}
        rewarded = told.pop("rewarded")
        scored = make_scored(group_id, sample, **told)
        return scored if rewarded else scored.model_copy(update={"reward": None, "reward_error": "no judge"})


def played(
    plays: Plays, ends: Callable[[str, int], dict[str, Any]], *, backwards: bool = False
) -> tuple[Playing, ScriptedCollector]:
    collector = ScriptedCollector(ends, backwards=backwards)
    return to_the_end(Playing(wanted(plays, collector))), collector


def wanted(plays: Plays, collector: ScriptedCollector) -> Wanted:
    recipe, unused, scripted = make_recipe(), cast("RunDirectory", None), cast("Any", collector)
    state = RunState(run_id=RUN_ID, recipe_hash="h", age=3, version=CURRENT, ages={OLD: 2, SAME: 3, CURRENT: 3})
    return Wanted(recipe, state, scripted, unused, make_planner(recipe), "stage", plays, MAX_REPLACEMENTS)


def to_the_end(playing: Playing) -> Playing:
    async def play() -> None:
        while playing.open:
            await playing.more()

    asyncio.run(play())
    return playing


def names(playing: Playing) -> list[tuple[str, int]]:
    return [(one.trajectory.group_id, one.trajectory.sample) for one in playing.counted]


def failing(*group_ids: str, samples: tuple[int, ...] = (0, 1)) -> Callable[[str, int], dict[str, Any]]:
    failure = {"status": Status.TIMEOUT, "error": "no answer", "success": False}
    return lambda group_id, sample: failure if group_id in group_ids and sample in samples else {}


def test_episodes_are_in_the_order_of_their_tasks_not_of_arrival() -> None:
    playing, collector = played(MEASURED, lambda *_: {}, backwards=True)

    assert collector.settled == ["stage.t000002", "stage.t000001", "stage.t000000"], "the last came first"
    assert names(playing) == [(f"stage.t{task:06d}", sample) for task in range(3) for sample in range(2)]
    assert (playing.num_counted, playing.num_successes, playing.num_failed) == (6, 6, 0)


def test_what_failed_is_played_again_and_takes_its_place() -> None:
    playing, collector = played(MEASURED, failing("stage.t000001", samples=(1,)))

    again = collector.asked[3:]
    assert [(request.group_id, request.num_samples) for request in again] == [("stage.t000001-r1", 1)]
    assert again[0].task == collector.asked[1].task
    assert names(playing)[2:4] == [("stage.t000001", 0), ("stage.t000001-r1", 0)]
    assert (playing.num_counted, playing.num_failed) == (6, 1)


@pytest.mark.parametrize(("purpose", "again"), [("eval", False), ("collect", True)])
def test_an_episode_without_a_reward_is_measured_but_nothing_to_learn_from(purpose: Any, again: bool) -> None:
    _, collector = played(replace(MEASURED, purpose=purpose), lambda name, _: {"rewarded": not name.endswith("2")})

    assert [request.group_id for request in collector.asked[3:]] == (["stage.t000002-r1"] if again else [])


def test_what_was_not_solved_counts() -> None:
    playing, collector = played(MEASURED, lambda _, sample: {"success": sample == 0})

    assert len(collector.asked) == 3
    assert (playing.num_counted, playing.num_successes) == (6, 3)


@pytest.mark.parametrize(
    ("versions", "again"),
    [
        pytest.param({"version": SAME}, False, id="the same weights under another number"),
        pytest.param({"version": OLD}, True, id="other weights"),
        pytest.param({"version": OLD, "version_max": CURRENT}, True, id="other weights in its first half"),
        pytest.param({"version": 3}, True, id="weights that were lost"),
    ],
)
def test_what_other_weights_sampled_is_played_again(versions: dict[str, Any], again: bool) -> None:
    playing, collector = played(MEASURED, lambda name, _: versions if name == "stage.t000000" else {})

    assert [request.group_id for request in collector.asked[3:]] == (["stage.t000000-r1"] if again else [])
    assert playing.num_failed == (2 if again else 0)
    assert playing.num_counted == 6


def test_one_task_may_fail_for_as_long_as_others_do_not() -> None:
    stubborn = failing("stage.t000000", "stage.t000000-r1", "stage.t000000-r2")

    playing, collector = played(MEASURED, stubborn)

    assert [request.group_id for request in collector.asked[3:]] == [f"stage.t000000-r{n}" for n in range(1, 4)]
    assert playing.num_counted == 6


def test_a_run_in_which_everything_fails_ends_with_a_reason() -> None:
    with pytest.raises(TooManyFailures) as caught:
        played(MEASURED, lambda *_: {"status": Status.ENV_ERROR, "error": "the shard died"})

    reason = "stage: task 0 failed 3 times (env_error: the shard died); a technical failure is not counted"
    assert str(caught.value).startswith(reason)
    assert "\n" not in str(caught.value)


def test_a_stale_policy_is_given_up_on_by_its_name() -> None:
    with pytest.raises(TooManyFailures, match=r"failed 3 times \(stale weights\)"):
        played(MEASURED, lambda *_: {"version": OLD})


def test_a_demonstration_that_failed_is_left_out() -> None:
    playing, collector = played(SHOWN, failing("stage.t000001"))

    assert len(collector.asked) == 3, "the expert would fail again"
    assert names(playing) == [("stage.t000000", 0), ("stage.t000002", 0)]
    assert playing.num_failed == 1


def test_weights_do_not_matter_to_the_expert() -> None:
    playing, _ = played(SHOWN, lambda *_: {"version": OLD, "strategy": "expert"})

    assert playing.num_counted == 3


def test_weights_do_not_matter_to_what_a_strategy_writes() -> None:
    script = Plays(3, purpose="collect", strategy=StrategySpec(use="script"))

    playing, _ = played(script, lambda *_: {"version": OLD, "strategy": "expert"})

    assert playing.num_counted == 3


def test_an_expert_whose_every_demonstration_failed_is_not_there() -> None:
    with pytest.raises(TooManyFailures) as caught:
        played(SHOWN, lambda *_: {"status": Status.ENV_ERROR, "error": "no expert"})

    assert str(caught.value) == (
        "stage: every one of 3 demonstrations failed (env_error: no expert); check that the environment has an expert "
        "and is served, or remove the stage from the recipe"
    )


def test_only_so_many_groups_are_open_at_a_time() -> None:
    playing, collector = played(replace(MEASURED, num_tasks=2000), lambda *_: {})

    assert collector.most_open == 512
    assert playing.num_counted == 4000
