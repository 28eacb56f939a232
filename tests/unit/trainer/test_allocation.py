"""A budget that tasks share: who gets the next episode, by numbers worked out by hand; and how waves are asked for."""

import asyncio
from typing import Any, cast

import pytest
from gymfleet_contracts.recipe import RecipeError
from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.trajectory import ScoredTrajectory, Status
from gymfleet_trainer.run.allocated import Allocated, best_of_each
from gymfleet_trainer.run.allocation import AllocationOptions, Allocator
from gymfleet_trainer.run.plan import stages_of
from gymfleet_trainer.run.playing import Wanted
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.stage import Plays

from tests.fixtures.scored import RUN_ID, make_recipe, make_scored, make_turn
from tests.fixtures.trainer_plans import make_planner
from tests.unit.trainer.test_playing import CURRENT, ScriptedCollector

EVALUATOR = {"evaluator": {"goal": {"success": 1.0, "failure": 0.0}}}


def allocator(num_tasks: int, model_calls: int, longest: int = 4, seed: str = "0", **options: Any) -> Allocator:
    return Allocator([longest] * num_tasks, AllocationOptions(model_calls=model_calls, **options), seed)


def test_chances_are_the_means_of_beta_posteriors() -> None:
    tasks = allocator(2, 100)
    tasks.played(0, 0.0, 4)
    tasks.played(0, 0.5, 2)
    tasks.played(1, 0.0, 1)

    assert tasks.chance(0) == pytest.approx((1 + 0.5) / (2 + 2))
    assert tasks.chance(1) == pytest.approx(1 / 3)
    assert tasks.index(0) == pytest.approx(0.375 / 3), "3 replies on average"
    assert tasks.index(1) == pytest.approx(1 / 3)
    assert tasks.next() == [1, 0], "the second is less likely, and takes fewer replies"
    assert tasks.spent == 7


def test_a_prior_counts_as_episodes_before() -> None:
    tasks = allocator(1, 100, successes=2.0, failures=6.0)

    assert tasks.chance(0) == pytest.approx(0.25)
    tasks.played(0, 0.0, 1)
    assert tasks.chance(0) == pytest.approx(2 / 9)


def test_every_task_is_played_once_before_any_is_played_again() -> None:
    tasks = allocator(5, 100, wave=2)
    seen: list[int] = []
    for _ in range(2):
        wave = tasks.next()
        seen += wave
        for task in wave:
            tasks.played(task, 0.9, 1)  # a high index: 1.9/3 for a reply, where 1/8 is that of a new one

    assert len(set(seen)) == 4
    assert set(tasks.next()) >= set(range(5)) - set(seen)


def test_what_is_solved_or_hopeless_or_tried_often_enough_takes_no_more() -> None:
    tasks = allocator(4, 1000, most=3, gives_up=0.3)
    tasks.played(0, 1.0, 2)
    tasks.played(1, 0.0, 2)
    tasks.played(1, 0.0, 2)  # 1/4
    for _ in range(3):
        tasks.played(2, 0.9, 2)
    tasks.played(3, 0.0, 2)  # 1/3

    assert tasks.next() == [3]
    tasks.played(3, 0.0, 2)
    assert tasks.next() == [], "the rest of the budget stays unspent"


@pytest.mark.parametrize(
    ("model_calls", "played"),
    [pytest.param(12, 3, id="to the last reply"), pytest.param(15, 3, id="less than an episode is left")],
)
def test_the_budget_is_never_exceeded(model_calls: int, played: int) -> None:
    tasks = allocator(8, model_calls)

    assert len(tasks.next()) == played


def test_what_an_episode_leaves_is_for_the_others() -> None:
    tasks = allocator(2, 8)
    for task in tasks.next():
        tasks.played(task, 0.0, 2)

    assert tasks.spent == 4
    assert len(tasks.next()) == 1, "one of four replies fits, and two do not"


def test_equal_ones_are_ordered_by_the_seed_alone() -> None:
    assert allocator(50, 1000, seed="a", wave=50).next() == allocator(50, 1000, seed="a", wave=50).next()
    assert allocator(50, 1000, seed="a", wave=50).next() != allocator(50, 1000, seed="b", wave=50).next()


