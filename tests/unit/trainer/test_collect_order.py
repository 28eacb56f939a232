"""Which groups a step trains on, in virtual time: long episodes are learned from as often as they are asked for."""

import asyncio
import heapq
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.session import OpenSession
from gymfleet_contracts.trajectory import ScoredTrajectory, Status, Turn
from gymfleet_trainer.errors import PluginFailed, TooManyFailures
from gymfleet_trainer.learning.algorithm import Verdict
from gymfleet_trainer.learning.options import ReinforceOptions
from gymfleet_trainer.run.batch import most_spread
from gymfleet_trainer.run.group_planner import PlannedGroup
from gymfleet_trainer.run.groups import Group
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.settings import TrainerSettings
from gymfleet_trainer.stages.reinforce import Reinforce, Steps, choose

from tests.fixtures.scored import RUN_ID, make_recipe, make_scored, make_turn
from tests.fixtures.trainer_plans import make_planner, stage_of, training_plan

STEPS, GROUPS = 24, 8
UPDATE_S, FAST_S, SLOW_S = 1.0, 2.0, 15.0
SLOW_TASKS = 15
"""Of a hundred."""


class VirtualFleet:
    """A collector whose groups take their time on a clock that nobody waits for; many are played at once."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._queue: list[tuple[float, int, Group]] = []
        self.now = 0.0
        self.ready: dict[str, Group] = {}
        self.asked: list[GroupRequest] = []
        self.fails: set[int | None] = set()
        """Task indices whose episodes fail for technical reasons."""
        self.dull: set[int | None] = set()
        """Task indices whose episodes all have the same reward."""
        self.forked: set[int | None] = set()
        """Task indices whose episodes disagree about a turn that they share."""
        self.early = ""
        """Groups whose ids contain it are complete when they are asked for: an earlier process had them played."""

    async def ask(self, requests: list[GroupRequest]) -> None:
        for request in requests:
            self.asked.append(request)
            group = Group(request)
            status = Status.TIMEOUT if request.task.task_index in self.fails else Status.COMPLETED
            for sample in range(request.num_samples):
                group.samples[sample] = make_scored(
                    request.group_id, sample, version=self._state.version, status=status, error="no answer",
                    total=0.0 if request.task.task_index in self.dull else float(sample),
                    turns=(turn_of(sample),) if request.task.task_index in self.forked else None,
                )  # fmt: skip
            if self.early and self.early in request.group_id:
                self.ready[group.group_id] = group
                continue
            seconds = SLOW_S if is_slow(request) else FAST_S
            heapq.heappush(self._queue, (self.now + seconds, len(self.asked), group))

    async def more(self) -> None:
        assert self._queue, "it waits for what nobody plays"
        self.now, _, group = heapq.heappop(self._queue)
        self.ready[group.group_id] = group

    def train(self) -> None:
        """Let the time of an update go by."""
        self.now += UPDATE_S
        while self._queue and self._queue[0][0] <= self.now:
            _, _, group = heapq.heappop(self._queue)
            self.ready[group.group_id] = group

    def env_steps(self, group_id: str) -> int:
        return self.ready[group_id].env_steps if group_id in self.ready else 0

    async def keep_search_trees(self, _: Any) -> None:
        pass

    def settle(self, group_id: str) -> None:
        self.ready.pop(group_id, None)


def turn_of(sample: int) -> Turn:
    return make_turn(response=(8, sample)).model_copy(update={"node": "a"})


def is_slow(request: GroupRequest) -> bool:
    return (request.task.task_index or 0) < SLOW_TASKS


async def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def virtual_run(max_staleness: int, **options: Any) -> Any:
    rl = {"steps": STEPS, "groups_per_step": GROUPS, "group_size": 2, "max_staleness": max_staleness, **options}
    recipe = make_recipe(rl=rl)
    state = RunState(run_id=RUN_ID, recipe_hash="h", version=1, ages={1: 0})
    run: Any = SimpleNamespace(
        recipe=recipe,
        state=state,
        settings=TrainerSettings(),
        planner=make_planner(recipe),
        collector=VirtualFleet(state),
        worker=SimpleNamespace(run=at_once),
        reporter=SimpleNamespace(advance=lambda *_, **__: None),
        directory=SimpleNamespace(metric=lambda *_, **__: None),
        saved=[],
    )

    async def save_state() -> None:
        run.saved.append(state.model_copy(deep=True))

    run.save_state = save_state
    run.steps = Steps(run, stage_of(recipe, Reinforce))
    return run


def planned_task(run: Any, slot: PlannedGroup) -> OpenSession:
    """The task of a slot's group."""
    request: GroupRequest = run.planner.train(training_plan(run.recipe), slot)
    return request.task


