import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pytest
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.rollout import Budget, MessageRoles, Sampling, StrategySpec
from gymfleet_trainer.run.group_planner import (
    GroupPlanner,
    Mixture,
    PlannedGroup,
    TaskSequence,
    TrainingPlan,
    planned_slots,
)
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.stage import Plays
from gymfleet_trainer.stages.reinforce import Reinforce

from tests.fixtures.scored import RUN_ID, make_recipe
from tests.fixtures.trainer_plans import make_planner, stage_of, training_plan

DEMONSTRATIONS: Final = Plays(3, purpose="demonstration", strategy=StrategySpec(use="expert"))
COLLECTED: Final = Plays(3, 2, "collect", StrategySpec(use="./best.py"), Sampling(temperature=0.5))
MEASURED: Final = Plays(4)
TWO: Final[list[dict[str, Any]]] = [
    {
        "name": "maze",
        "weight": 2,
        "level": "easy",
        "limits": {"max_turns": 4},
        "schedule": [{"step": 2, "level": "hard"}, {"step": 3, "max_turns": 9}],
    },
    {
        "name": "babyai",
        "label": "balls",
        "eval_split": "validation",
        "format": "dbbench",
        "reward": {"goal": {"success": 3.0}, "gamma": 0.5},
    },
]


def test_every_task_once_per_pass_and_each_pass_in_another_order() -> None:
    sequence = TaskSequence(50, seed="3")

    first, second = [sequence[i] for i in range(50)], [sequence[i] for i in range(50, 100)]

    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second


def test_the_sequence_depends_on_the_seed_and_the_position_alone() -> None:
    forwards = TaskSequence(50, seed="3")
    backwards = TaskSequence(50, seed="3")

    ahead = [forwards[i] for i in range(120)]
    back = [backwards[i] for i in reversed(range(120))]

    assert ahead == back[::-1]
    assert ahead != [TaskSequence(50, seed="4")[i] for i in range(120)]


def test_an_environment_without_tasks_is_refused() -> None:
    with pytest.raises(ValueError, match="without train tasks"):
        TaskSequence(0, seed="0")


@pytest.mark.parametrize(
    ("weights", "begins"),
    [
        pytest.param((1.0, 1.0), [0, 1, 0, 1], id="in turn"),
        pytest.param((3.0, 1.0), [0, 0, 1, 0], id="three to one: the one is not left to the end"),
        pytest.param((1.0, 2.0, 3.0), [2, 1, 0, 2, 1, 2], id="one to two to three"),
        pytest.param((0.5, 0.25), [0, 1, 0, 0, 1, 0], id="weights are relative"),
    ],
)
def test_every_beginning_of_a_mixture_has_the_shares_of_the_weights(
    weights: tuple[float, ...], begins: Sequence[int]
) -> None:
    mixture = Mixture(weights)
    chosen = [mixture[place][0] for place in range(600)]

    assert chosen[: len(begins)] == begins
    for length, which in itertools.product(range(1, 601), range(len(weights))):
        share = length * weights[which] / sum(weights)
        assert abs(chosen[:length].count(which) - share) < 1, (length, which)


def test_positions_in_a_mixture_count_for_each_environment_by_itself() -> None:
    mixture = Mixture((3.0, 1.0))

    assert [mixture[place] for place in range(8)] == [
        (0, 0), (0, 1), (1, 0), (0, 2), (0, 3), (0, 4), (1, 1), (0, 5)
    ]  # fmt: skip
    assert Mixture((7.0,))[5] == (0, 5)


def test_a_mixture_does_not_depend_on_what_was_asked_first() -> None:
    forwards, backwards = Mixture((1.0, 2.0, 3.0)), Mixture((1.0, 2.0, 3.0))

    ahead = [forwards[place] for place in range(60)]

    assert ahead == [backwards[place] for place in reversed(range(60))][::-1]


def test_group_ids_say_stage_step_place_and_replacement() -> None:
    planner, plan = make_planner(make_recipe()), training_plan(make_recipe())

    ids = [planner.train(plan, PlannedGroup(number)).group_id for number in range(3)]

    assert ids == ["reinforce.s000001-g00", "reinforce.s000001-g01", "reinforce.s000002-g00"]
    assert planner.train(plan, PlannedGroup(1, 2)).group_id == "reinforce.s000001-g01-r2"


