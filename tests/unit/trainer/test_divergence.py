"""Updates that changed nothing, were refused, or have a critic that is far off: a line for each, and an end."""

import asyncio
import contextlib
import math
from types import SimpleNamespace
from typing import Any

import pytest
from gymfleet_trainer.algorithms.ppo import Ppo, PpoOptions
from gymfleet_trainer.errors import Diverged
from gymfleet_trainer.learning.engine import UpdateEngine
from gymfleet_trainer.learning.options import ReinforceOptions
from gymfleet_trainer.run.divergence import DivergenceWatch
from structlog.testing import capture_logs

from tests.unit.trainer.test_collect_order import virtual_run
from tests.unit.trainer.test_groups import make_group, make_state
from tests.unit.trainer.test_update import model, model_dir, sampled  # noqa: F401 - fixtures

TABLE = "stages.late"
MADE: dict[str, float] = {"num_updates": 4, "num_nonfinite": 0, "grad_norm": 0.5}
REFUSED = {"num_updates": 4, "num_nonfinite": 4, "grad_norm": 0.0}


def watch(max_diverged_steps: int = 2) -> tuple[DivergenceWatch, Any]:
    state = make_state(step=7)
    return DivergenceWatch(state, TABLE, max_diverged_steps), state


def test_an_update_that_was_made_says_nothing() -> None:
    watching, state = watch()

    with capture_logs() as lines:
        watching.look_at(MADE, [make_group(0.0, 1.0)])
        watching.look_at({**MADE, "value_grad_norm": 1.0, "value_size": 9.9}, [make_group(0.0, 1.0)])
        watching.look_at({**MADE, "num_updates": 0, "value_grad_norm": 1.0}, [make_group(0.0, 1.0)])  # a warm-up

    assert (lines, state.counts) == ([], {})


def test_a_batch_without_a_signal_is_a_line() -> None:
    watching, state = watch(1)

    with capture_logs() as lines:
        watching.look_at({"num_updates": 0, "num_nonfinite": 0, "grad_norm": math.nan}, [make_group(1.0, 1.0)])

    assert [(line["event"], line["step"]) for line in lines] == [("step.without_signal", 7)]
    assert state.counts == {"steps_without_signal": 1}


def test_some_refused_updates_are_a_line_and_no_end() -> None:
    watching, state = watch(1)

    with capture_logs() as lines:
        watching.look_at({"num_updates": 4, "num_nonfinite": 1, "grad_norm": 0.4}, [make_group(0.0, 1.0)])

    assert [(line["event"], line["updates"]) for line in lines] == [("update.refused", 1)]
    assert state.counts == {"updates_refused": 1}


def test_steps_in_a_row_whose_updates_are_all_refused_end_the_run() -> None:
    watching, state = watch(2)
    groups = [make_group(0.0, 1.0)]

    watching.look_at(REFUSED, groups)
    watching.look_at(MADE, groups)
    watching.look_at(REFUSED, groups)
    with pytest.raises(Diverged, match=r"^stages\.late: .* 2 steps in a row: .* stages\.late\.optimizer") as raised:
        watching.look_at(REFUSED, groups)

    assert raised.value.exit_code == 10
    assert state.counts == {"updates_refused": 12}


@pytest.mark.parametrize(("largest", "size", "diverged"), [(1.0, 10.5, True), (-2.0, 19.0, False), (0.1, 9.0, False)])
def test_values_far_above_any_return_are_a_line(largest: float, size: float, diverged: bool) -> None:
    watching, state = watch()

    with capture_logs() as lines:
        watching.look_at({**MADE, "value_grad_norm": 1.0, "value_size": size}, [make_group(0.0, largest)])

    assert [line["event"] for line in lines] == ["critic.diverged"] * diverged
    assert state.counts.get("steps_with_diverged_critic", 0) == diverged


@pytest.mark.parametrize(("per_turn", "largest"), [([1.0] * 30, 30.0), ([-3.0, -2.0, 5.0], 5.0)])
def test_a_return_may_be_larger_than_the_total_reward(per_turn: list[float], largest: float) -> None:
    watching, state = watch()
    group = make_group(0.0, 1.0)
    scored = group.samples[1]
    assert scored.reward is not None
    reward = scored.reward.model_copy(update={"token_rewards": tuple((0.0, value) for value in per_turn)})
    group.samples[1] = scored.model_copy(update={"reward": reward})

    for size in (9.9 * largest, 10.1 * largest):
        watching.look_at({**MADE, "value_grad_norm": 1.0, "value_size": size}, [group])

    assert state.counts == {"steps_with_diverged_critic": 1}


def test_a_critic_that_is_not_a_number_is_named_before_the_policy_that_it_ruins() -> None:
    watching, _ = watch(1)

    with pytest.raises(Diverged, match=r"stages\.late\.critic\.optimizer\.learning_rate"):
        watching.look_at({**REFUSED, "value_grad_norm": 0.0, "value_size": math.nan}, [make_group(0.0, 1.0)])


@pytest.mark.parametrize("max_diverged_steps", [1, 3])
def test_a_run_ends_after_as_many_steps_as_its_recipe_says(max_diverged_steps: int) -> None:
    run = virtual_run(0, max_diverged_steps=max_diverged_steps)
    updates: list[int] = []

    def update(*_: Any) -> dict[str, float]:
        run.collector.train()
        updates.append(run.state.step)
        return dict(REFUSED)

    async def checkpoint(*_: float) -> None:
        pass

    async def publish() -> None:
        run.state.version += 1
        run.state.ages[run.state.version] = run.state.age

    run.learner = SimpleNamespace(update=update, batch_parity=lambda *_: None, finishes_apart=True, waited_s=0.0)
    run.publisher = SimpleNamespace(adopt_probe=lambda *_: None)
    run.directory.trajectories = lambda *_: None
    run.lap = lambda *_: None
    run.engines_aside = contextlib.nullcontext
    run.see_to_checkpoint = run.begin_checkpoint = checkpoint
    run.commit_checkpoint = lambda: None
    run.publish = publish

    async def steps() -> None:
        while True:
            await run.steps._ask_ahead()
            await run.steps._step()

    with pytest.raises(Diverged, match=f"in {max_diverged_steps} steps in a row"):
        asyncio.run(steps())

    assert len(updates) == max_diverged_steps


def test_a_critic_that_learns_far_too_fast_is_found(model: Any) -> None:  # noqa: F811 - a fixture
    critic = PpoOptions().critic.model_copy(
        update={"optimizer": PpoOptions().critic.optimizer.model_copy(update={"learning_rate": 50.0})}
    )
    section = ReinforceOptions(algorithm="ppo", groups_per_step=4, group_size=3)
    engine = UpdateEngine(model, Ppo(PpoOptions(critic=critic)), section)
    watching, _ = watch(3)
    rows = sampled(model)

    def learn() -> None:
        for _ in range(10):
            watching.look_at(engine.update(rows), [make_group(0.0, 1.0)])

    with pytest.raises(Diverged, match=r"stages\.late\.critic\.optimizer\.learning_rate"):
        learn()