def test_values_outside_of_a_share_are_bounded() -> None:
    tasks = allocator(2, 100, enough=2.0)
    tasks.played(0, -3.0, 1)
    tasks.played(1, 1.5, 1)

    assert tasks.chance(0) == pytest.approx(1 / 3)
    assert tasks.chance(1) == pytest.approx((1 + 0.75) / 3)


class Worth(ScriptedCollector):
    """Tasks whose episodes are worth 1 from a number on, in an order that may be reversed; each has two turns."""

    def __init__(self, solved_at: dict[int, int], *, backwards: bool = False, failing: str = "") -> None:
        super().__init__(lambda *_: {}, backwards=backwards)
        self._solved_at, self._failing = solved_at, failing

    def _episodes(self, request: GroupRequest) -> list[ScoredTrajectory]:
        task, _, number = request.group_id.rpartition(".t")[2].partition("-r")
        success = int(number or 0) >= self._solved_at.get(int(task), 1000)
        status = Status.ENV_ERROR if request.group_id == self._failing else Status.COMPLETED
        turns = (make_turn(version=CURRENT),) * 2
        told: Any = {"success": success, "total": float(success), "status": status}
        return [make_scored(request.group_id, turns=turns, version=CURRENT, **told)]


def play(collector: Worth, **options: Any) -> tuple[list[ScoredTrajectory], Allocated]:
    recipe = make_recipe(
        stages=[{"kind": "measure", "num_tasks": 3}], rollout={**EVALUATOR, "limits": {"max_turns": 2}}
    )
    allocation = AllocationOptions(**{"model_calls": 20, **options})
    state = RunState(run_id=RUN_ID, recipe_hash="h", age=4, ages={CURRENT: 4}, version=CURRENT)
    plays, scripted = Plays(3, allocation=allocation), cast("Any", collector)
    wanted = Wanted(recipe, state, scripted, cast("Any", None), make_planner(recipe), "measure", plays, 2)
    playing = Allocated(wanted, allocation)

    async def all_of_it() -> None:
        while playing.open:
            await playing.more()

    asyncio.run(all_of_it())
    return playing.counted, playing


@pytest.mark.parametrize("backwards", [False, True])
def test_what_solved_tasks_leave_goes_to_the_others(backwards: bool) -> None:
    collector = Worth({0: 0, 1: 2}, backwards=backwards)

    episodes, _ = play(collector)

    ids = sorted(request.group_id for request in collector.asked)
    assert ids == [
        "measure.t000000", "measure.t000001", "measure.t000001-r1", "measure.t000001-r2",
        *("measure.t000002" + (f"-r{n}" if n else "") for n in range(6)),
    ]  # fmt: skip
    assert sum(len(one.trajectory.turns) for one in episodes) == 20
    reward = collector.asked[0].reward
    assert reward.used.keys() == {"goal"}, "what it is worth says the evaluator"
    chosen = best_of_each(episodes, [int(one.trajectory.group_id[9:15]) for one in episodes])
    assert [one.trajectory.group_id for one in chosen] == ["measure.t000000", "measure.t000001-r2", "measure.t000002"]


def test_an_episode_that_failed_is_played_again_and_is_no_failure_of_the_policy() -> None:
    collector = Worth({0: 0, 1: 0, 2: 0}, failing="measure.t000001")

    episodes, playing = play(collector)

    assert playing.num_failed == 1
    assert sorted(one.trajectory.group_id for one in episodes) == [
        "measure.t000000", "measure.t000001-r1", "measure.t000002",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "rollout", "told"),
    [
        pytest.param({"allocation": {"model_calls": 5}}, EVALUATOR, "6 replies may be needed", id="too little"),
        pytest.param({"allocation": {"model_calls": 50}}, {}, r"\[rollout.evaluator\]", id="nothing says the value"),
        pytest.param(
            {"allocation": {"model_calls": 50}, "samples_per_task": 2}, EVALUATOR, "leave out strategy", id="samples"
        ),
        pytest.param(
            {"allocation": {"model_calls": 50}, "budget": {"tokens": 5}}, EVALUATOR, "leave out strategy", id="budget"
        ),
    ],
)
def test_what_cannot_be_allocated_is_refused(stage: dict[str, Any], rollout: dict[str, Any], told: str) -> None:
    measure = {"kind": "measure", "num_tasks": 3, **stage}

    with pytest.raises(RecipeError, match=told):
        stages_of(make_recipe(stages=[measure], rollout={**rollout, "limits": {"max_turns": 2}}))
