"""The components that score each environment's episodes, chosen by name or by a recipe."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Final

from gymfleet_contracts.faults import faults
from gymfleet_contracts.reward import RewardSpec
from gymfleet_kit.plugins import is_path
from pydantic import ValidationError

from gymfleet_cli.console import UsageProblem
from gymfleet_cli.options import one_option
from gymfleet_cli.plugins import description
from gymfleet_cli.recipes import load_with_overrides

_GOAL: Final = "goal"


class Rewards:
    """The reward of each environment's episodes."""

    def __init__(self, by_env: Mapping[str, RewardSpec], otherwise: RewardSpec | None) -> None:
        self._by_env = by_env
        self._otherwise = otherwise

    def of(self, env: str) -> RewardSpec:
        """Return the reward of an environment's episodes. Raises `UsageProblem` if the recipe lacks the environment."""
        found = self._by_env.get(env, self._otherwise)
        if found is None:
            raise UsageProblem(f"the recipe has no environment {env}; it has {', '.join(self._by_env)}")
        return found

    def told(self) -> dict[str, Any]:
        """Return everything the rewards depend on, to compare with those with which a file was begun."""
        specs = {**self._by_env, **({} if self._otherwise is None else {"": self._otherwise})}
        return {env: spec.model_dump(mode="json") for env, spec in sorted(specs.items())}

    def references(self) -> tuple[str, ...]:
        """Return the components that are not plain names: the service must be told that they may be used."""
        specs = [*self._by_env.values(), *([] if self._otherwise is None else [self._otherwise])]
        used = {reference for spec in specs for reference in spec.used.values()}
        return tuple(sorted(reference for reference in used if not reference.isidentifier()))


def rewards_of(components: Sequence[str], options: Sequence[str], recipe: Path | None) -> Rewards:
    """Return the rewards that the command line asks for. Raises `UsageProblem` and `RecipeError`."""
    if bool(components) == (recipe is not None):
        raise UsageProblem("give either --component, once for each, or --recipe")
    if recipe is not None:
        if options:
            raise UsageProblem("--set is for --component; the recipe has its own tables")
        return _of_recipe(recipe)
    tables: dict[str, dict[str, Any]] = {}
    for reference in components:
        description("component", reference)
        tables[_label(reference)] = {"use": reference}
    for given in options:
        place, value = one_option(given)
        label, dot, key = place.partition(".")
        if not dot or label not in tables:
            raise UsageProblem(f"--set {given}: give COMPONENT.KEY=VALUE of one of {', '.join(tables)}")
        tables[label][key] = value
    tables.setdefault(_GOAL, {"enabled": False})
    try:
        return Rewards({}, RewardSpec.model_validate(tables))
    except ValidationError as error:
        raise UsageProblem(f"--component: {faults(error, most=1)}") from None


def _of_recipe(path: Path) -> Rewards:
    recipe = load_with_overrides(path, ())
    found: dict[str, RewardSpec] = {}
    for section in recipe.environments:
        spec = recipe.reward_spec(section, 1.0)
        if found.setdefault(section.name, spec) != spec:
            raise UsageProblem(f"{path}: {section.name} has several rewards, and episodes do not say which is theirs")
    return Rewards(found, None)


def _label(reference: str) -> str:
    """Return the name of a component in the breakdown."""
    name = PurePath(reference).stem if is_path(reference) else reference
    return name.rpartition(":")[2]
