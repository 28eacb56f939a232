"""The trainings and strategies of bench_search: recipes made from the shipped ones."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gymfleet_cli.recipes import load_with_overrides
from gymfleet_contracts.recipe import Recipe

RECIPES: Final = Path(__file__).parents[1] / "recipes"
INDEPENDENT: Final = "independent"
ALLOCATED: Final = "allocated"
"""Independent episodes, their number per task set by an allocation; all tasks together have the others' budget."""
GOAL: Final[Mapping[str, Any]] = {"goal": {"success": 1.0, "failure": 0.0}}


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment, and the training of a model that solves some of its tasks."""

    recipe: str
    changes: Sequence[str] = ()
    environments: int | None = None
    """Use this many of the recipe's environments; None uses all."""


SETTINGS: Final[Mapping[str, Setting]] = {
    "intro": Setting("quickstart"),
    # As in the warm start of bench_methods.
    "maze": Setting(
        "maze", ("rollout.limits.max_turns=8", "stages.demonstrations.num_tasks=250", "stages.sft.epochs=10")
    ),
    # One turn, so there is nothing to search but the answer: the case for votes and samples.
    "sums": Setting("dataset", environments=1),
}
STRATEGIES: Final[Mapping[str, Mapping[str, Any]]] = {
    # As many candidates as the budget allows.
    "best_of_n": {"candidates": 1024},
    "self_consistency": {"candidates": 1024},
    "beam": {"width": 4, "candidates": 4},
    "dfsdt": {"width": 4},
    "mcts": {"simulations": 100_000, "enough": 1.0},
}
CURVE: Final = ("best_of_n", "mcts")
CURRENCIES: Final = ("model_calls", "env_steps")


def recipe_of(env: str, arguments: argparse.Namespace) -> Recipe:
    """Return the recipe that trains a policy on demonstrations, and a process reward model on the policy's episodes."""
    setting = SETTINGS[env]
    recipe = load_with_overrides(RECIPES / f"{setting.recipe}.toml", (*setting.changes, *arguments.small))
    demonstrations, sft = (stage.model_dump(mode="json", exclude_unset=True) for stage in recipe.stages[:2])
    optimizer = {"learning_rate": 1e-3, "schedule": "cosine", "warmup_steps": 20}
    stages = [
        demonstrations, sft,
        {"kind": "collect", "name": "played", "num_tasks": arguments.played, "samples_per_task": 4},
        {"kind": "process_reward", "data": "played", "epochs": 4, "optimizer": optimizer},
    ]  # fmt: skip
    environments = [one.model_dump(mode="json", exclude_unset=True) for one in recipe.environments]
    return _changed(recipe, environments=environments[: setting.environments], stages=stages)


def measured_by_goal(recipe: Recipe, arguments: argparse.Namespace) -> Recipe:
    """Return a recipe that also measures with every strategy; strategies that choose use the environment's score."""
    trained = [stage.model_dump(mode="json", exclude_unset=True) for stage in recipe.stages]
    independent = {"kind": "measure", "name": INDEPENDENT, "num_tasks": arguments.tasks}
    cells = [
        *((use, currency, arguments.episodes) for currency in CURRENCIES for use in arguments.strategies),
        *((use, "model_calls", episodes) for episodes in arguments.curve for use in CURVE),
    ]
    allocation = {"model_calls": arguments.tasks * arguments.episodes * recipe.rollout.limits.max_turns}
    stages = [
        *trained, {**independent, "samples_per_task": arguments.samples},
        *(_measure(recipe, *cell, arguments.tasks) for cell in cells),
        {
            "kind": "measure", "name": f"{ALLOCATED}-model_calls-{arguments.episodes}", "num_tasks": arguments.tasks,
            "allocation": {**allocation, "most": arguments.samples},
        },
    ]  # fmt: skip
    return _by(_changed(recipe, stages=stages), GOAL)


def measured_by_model(recipe: Recipe, arguments: argparse.Namespace, policy: Path, name: str) -> Recipe:
    """Return a recipe that measures a trained policy by the choices of a process reward model, which knows no score."""
    asked = {"model": name, "activation": "sigmoid", "together": "product"}
    evaluator = {"process_reward_model": asked}
    stages = [_measure(recipe, "best_of_n", CURRENCIES[0], arguments.episodes, arguments.tasks)]
    return _by(_changed(recipe, model={"path": str(policy)}, stages=stages), evaluator)


def _measure(recipe: Recipe, use: str, currency: str, episodes: int, tasks: int) -> dict[str, Any]:
    """Return a measurement by a strategy, with the most that `episodes` whole episodes would take as its budget.

    Replies without an action take no environment step, so four times as many replies as steps always end a search.
    """
    most = episodes * recipe.rollout.limits.max_turns
    return {
        "kind": "measure", "name": f"{use}-{currency}-{episodes}", "num_tasks": tasks,
        "strategy": {"use": use, **STRATEGIES[use]},
        "budget": {"model_calls": 4 * most, currency: most},
    }  # fmt: skip


def _by(recipe: Recipe, evaluator: Mapping[str, Any]) -> Recipe:
    rollout = recipe.rollout.model_dump(mode="json", exclude_unset=True)
    return _changed(recipe, rollout={**rollout, "evaluator": evaluator})


def _changed(recipe: Recipe, **parts: Any) -> Recipe:
    return Recipe.model_validate({**recipe.model_dump(mode="json", exclude_unset=True), **parts})
