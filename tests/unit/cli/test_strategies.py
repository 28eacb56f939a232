"""Recipes that measure by a strategy, as `gymfleet eval --strategy` writes them."""

import pytest
from gymfleet_cli.console import UsageProblem
from gymfleet_cli.strategies import recipe_by

from tests.fixtures.scored import make_recipe

MEASURED = {"kind": "measure", "num_tasks": 7, "level": "hard"}


@pytest.mark.parametrize(
    ("given", "table"),
    [
        ("beam", {"use": "beam"}),
        ("mcts, simulations=16,select=puct", {"use": "mcts", "simulations": 16, "select": "puct"}),
        (
            '{use = "graph_of_thoughts", operations = [{do = "generate", count = 2}]}',
            {"use": "graph_of_thoughts", "operations": [{"do": "generate", "count": 2}]},
        ),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_it_measures_as_the_recipe_does_at_its_end(given: str, table: dict[str, object], nested: bool) -> None:
    stages = [{"repeat": 2, "stages": [MEASURED]}] if nested else [MEASURED]

    (stage,) = recipe_by(make_recipe(stages=stages), given, ["model_calls=64", "seconds=1.5"]).plan()

    assert stage.options == {
        "num_tasks": 7, "level": "hard", "strategy": table, "budget": {"model_calls": 64, "seconds": 1.5},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "budget", "told"),
    [
        ("beam,width", [], "--strategy: 'width': write KEY=VALUE"),
        ("{width = 2}", [], "--strategy '{width = 2}': write {use"),
        ("{use", [], "--strategy '{use': write {use"),
        ("beam", ["model_calls"], "--budget: 'model_calls': write KEY=VALUE"),
        ("beam", ["calls=3"], "--budget: calls: unknown; known: "),
        ("beam", ["env_steps=-1"], "--budget: env_steps: "),
    ],
)
def test_what_cannot_be_read_is_said(strategy: str, budget: list[str], told: str) -> None:
    with pytest.raises(UsageProblem) as problem:
        recipe_by(make_recipe(), strategy, budget)

    assert str(problem.value).startswith(told)