def test_the_roles_of_messages_travel_with_every_request() -> None:
    recipe = make_recipe(rollout={"roles": {"instructions": "system", "observations": "tool"}})
    planner, roles = make_planner(recipe, 50), MessageRoles(instructions="system", observations="tool")

    assert planner.train(training_plan(recipe), PlannedGroup(0)).roles == roles
    assert planner.play("measure", MEASURED, 0, 0, 1).roles == roles


def test_the_evaluator_travels_with_every_request() -> None:
    recipe = make_recipe(rollout={"evaluator": {"goal": {"success": 2.0}}})

    evaluator = make_planner(recipe, 50).train(training_plan(recipe), PlannedGroup(0)).evaluator

    assert evaluator is not None
    assert (evaluator.gamma, evaluator.components["goal"].options["success"]) == (1.0, 2.0)
    assert make_planner(make_recipe(), 50).train(training_plan(make_recipe()), PlannedGroup(0)).evaluator is None


def test_what_came_too_late_keeps_its_task_and_what_kept_failing_gets_another() -> None:
    planner, plan = make_planner(make_recipe()), training_plan(make_recipe())
    planned = planner.train(plan, PlannedGroup(1))

    again, other = (
        planner.train(plan, PlannedGroup(1).again()),
        planner.train(plan, PlannedGroup(1).again().redrawn()),
    )

    assert (again.group_id, again.task) == ("reinforce.s000001-g01-r1", planned.task)
    assert other.group_id == "reinforce.s000001-g01-t1-r2"
    assert other.task.task_index != planned.task.task_index
    assert planner.train(plan, PlannedGroup(1).again().redrawn().again()).task == other.task


@pytest.mark.parametrize("environments", [TWO[:1], TWO], ids=["one environment", "two"])
@pytest.mark.parametrize("stage", ["reinforce", "repeat2.learn"])
def test_every_training_id_leads_back_to_its_slot(environments: list[dict[str, Any]], stage: str) -> None:
    recipe = make_recipe(environments=environments)
    planner, plan = make_planner(recipe), TrainingPlan(stage, training_plan(recipe).options)
    slots = [PlannedGroup(*parts) for parts in itertools.product(range(6), range(3), range(3))]

    assert [planner.slot(plan, planner.train(plan, slot).group_id) for slot in slots] == slots


@pytest.mark.parametrize("environments", [TWO[:1], TWO], ids=["one environment", "two"])
@pytest.mark.parametrize("prefix", ["demonstrations", "repeat2.collect", "reinforce.step_000010"])
@pytest.mark.parametrize("plays", [DEMONSTRATIONS, COLLECTED, MEASURED], ids=["demonstrations", "collect", "measure"])
def test_every_id_of_what_is_played_leads_back_to_its_request(
    environments: list[dict[str, Any]], prefix: str, plays: Plays
) -> None:
    recipe = make_recipe(environments=environments)
    planner = make_planner(recipe)
    places = list(itertools.product(range(plays.num_groups(recipe)), (0, 1, 12)))

    requests = [planner.play(prefix, plays, *place, plays.samples_per_task) for place in places]

    assert [planner.find(prefix, plays, request.group_id) for request in requests] == requests
    assert len({request.group_id for request in requests}) == len(places)
    assert requests[1].group_id == f"{prefix}.t000000-r1"


def test_what_a_stage_may_ask_under_an_id_is_found_for_all_that_it_does() -> None:
    recipe = make_recipe(rl={"steps": 3, "groups_per_step": 2, "measure": {"every_steps": 1, "num_tasks": 2}})
    stage, planner = stage_of(recipe, Reinforce), make_planner(recipe)
    assert list(stage.plays()) == ["step_000001", "step_000002"], "what follows the last step is another stage's"
    plays = stage.plays()["step_000002"]

    found = planner.find(stage.prefix("step_000002"), plays, "reinforce.step_000002.t000001")

    assert found is not None
    assert (found.purpose, found.task.task_index, found.task.split) == ("eval", 1, "test")
    assert planner.find(stage.prefix("step_000002"), plays, "reinforce.step_000001.t000001") is None
    assert planner.slot(training_plan(recipe), "reinforce.step_000002.t000001") is None