async def step(run: Any) -> list[Group]:
    await run.steps._ask_ahead()
    groups: list[Group] = await run.steps.collect()
    run.collector.train()
    for group in groups:
        run.state.trained.append(group.group_id)
        run.steps._close(group.group_id)
    run.state.done += 1
    run.state.age += 1
    run.state.version += 1
    run.state.ages[run.state.version] = run.state.age
    return groups


@pytest.mark.parametrize("max_staleness", [0, 1, 2, 3, 4])
def test_slow_groups_are_trained_on_as_often_as_they_are_asked_for(max_staleness: int) -> None:
    run = virtual_run(max_staleness)

    groups = [group for _ in range(STEPS) for group in asyncio.run(step(run))]

    asked, trained = run.collector.asked, [group.request for group in groups]
    assert len(trained) == STEPS * GROUPS
    assert sum(map(is_slow, asked)) / len(asked) == pytest.approx(0.15, abs=0.03)
    assert sum(map(is_slow, trained)) == sum(map(is_slow, asked)), "none is lost, none is played in vain"
    assert run.state.dropped == {}


@pytest.mark.parametrize("max_staleness", [1, 4])
def test_slow_groups_hold_nobody_up_before_they_are_due(max_staleness: int) -> None:
    asynchronous, synchronous = virtual_run(max_staleness), virtual_run(0)
    for _ in range(STEPS):
        asyncio.run(step(asynchronous))
        asyncio.run(step(synchronous))

    assert asynchronous.collector.now < 0.85 * synchronous.collector.now


def state_with(ages: dict[str, int], age: int) -> RunState:
    slots = {name: (number, 0) for number, name in enumerate(ages)}
    return RunState(run_id=RUN_ID, recipe_hash="h", open_slots=slots, asked_ages=ages, age=age)


@pytest.mark.parametrize(
    ("ages", "age", "ready", "chosen"),
    [
        pytest.param({"a": 0, "b": 0, "c": 0}, 0, {"c"}, [], id="not enough"),
        pytest.param({"a": 0, "b": 0, "c": 0}, 0, {"c", "b"}, ["b", "c"], id="nothing is due: what is there"),
        pytest.param({"a": 0, "b": 0, "c": 0}, 0, {"a", "b", "c"}, ["a", "b"], id="the oldest asked first"),
        pytest.param({"a": 0, "b": 1, "c": 1}, 1, {"b", "c"}, [], id="a would be too old after this step: wait"),
        pytest.param({"a": 0, "b": 1, "c": 1}, 1, {"a", "c"}, ["a", "c"], id="what is due, and the oldest there is"),
        pytest.param({"a": 0, "b": 0, "c": 0}, 5, {"a", "b"}, ["a", "b"], id="more are due than a step takes"),
    ],
)
def test_what_is_due_is_waited_for(ages: dict[str, int], age: int, ready: set[str], chosen: list[str]) -> None:
    rl = ReinforceOptions(groups_per_step=2, group_size=2, max_staleness=1)

    assert choose(state_with(ages, age), ready, rl) == chosen


def test_a_group_that_came_too_late_is_played_again_with_its_own_task() -> None:
    run = virtual_run(0)
    asyncio.run(run.steps._ask_ahead())
    run.state.ages.clear()  # a restart lost the weights that these were sampled from
    run.state.version, run.state.ages[2] = 2, 0

    groups = asyncio.run(run.steps.collect())

    assert {group.group_id for group in groups} == {f"reinforce.s000001-g{place:02d}-r1" for place in range(GROUPS)}
    first, second = run.collector.asked[:GROUPS], run.collector.asked[GROUPS:]
    by_id = {request.group_id: request.task for request in second}
    assert [by_id[f"{request.group_id}-r1"] for request in first] == [request.task for request in first]


def test_a_task_that_keeps_failing_gives_way_to_another_one() -> None:
    run = virtual_run(0)
    run.collector.fails = {planned_task(run, PlannedGroup(3)).task_index}

    groups = asyncio.run(step(run))

    assert [group.group_id for group in groups][3] == "reinforce.s000001-g03-t1-r1"
    assert groups[3].request.task != planned_task(run, PlannedGroup(3))
    assert "no answer" in run.state.dropped["reinforce.s000001-g03"]


