"""`gymfleet eval --strategy`: one model measured with several strategies, each with its costs."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gymfleet_contracts.faults import faults
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.rollout import Budget
from pydantic import ValidationError
from rich.table import Table

from gymfleet_cli.console import UsageProblem, out, plain
from gymfleet_cli.outcome import success_line
from gymfleet_cli.recipes import toml_value
from gymfleet_cli.report.data import Measurement

_HOW_PLAYED: Final = ("strategy", "budget", "allocation")
"""Options of a measurement that are replaced."""
_SPENT: Final = {
    "model_calls": "replies",
    "env_steps": "steps",
    "tokens": "tokens",
    "evaluations": "values",
    "forks": "forks",
}


def recipe_by(recipe: Recipe, strategy: str, budget: Sequence[str]) -> Recipe:
    """Return the recipe of this one's last measurement, with a strategy and a budget for each task.

    Args:
        recipe: that of the run.
        strategy: a name and its options, as in `best_of_n,candidates=16`, or a TOML table in braces.
        budget: as in `model_calls=64`.

    Raises:
        UsageProblem: the strategy or the budget cannot be read, or the budget is invalid.
    """
    table = _table(strategy)
    limits = _pairs("--budget", budget)
    if unknown := sorted(limits.keys() - Budget.model_fields):
        raise UsageProblem(f"--budget: {unknown[0]}: unknown; known: {', '.join(Budget.model_fields)}")
    try:
        spent = Budget.model_validate(limits)
    except ValidationError as error:
        raise UsageProblem(f"--budget: {faults(error, whole='budget')}") from None
    return _measuring(recipe, strategy=table, budget=spent.model_dump(mode="json", exclude_none=True))


def recipe_allocated(recipe: Recipe, allocation: str) -> Recipe:
    """Return the recipe of this one's last measurement, with a budget that all tasks share.

    Args:
        recipe: that of the run.
        allocation: as in `model_calls=4096,wave=16`.

    Raises:
        UsageProblem: the allocation cannot be read, or the recipe has no evaluator of episodes.
    """
    if recipe.rollout.evaluator is None:
        raise UsageProblem("--allocate: what an episode is worth says [rollout.evaluator]: give that table")
    return _measuring(recipe, allocation=_pairs("--allocate", allocation.split(",")))


def _measuring(recipe: Recipe, **options: Any) -> Recipe:
    """Return a recipe of one measurement: another recipe's last, played with other options."""
    document = recipe.model_dump(mode="json", exclude_unset=True)
    last = next((dict(stage.options) for stage in reversed(recipe.plan()) if stage.kind == "measure"), {})
    kept = {name: value for name, value in last.items() if name not in _HOW_PLAYED}
    measured = {**kept, "kind": "measure", "name": "measure", **options}
    return Recipe.model_validate({**document, "stages": [measured]})


def _table(strategy: str) -> dict[str, Any]:
    if strategy.startswith("{"):
        table = toml_value(strategy)
        if not isinstance(table, dict) or not isinstance(table.get("use"), str):
            raise UsageProblem(f'--strategy {strategy!r}: write {{use = "NAME", KEY = VALUE}}')
        return table
    use, *options = strategy.split(",")
    return {"use": use.strip(), **_pairs("--strategy", options)}


def _pairs(option: str, given: Sequence[str]) -> dict[str, Any]:
    pairs = {}
    for one in given:
        key, equals, text = one.partition("=")
        if not equals or not key.strip():
            raise UsageProblem(f"{option}: {one!r}: write KEY=VALUE")
        pairs[key.strip()] = toml_value(text.strip())
    return pairs


def print_comparison(measured: Mapping[str, Measurement], recipe: Recipe) -> None:
    """Print a row for each strategy: success, the mean cost of a task, and the components that valued nodes."""
    table = Table()
    for column in ("strategy", "success", *(f"{name}/task" for name in _SPENT.values()), "seconds", "valued by"):
        table.add_column(column, overflow="fold")
    evaluator = recipe.evaluator_spec
    for strategy, one in measured.items():
        spent = [f"{getattr(one.spent, key):.1f}" if one.spent else "not counted" for key in _SPENT]
        valued = evaluator is not None and one.spent is not None and one.spent.evaluations > 0
        by = ", ".join(sorted(set(evaluator.used.values()))) if evaluator is not None and valued else "nothing"
        table.add_row(*map(plain, (strategy, success_line(one), *spent, f"{one.seconds:.1f}", by)))
    out.print(table)