@pytest.mark.parametrize(
    "stranger",
    [
        "reinforce.s000004-g00", "reinforce.s000000-g00", "reinforce.s000001-g02", "reinforce.s1-g0",
        "reinforce.s0000001-g00", "reinforce.s000001-g00-r0", "reinforce.s000001-g00-r1-t1",
        "reinforce.s000001-g00\n", "s000001-g00", "other.s000001-g00", "repeat1.reinforce.s000001-g00", "reinforce.",
        "", "reinforce.s" + "9" * 40 + "-g00",
    ],
)  # fmt: skip
def test_an_id_that_a_stage_never_trains_on_leads_nowhere(stranger: str) -> None:
    assert make_planner(make_recipe()).slot(training_plan(make_recipe()), stranger) is None


@pytest.mark.parametrize(
    "stranger",
    [
        "before.t000004", "before.t1", "after.t000001", "t000001", "before.t000001-r", "before.t000001-t1",
        "before.t000001\n", "before.x.t000001", "before.s000001-g00", "before.", "", "before.t" + "9" * 40,
    ],
)  # fmt: skip
def test_an_id_under_which_nothing_is_played_leads_nowhere(stranger: str) -> None:
    assert make_planner(make_recipe()).find("before", MEASURED, stranger) is None


def test_two_trainers_of_one_run_ask_for_the_same() -> None:
    recipe = make_recipe(seed=7, environments=TWO)
    plan, slots = (
        training_plan(recipe),
        [PlannedGroup(number, replacement) for number, replacement in itertools.product(range(6), range(3))],
    )
    one, other = make_planner(recipe), make_planner(recipe)

    assert [one.train(plan, slot) for slot in slots] == [other.train(plan, slot) for slot in reversed(slots)][::-1]
    assert len({one.train(plan, slot).group_id for slot in slots}) == len(slots)


def test_held_out_tasks_come_from_the_held_out_split() -> None:
    recipe = make_recipe(environments=[{"name": "maze", "eval_split": "validation"}])
    planner = make_planner(recipe)

    assert planner.play("before", MEASURED, 3, 0, 1).task.split == "validation"
    assert planner.train(training_plan(recipe), PlannedGroup(0)).task.split == "train"


def test_both_measurements_play_the_same_tasks_with_the_same_seeds() -> None:
    planner = make_planner(make_recipe())

    before = [planner.play("before", MEASURED, task, 0, 1) for task in range(4)]
    after = [planner.play("after", MEASURED, task, 0, 1) for task in range(4)]

    assert [request.task for request in before] == [request.task for request in after]
    assert not {request.group_id for request in before} & {request.group_id for request in after}


def test_demonstrations_are_the_first_train_tasks_played_by_the_expert() -> None:
    planner = make_planner(make_recipe(), num_tasks=2)

    requests = [planner.play("demonstrations", DEMONSTRATIONS, index, 0, 1) for index in range(3)]

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
    recipe = make_recipe(rl={"steps": 3, "groups_per_step": 2, "group_size": 2, "max_staleness": max_staleness})

    assert [planned_slots(stage_of(recipe, Reinforce).options, done) for done in range(4)] == planned


def test_the_strategy_and_the_budget_of_the_rollout_are_those_of_training_groups_alone() -> None:
    rollout = {"strategy": {"use": "./own.py", "width": 3}, "budget": {"env_steps": 40}}
    recipe = make_recipe(rollout=rollout)
    planner = make_planner(recipe)

    trained = planner.train(training_plan(recipe), PlannedGroup(0))
    measured, shown, collected = (
        planner.play("name", plays, 0, 0, 1) for plays in (MEASURED, DEMONSTRATIONS, COLLECTED)
    )

    assert trained.strategy == StrategySpec(use="./own.py", options={"width": 3})
    assert trained.budget == Budget(env_steps=40)
    assert (measured.strategy, measured.budget) == (StrategySpec(), Budget())
    assert (shown.strategy, shown.budget) == (StrategySpec(use="expert"), Budget())
    assert (collected.strategy, collected.budget) == (StrategySpec(use="./best.py"), Budget())