def test_a_group_whose_records_contradict_each_other_is_not_trained_on() -> None:
    run = virtual_run(0)
    run.collector.forked = {planned_task(run, PlannedGroup(3)).task_index}

    groups = asyncio.run(step(run))

    assert [group.group_id for group in groups][3] == "reinforce.s000001-g03-t1-r1"
    assert "contradict each other about node 'a'" in run.state.dropped["reinforce.s000001-g03"]


def test_a_run_in_which_everything_fails_ends_with_a_reason() -> None:
    run = virtual_run(0)
    run.collector.fails = set(range(100))
    asyncio.run(run.steps._ask_ahead())

    with pytest.raises(TooManyFailures, match="and 5 before it in its place were dropped within one step, the last"):
        asyncio.run(run.steps.collect())


def test_failures_of_many_steps_do_not_add_up() -> None:
    run = virtual_run(1)
    run.collector.fails = set(range(20))

    for _ in range(STEPS):
        asyncio.run(step(run))

    assert len(run.state.dropped) > 20
    assert run.state.done == STEPS


FIRST_BATCH = [f"reinforce.s000001-g{place:02d}" for place in range(GROUPS)]


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_a_group_without_a_signal_gives_way_to_another_task(max_staleness: int) -> None:
    run = virtual_run(max_staleness, dynamic_sampling=True)
    run.collector.dull = set(range(40))

    groups = [group for _ in range(STEPS) for group in asyncio.run(step(run))]

    assert len(groups) == STEPS * GROUPS
    assert not {group.request.task.task_index for group in groups} & run.collector.dull
    assert len(run.state.dropped) > STEPS * GROUPS / 4
    assert set(run.state.dropped.values()) == {"redrawn: grpo asked for another group"}
    assert run.state.counts == {
        "groups_dropped.redrawn": len(run.state.dropped),
        "env_steps.reinforce": 2 * (len(run.state.dropped) + STEPS * GROUPS),
    }
    assert {request.group_id for request in run.collector.asked} == {*run.state.trained, *run.state.dropped}


def test_groups_that_were_played_before_they_are_asked_for_are_judged_too() -> None:
    run = virtual_run(0, dynamic_sampling=True, max_redraws=2)
    run.collector.dull = set(range(100))
    run.collector.early = "-t"

    groups = asyncio.run(step(run))

    assert [group.group_id for group in groups] == [f"{name}-t2-r2" for name in FIRST_BATCH]


def test_without_the_option_every_group_is_trained_on() -> None:
    run = virtual_run(0)
    run.collector.dull = set(range(100))

    assert [group.group_id for group in asyncio.run(step(run))] == FIRST_BATCH
    assert run.state.counts == {"env_steps.reinforce": 2 * GROUPS}


@pytest.mark.parametrize("max_redraws", [0, 2])
def test_where_no_task_has_a_signal_the_last_group_is_trained_on(max_redraws: int) -> None:
    run = virtual_run(0, dynamic_sampling=True, max_redraws=max_redraws)
    run.collector.dull = set(range(100))

    groups = asyncio.run(step(run))

    last = f"-t{max_redraws}-r{max_redraws}" if max_redraws else ""
    assert [group.group_id for group in groups] == [f"{name}{last}" for name in FIRST_BATCH]
    assert run.state.counts.get("groups_dropped.redrawn", 0) == max_redraws * GROUPS
    assert run.state.counts["groups_not_redrawn"] == GROUPS
    assert run.steps._selected() == {
        "groups_redrawn": max_redraws * GROUPS, "groups_not_redrawn": GROUPS, "groups_unselected": 0,
        "groups_unspread": 0,
    }  # fmt: skip
    run.collector.dull = set()
    asyncio.run(step(run))
    assert not any(run.steps._selected().values()), "of this step"


def test_many_dropped_groups_are_saved_on_the_way_with_those_that_take_their_place() -> None:
    """They are acknowledged with the state, or the stream of a large batch would fill up within the step."""
    run = virtual_run(0, dynamic_sampling=True, group_size=40)
    run.collector.dull = set(range(100))

    asyncio.run(step(run))

    assert len(run.saved) == 2, "8 groups of 40 episodes, each redrawn 9 times, saved at every thousand"
    for state in run.saved:
        slots = sorted(number for number, _ in state.open_slots.values())
        assert slots == list(range(GROUPS)), "each place of the batch has its group"
        assert not state.open_slots.keys() & state.dropped.keys()


PICKY = """
from gymfleet_trainer.algorithms.grpo import Grpo
from gymfleet_trainer.learning.algorithm import Verdict


class Picky(Grpo):
    def select(self, group):
        {body}
"""


