"""`gymfleet eval --strategy`: one model by several strategies, each with what it took."""

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

_SPENT: Final = {"model_calls": "replies", "env_steps": "steps", "tokens": "tokens", "evaluations": "values"}


def recipe_by(recipe: Recipe, strategy: str, budget: Sequence[str]) -> Recipe:
    """Return the recipe that measures as this one does at its end, by a strategy and with a budget for each task.

    Args:
        recipe: that of the run.
        strategy: a name and its options, as in `best_of_n,candidates=16`.
        budget: as in `model_calls=64`.

    Raises:
        UsageProblem: one of them cannot be read, or is no budget.
    """
    use, *options = strategy.split(",")
    table = {"use": use.strip(), **_pairs("--strategy", options)}
    try:
        spent = Budget.model_validate(_pairs("--budget", budget))
    except ValidationError as error:
        raise UsageProblem(f"--budget: {faults(error, whole='budget')}") from None
    document = recipe.model_dump(mode="json", exclude_unset=True)
    last: dict[str, Any] = next((one for one in reversed(document["stages"]) if one.get("kind") == "measure"), {})
    measured = {**last, "kind": "measure", "name": "measure", "strategy": table}
    measured["budget"] = spent.model_dump(mode="json", exclude_none=True)
    return Recipe.model_validate({**document, "stages": [measured]})


def _pairs(option: str, given: Sequence[str]) -> dict[str, Any]:
    pairs = {}
    for one in given:
        key, equals, text = one.partition("=")
        if not equals or not key.strip():
            raise UsageProblem(f"{option}: {one!r}: write KEY=VALUE")
        pairs[key.strip()] = toml_value(text.strip())
    return pairs


def print_comparison(measured: Mapping[str, Measurement], recipe: Recipe) -> None:
    """Print a row for each strategy: success, what a task took on average, and what nodes were valued by."""
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