def test_each_strategy_is_asked_about_in_each_environment() -> None:
    recipe = make_recipe(environments=TWO, rollout={"strategy": {"use": "./own.py", "width": 3}})
    stage = stage_of(recipe, Reinforce)

    asked = make_planner(recipe).examples([*stage.strategies(recipe), StrategySpec(use="expert")])

    own = StrategySpec(use="./own.py", options={"width": 3})
    expert = StrategySpec(use="expert")
    assert [(one.strategy, one.task.env, one.format.use) for one in asked] == [
        (own, "maze", "react"), (own, "babyai", "dbbench"), (expert, "maze", "react"), (expert, "babyai", "dbbench"),
    ]  # fmt: skip


def test_what_is_collected_is_sampled_as_its_stage_says() -> None:
    planner = make_planner(make_recipe(rollout={"sampling": {"temperature": 0.8}}))

    assert planner.play("collect", COLLECTED, 0, 0, 2).sampling.temperature == 0.5
    assert planner.play("collect", COLLECTED, 0, 0, 2).num_samples == 2


# --- several environments


@pytest.fixture
def both() -> Recipe:
    rl = {"steps": 4, "groups_per_step": 3, "algorithm": "ppo", "critic": {"gamma": 0.75}}
    return make_recipe(environments=TWO, rl=rl, rollout={"limits": {"max_turns": 7}})


def test_training_groups_are_mixed_by_the_weights(both: Recipe) -> None:
    planner, plan = make_planner(both), training_plan(both)

    requests = [planner.train(plan, PlannedGroup(number)) for number in range(12)]

    assert [r.task.env for r in requests[:6]] == ["maze", "babyai", "maze", "maze", "babyai", "maze"]
    for env in ("maze", "babyai"):
        own = [r.task.task_index for r in requests if r.task.env == env]
        assert len(set(own)) == len(own), "no task comes twice in a pass"


def test_the_tables_of_an_environment_are_its_own(both: Recipe) -> None:
    planner, plan = make_planner(both), training_plan(both)

    maze, balls = (planner.train(plan, PlannedGroup(number)) for number in (0, 1))

    assert (maze.task.level, balls.task.level) == ("easy", None)
    assert (maze.limits.max_turns, balls.limits.max_turns) == (4, 7)
    assert (maze.format.use, balls.format.use) == ("react", "dbbench")
    assert (maze.reward.gamma, balls.reward.gamma) == (0.75, 0.5), "the algorithm's, unless one is given"
    assert maze.reward.components["goal"].options.get("success", 1.0) == 1.0
    assert balls.reward.components["goal"].options["success"] == 3.0


def test_a_schedule_goes_by_the_step_and_a_measurement_has_its_end(both: Recipe) -> None:
    planner, plan = make_planner(both), training_plan(both)

    by_step = [planner.train(plan, PlannedGroup(3 * step)) for step in range(4)]
    shown = planner.play("demonstrations", DEMONSTRATIONS, 0, 0, 1)
    measured = planner.play("before", MEASURED, 0, 0, 1)

    assert [(r.task.level, r.limits.max_turns) for r in by_step] == [
        ("easy", 4), ("hard", 4), ("hard", 9), ("hard", 9)
    ]  # fmt: skip
    assert {(r.task.level, r.limits.max_turns) for r in (shown, measured)} == {("hard", 9)}


def test_a_measurement_plays_as_many_tasks_of_each_environment(both: Recipe) -> None:
    planner = make_planner(both)
    assert (MEASURED.num_groups(both), COLLECTED.num_groups(both), COLLECTED.num_episodes(both)) == (8, 3, 6)

    requests = [planner.play("before", MEASURED, index, 0, 1) for index in range(8)]

    assert [(r.task.env, r.task.split, r.task.task_index) for r in requests] == [
        *(("maze", "test", index) for index in range(4)),
        *(("babyai", "validation", index) for index in range(4)),
    ]
    assert planner.find("before", MEASURED, "before.t000007") == requests[7]
    assert planner.find("before", MEASURED, "before.t000008") is None
    titles = [planner.title_of(MEASURED, request.group_id) for request in requests]
    assert titles == ["maze"] * 4 + ["balls"] * 4