def run_with(path: Path, body: str, max_staleness: int = 0) -> Any:
    path.write_text(PICKY.format(body=body))
    return virtual_run(max_staleness, algorithm=str(path))


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_a_step_goes_without_the_groups_that_the_algorithm_drops(tmp_path: Path, max_staleness: int) -> None:
    body = 'return Verdict.DROP if group[0].trajectory.group_id.endswith(("3", "5")) else Verdict.KEEP'
    run = run_with(tmp_path / "picky.py", body, max_staleness)

    sizes = [len(asyncio.run(step(run))) for _ in range(STEPS)]

    assert sum(sizes) == (GROUPS - 2) * STEPS
    assert max_staleness or set(sizes) == {GROUPS - 2}
    assert run.state.counts == {"groups_dropped.unselected": 2 * STEPS, "env_steps.reinforce": 2 * GROUPS * STEPS}
    assert len(run.collector.asked) == GROUPS * STEPS, "and nothing is played in their place"
    assert not run.state.open_slots


def test_an_algorithm_is_asked_once_for_each_group() -> None:
    run = virtual_run(0)
    asked = []

    def select(group: list[ScoredTrajectory]) -> Verdict:
        asked.append(group[0].trajectory.group_id)
        return Verdict.KEEP

    run.steps._stage.algorithm.select = select
    asyncio.run(step(run))

    assert sorted(asked) == FIRST_BATCH
    assert run.steps._verdicts == {}, "and nothing is kept of those that are settled"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "return 'keep'",
            "TypeError: select must return Verdict.KEEP, Verdict.DROP or Verdict.ANOTHER, not 'keep'; its traceback",
        ),
        ("return None", "TypeError: select must return .* not None; its"),
        ("raise KeyError('a\\nb')", r"KeyError: 'a\\nb'; its traceback is in the log"),
    ],
)
def test_a_verdict_that_is_none_ends_the_run_with_a_line(tmp_path: Path, body: str, reason: str) -> None:
    run = run_with(tmp_path / "picky.py", body)

    with pytest.raises(PluginFailed, match=f"^the algorithm Picky failed: {reason}") as caught:
        asyncio.run(step(run))

    assert "\n" not in str(caught.value)
    assert run.state.dropped == {}


# --- the groups with the widest spread of rewards


def spread(group_id: str, *rewards: float) -> Group:
    request = virtual_run(0).planner.train(training_plan(make_recipe()), PlannedGroup(0))
    samples = {sample: make_scored(group_id, sample, total=reward) for sample, reward in enumerate(rewards)}
    return Group(request.model_copy(update={"group_id": group_id}), samples=samples)


@pytest.mark.parametrize(
    ("share", "kept"),
    [
        pytest.param(1.0, "abcde", id="all"),
        pytest.param(0.6, "bce", id="three of five, in their order"),
        pytest.param(0.4, "be", id="of equals the first"),
        pytest.param(0.25, "be", id="rounded up"),
        pytest.param(0.01, "e", id="one at the least"),
    ],
)
def test_groups_are_kept_by_the_spread_of_their_rewards(share: float, kept: str) -> None:
    groups = [
        spread("a", 5.0, 5.0), spread("b", 0.0, 1.0), spread("c", 1.0, 0.0), spread("d", 0.5, 0.6),
        spread("e", -1.0, 1.0),
    ]  # fmt: skip

    assert "".join(group.group_id for group in most_spread(groups, share)) == kept
    assert most_spread([], share) == []


def test_three_tenths_of_ten_are_three() -> None:
    assert len(most_spread([spread(str(number), 0.0, 1.0) for number in range(10)], 0.3)) == 3


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_step_trains_on_the_share_that_the_recipe_keeps(algorithm: str) -> None:
    run = virtual_run(0, algorithm=algorithm, keep_share=0.25)
    run.collector.dull = {request.task_index for request in first_tasks(run)[:-2]}

    groups = asyncio.run(step(run))

    assert [group.group_id for group in groups] == FIRST_BATCH[-2:], "those whose rewards differ"
    assert run.steps._selected()["groups_unspread"] == GROUPS - 2
    assert run.state.counts["groups_dropped.unspread"] == GROUPS - 2
    assert run.state.counts["env_steps.reinforce"] > 0, "they were played"
    assert set(run.state.dropped.values()) == {"unspread: keep_share = 0.25"}
    assert not run.state.open_slots, "and nothing is played in their place"
    assert len(run.collector.asked) == GROUPS
    run.collector.dull = set()
    assert len(asyncio.run(step(run))) == GROUPS / 4


def first_tasks(run: Any) -> list[OpenSession]:
    return [planned_task(run, PlannedGroup(number)) for number in range(GROUPS)]
