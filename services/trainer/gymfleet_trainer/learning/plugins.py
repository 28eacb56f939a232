"""Which algorithm a recipe means, with its options."""

from typing import Any, Final

from gymfleet_contracts.recipe import Recipe, RlSection
from gymfleet_kit.plugins import PluginKind, checked_options, hash_of, source_of

from gymfleet_trainer.learning.algorithm import Algorithm

ALGORITHMS: Final = PluginKind[Algorithm[Any]]("algorithm", (Algorithm,), "gymfleet_trainer.algorithms")


def algorithm_of(rl: RlSection) -> Algorithm[Any]:
    """Return the algorithm. Raises `PluginError` for one that does not exist, and for options that it does not take."""
    kind = ALGORITHMS.find(rl.algorithm)
    return kind(checked_options(kind.Options, rl.options, table="rl", owner=rl.algorithm))


def suitable_algorithm(recipe: Recipe) -> Algorithm[Any] | None:
    """Return the recipe's algorithm, if it has one. Raises `PluginError`, and `RecipeError` if the two do not agree."""
    if recipe.rl is None:
        return None
    algorithm = algorithm_of(recipe.rl)
    recipe.suits(algorithm.facts)
    return algorithm


def own_sources(recipe: Recipe) -> dict[str, str]:
    """Return the files of the plug-ins that do not come with gymfleet, with the hashes of their contents."""
    named = [("format", recipe.rollout.format.use), ("strategy", recipe.rollout.strategy.use)]
    named += [("component", reference) for reference in recipe.reward.used.values()]
    if recipe.rl is not None:
        named.append(("algorithm", recipe.rl.algorithm))
    files = [source_of(kind, reference) for kind, reference in named]
    return {str(file): hash_of(file) for file in files if file is not None}