def test_demonstrations_are_mixed_by_the_weights(both: Recipe) -> None:
    planner = GroupPlanner(both, RUN_ID, {"maze": {"train": 3, "test": 1}, "babyai": {"train": 2, "validation": 1}})
    plays = Plays(9, purpose="demonstration")

    tasks = [planner.play("demonstrations", plays, index, 0, 1).task for index in range(9)]

    assert [(t.env, t.task_index, t.seed) for t in tasks] == [
        ("maze", 0, 0), ("babyai", 0, 0), ("maze", 1, 0), ("maze", 2, 0), ("babyai", 1, 0), ("maze", 0, 1),
        ("maze", 1, 1), ("babyai", 0, 1), ("maze", 2, 1),
    ]  # fmt: skip
    assert planner.title_of(plays, "demonstrations.t000001-r2") == "balls"
    later = replace(plays, first_task=4)
    assert [planner.play("demonstrations", later, index, 0, 1).task for index in range(5)] == tasks[4:]
    assert planner.title_of(later, "demonstrations.t000000") == "balls"


def test_environments_do_not_share_the_order_of_their_tasks(both: Recipe) -> None:
    planner, plan = make_planner(both), training_plan(both)

    requests = [planner.train(plan, PlannedGroup(number)) for number in range(12)]

    orders = [[r.task.task_index for r in requests if r.task.env == env] for env in ("maze", "babyai")]
    assert orders[0][:4] != orders[1][:4]


@pytest.mark.parametrize("environments", [TWO[:1], TWO], ids=["one environment", "two"])
def test_a_later_stage_goes_on_with_the_tasks_after_those_of_the_first(environments: list[dict[str, Any]]) -> None:
    recipe = make_recipe(environments=environments, rl={"steps": 6, "groups_per_step": 2})
    planner, whole = make_planner(recipe), training_plan(recipe)
    later = TrainingPlan("later", whole.options, first_slot=4)

    one = [planner.train(whole, PlannedGroup(number)).task for number in range(4, 8)]
    other = [planner.train(later, PlannedGroup(number)) for number in range(4)]

    assert [(r.task.env, r.task.task_index, r.task.seed) for r in other] == [
        (task.env, task.task_index, task.seed) for task in one
    ]
    assert [r.group_id for r in other[:2]] == ["later.s000001-g00", "later.s000001-g01"], "steps are its own"
    assert planner.slot(later, "later.s000002-g01") == PlannedGroup(3)


@pytest.mark.parametrize(("level", "expected"), [(None, "large"), ("tiny", "tiny")])
@pytest.mark.parametrize("purpose", ["eval", "collect", "demonstration"])
def test_outside_of_training_the_level_is_the_schedules_last_unless_one_is_given(
    purpose: Any, level: str | None, expected: str
) -> None:
    env = {"name": "maze", "level": "small", "schedule": [{"step": 2, "level": "large"}]}
    planner = make_planner(make_recipe(environments=[env]))

    assert planner.play("x", Plays(3, purpose=purpose, level=level), 1, 0, 1).task.level == expected


@pytest.mark.parametrize(("algorithm", "keys"), [("grpo", None), ("gigpo", True)])
def test_an_algorithm_that_compares_states_is_told_their_keys(algorithm: str, keys: bool | None) -> None:
    recipe = make_recipe(rl={"algorithm": algorithm, "groups_per_step": 2})
    plan = stage_of(recipe, Reinforce).plan(RunState(run_id=RUN_ID, recipe_hash="h"))

    assert make_planner(recipe).train(plan, PlannedGroup(0)).task.state_keys is keys
    assert make_planner(recipe).play("measure", MEASURED, 0, 0, 1).task.state_keys is None
