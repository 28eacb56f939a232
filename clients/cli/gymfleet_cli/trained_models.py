"""Reward models that a recipe both trains and asks: where the reward service of its run finds them."""

from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from gymfleet_contracts.recipe import LATEST_REWARD_MODELS, Recipe, RecipeError
from gymfleet_contracts.stages import PlannedStage, StageFacts
from pydantic import JsonValue

from gymfleet_cli.plugins import descriptions

_SCORES: Final = {"reward_model": "episode", "process_reward_model": "turns"}
"""What a reward model scores, by the name that both the component that asks it and the stage that trains it use."""


def trained_models(recipe: Recipe, run_dir: Path, known: Collection[str]) -> dict[str, JsonValue]:
    """Return the models that the recipe's rewards name and its stages train, in the form of `GYMFLEET_REWARD_MODELS`.

    Args:
        recipe: a recipe whose plug-ins are checked.
        run_dir: the directory where its stages leave their models.
        known: names set by the operator, for the operator's own models.

    Raises:
        RecipeError: there is no model of that name, or only a later stage trains it.
    """
    asked = [one for one in _asked(recipe) if one[2] not in known]
    plan = recipe.plan()
    trained = _trained(plan) if asked else {}
    found: dict[str, JsonValue] = {}
    for place, component, name in asked:
        if trained.get(name) != {component}:
            own = ", ".join(sorted(title for title, kinds in trained.items() if kinds == {component})) or "none"
            raise RecipeError(
                f"{place}: there is no model {name!r} for {component}: name one that a stage of the recipe trains "
                f"({own}), or one of GYMFLEET_REWARD_MODELS ({', '.join(sorted(known)) or 'none'})"
            )
        asks = (one for one in plan if place.startswith(f"{one.table}.reward."))
        if early := next((one.name for one in asks if name not in one.before), None):
            raise RecipeError(f"{place}: the stage {name} comes after {early}, which asks its model")
        found[name] = {
            "kind": "embedded",
            "scores": _SCORES[component],
            "path": str(run_dir.resolve() / LATEST_REWARD_MODELS / name),
            "max_tokens": recipe.inference.max_model_len,
            "reload": True,
        }
    return found


def _trained(plan: list[PlannedStage]) -> dict[str, set[str]]:
    """Return the components for which stages train models, by stage title."""
    told = descriptions(("stage", stage.kind) for stage in plan)
    trained: dict[str, set[str]] = defaultdict(set)
    for stage in plan:
        if kinds := set(StageFacts.model_validate(told["stage", stage.kind].facts).leaves) & _SCORES.keys():
            trained[stage.title] |= kinds
    return trained


def _asked(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Yield each place where one of gymfleet's own components asks a model, the component, and the model's name."""
    for table, reward in recipe.rewards().items():
        for label, component in reward.used.items():
            if component in _SCORES:
                yield f"{table}.{label}.model", component, str(reward.components[label].options["model"])
