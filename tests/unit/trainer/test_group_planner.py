import itertools

import pytest
from gymfleet_contracts.rollout import Budget, StrategySpec
from gymfleet_trainer.run.group_planner import GroupPlanner, PlannedGroup, TaskSequence, planned_slots

from tests.fixtures.scored import RUN_ID, make_recipe


def test_every_task_once_per_pass_and_each_pass_in_another_order() -> None:
    sequence = TaskSequence(50, seed=3)

    first, second = [sequence[i] for i in range(50)], [sequence[i] for i in range(50, 100)]

    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second


def test_the_sequence_depends_on_the_seed_and_the_position_alone() -> None:
    forwards = TaskSequence(50, seed=3)
    backwards = TaskSequence(50, seed=3)

    ahead = [forwards[i] for i in range(120)]
    back = [backwards[i] for i in reversed(range(120))]

    assert ahead == back[::-1]
    assert ahead != [TaskSequence(50, seed=4)[i] for i in range(120)]


def test_an_environment_without_tasks_is_refused() -> None:
    with pytest.raises(ValueError, match="without train tasks"):
        TaskSequence(0, seed=0)


def test_group_ids_say_step_place_and_replacement() -> None:
    planner = GroupPlanner(make_recipe(), RUN_ID, 100)

    ids = [planner.train(PlannedGroup(number)).group_id for number in range(3)]

    assert ids == ["s000001-g00", "s000001-g01", "s000002-g00"]
    assert planner.train(PlannedGroup(1, 2)).group_id == "s000001-g01-r2"


def test_what_came_too_late_keeps_its_task_and_what_kept_failing_gets_another() -> None:
    planner = GroupPlanner(make_recipe(), RUN_ID, 100)
    planned = planner.train(PlannedGroup(1))

    again, other = planner.train(PlannedGroup(1).again()), planner.train(PlannedGroup(1).again().redrawn())

    assert (again.group_id, again.task) == ("s000001-g01-r1", planned.task)
    assert other.group_id == "s000001-g01-t1-r2"
    assert other.task.task_index != planned.task.task_index
    assert planner.train(PlannedGroup(1).again().redrawn().again()).task == other.task


def test_every_id_of_the_run_leads_back_to_its_request() -> None:
    planner = GroupPlanner(make_recipe(sft={"num_demonstrations": 3}, eval={"num_tasks": 4}), RUN_ID, 100)
    slots = [PlannedGroup(*parts) for parts in itertools.product(range(6), range(3), range(3))]

    assert [planner.slot(planner.train(slot).group_id) for slot in slots] == slots
    for request in (
        *map(planner.train, slots), *planner.demonstrations(), planner.evaluation("eval_before", 3, 0, 1),
        planner.evaluation("eval_step_000002", 0, 5, 1),
    ):  # fmt: skip
        assert planner.find(request.group_id) == request


@pytest.mark.parametrize(
    "stranger",
    [
        "s000004-g00", "s000000-g00", "s000001-g02", "s1-g0", "s0000001-g00", "s000001-g00-r0", "s000001-g00-r1-t1",
        "s000001-g00\n", "demo-000003", "demo-1", "eval_before-t000004", "eval_later-t000001", "eval_before-t1", "",
        "s" + "9" * 40 + "-g00",
    ],
)  # fmt: skip
def test_an_id_that_the_run_never_asks_under_leads_nowhere(stranger: str) -> None:
    planner = GroupPlanner(make_recipe(sft={"num_demonstrations": 3}, eval={"num_tasks": 4}), RUN_ID, 100)

    assert planner.find(stranger) is None


def test_two_trainers_of_one_run_ask_for_the_same() -> None:
    one, other = (GroupPlanner(make_recipe(seed=7), RUN_ID, 100) for _ in range(2))
    slots = [PlannedGroup(number, replacement) for number, replacement in itertools.product(range(6), range(3))]

    assert [one.train(slot) for slot in slots] == [other.train(slot) for slot in reversed(slots)][::-1]
    assert len({one.train(slot).group_id for slot in slots}) == len(slots)


def test_held_out_tasks_come_from_the_held_out_split() -> None:
    planner = GroupPlanner(make_recipe(env={"name": "maze", "eval_split": "validation"}), RUN_ID, 100)

    assert planner.evaluation("eval_before", 5, 0, 1).task.split == "validation"
    assert planner.train(PlannedGroup(0)).task.split == "train"


def test_both_measurements_play_the_same_tasks_with_the_same_seeds() -> None:
    planner = GroupPlanner(make_recipe(), RUN_ID, 100)

    before = [planner.evaluation("eval_before", task, 0, 1) for task in range(5)]
    after = [planner.evaluation("eval_after", task, 0, 1) for task in range(5)]

    assert [request.task for request in before] == [request.task for request in after]
    assert not {request.group_id for request in before} & {request.group_id for request in after}


def test_demonstrations_are_the_first_train_tasks_played_by_the_expert() -> None:
    planner = GroupPlanner(make_recipe(sft={"num_demonstrations": 3}), RUN_ID, 2)

    requests = planner.demonstrations()

    assert [(r.task.task_index, r.task.seed) for r in requests] == [(0, 0), (1, 0), (0, 1)]
    assert {(r.strategy.use, r.purpose, r.num_samples, r.task.split) for r in requests} == {
        ("expert", "demonstration", 1, "train")
    }


@pytest.mark.parametrize(
    ("max_staleness", "planned"),
    [
        pytest.param(0, [2, 4, 6, 6], id="synchronous: the next step's groups, no more"),
        pytest.param(1, [4, 6, 6, 6], id="one version ahead, never beyond the last step"),
        pytest.param(9, [6, 6, 6, 6], id="further ahead than there are steps"),
    ],
)
def test_demand_is_bounded_by_staleness_and_by_the_last_step(max_staleness: int, planned: list[int]) -> None:
    rl = {"steps": 3, "groups_per_step": 2, "group_size": 2, "max_staleness": max_staleness}
    recipe = make_recipe(rl=rl)

    assert [planned_slots(recipe, done) for done in range(4)] == planned


def test_a_recipe_without_reinforcement_learning_asks_for_no_training_groups() -> None:
    assert planned_slots(make_recipe(rl=None), 0) == 0


def test_the_strategy_and_the_budget_are_those_of_training_groups_alone() -> None:
    rollout = {"strategy": {"use": "./best.py", "width": 3}, "budget": {"env_steps": 40}}
    planner = GroupPlanner(make_recipe(rollout=rollout, sft={"num_demonstrations": 1}), RUN_ID, 5)

    trained = planner.train(PlannedGroup(0))
    measured = planner.evaluation("eval", 0, 0, 1)
    (shown,) = planner.demonstrations()

    assert trained.strategy == StrategySpec(use="./best.py", options={"width": 3})
    assert trained.budget == Budget(env_steps=40)
    assert (measured.strategy, measured.budget) == (StrategySpec(), Budget())
    assert (shown.strategy, shown.budget) == (StrategySpec(use="expert"), Budget())
