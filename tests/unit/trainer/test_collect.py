"""What a stage that collects leaves for others."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_trainer.errors import TooManyFailures
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.stages.collect import Collect

from tests.fixtures.scored import RUN_ID, make_recipe, make_scored
from tests.fixtures.trainer_plans import stage_of


def collected(strategy: str, successes: list[bool]) -> tuple[list[ScoredTrajectory], RunState]:
    """What is left of one episode of each task, and the state after it."""
    recipe = make_recipe(
        stages=[{"kind": "collect", "name": "shown", "strategy": strategy, "num_tasks": len(successes)}]
    )
    episodes = [make_scored(f"shown.t{task:06d}", success=success) for task, success in enumerate(successes)]
    left: list[ScoredTrajectory] = []

    async def played() -> Any:
        return SimpleNamespace(counted=episodes, env_steps=12)

    run: Any = SimpleNamespace(
        recipe=recipe, state=RunState(run_id=RUN_ID, recipe_hash="h"), played=played, leave=left.extend
    )
    asyncio.run(stage_of(recipe, Collect).run(run))
    return left, run.state


@pytest.mark.parametrize(
    ("strategy", "kept", "count"),
    [
        pytest.param("expert", [0, 2], {"demonstrations": 2}, id="what the expert does not solve is left out"),
        pytest.param(
            "independent",
            [0, 1, 2],
            {"episodes_collected": 3, "env_steps.shown": 12},
            id="what the policy does not solve is not",
        ),
    ],
)
def test_what_is_left(strategy: str, kept: list[int], count: dict[str, int]) -> None:
    left, state = collected(strategy, [True, False, True])

    assert [scored.trajectory.group_id for scored in left] == [f"shown.t{task:06d}" for task in kept]
    assert state.counts == count


def test_an_expert_that_solves_nothing_ends_the_run_with_a_reason() -> None:
    with pytest.raises(TooManyFailures) as caught:
        collected("expert", [False, False])

    assert str(caught.value) == (
        "stages.shown: none of 2 demonstrations succeeded; check that the environment maze has an expert and is "
        "served, or remove the stage from the recipe"
    )
