"""What components do where a recipe says nothing, and which numbers they take: the pages of the reference, by hand."""

from typing import Any, Final

import pytest
from gymfleet_kit.plugins import options_of
from gymfleet_reward.plugins import COMPONENTS
from pydantic import ValidationError

GIVEN: Final[dict[str, Any]] = {"ground_truth_from": "info.gold", "judge": "one", "model": "one"}
"""What some cannot do without."""
WEIGHTS: Final = {"format": 0.2, "group_diversity": 0.1, "invalid_action": -0.1, "length": -0.01, "repetition": -1.0}
"""All others have 1."""
DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "accuracy": {"max_cpu_s": 3.0, "costly": "wrong"},
    "action_path": {"match": "in_order"},
    "cosine_length": {
        "max_tokens": 1000, "solved_short": 1.0, "solved_long": 0.5, "unsolved_short": -1.0, "unsolved_long": -0.5,
    },
    "efficiency": {"best_turns": 1, "worst_turns": 20},
    "environment": {"scale": 1.0, "clip": None, "credit": "sum"},
    "goal": {"success": 1.0, "failure": -1.0, "partial": False},
    "group_diversity": {"actions": 1},
    "judge": {"max_chars": 60_000, "max_tokens": 1024, "lowest": 0.0, "highest": 10.0, "thoughts": True},
    "length": {"min_tokens": 20, "max_tokens": 450, "shape": "linear"},
    "numeric_match": {"tolerance": 1e-9},
    "reasoning_steps": {"enough": 3},
    "recovery": {"within": 1},
    "repetition": {"ngram": 3},
    "set_match": {"separator": ",", "measure": "exact"},
    "thought_length": {"min_words": 35, "max_words": 65, "thoughts": "all"},
}  # fmt: skip
BOUNDS: Final[list[tuple[str, str, float, float | None, dict[str, Any]]]] = [
    ("cosine_length", "max_tokens", 1, None, {}),
    ("efficiency", "best_turns", 1, None, {}),
    ("efficiency", "worst_turns", 2, None, {}),
    ("group_diversity", "actions", 1, None, {}),
    ("judge", "max_chars", 1000, 4_000_000, {}),
    ("judge", "max_tokens", 16, 65_536, {}),
    ("judge", "lowest", -1_000_000, None, {}),
    ("judge", "highest", 1, 1_000_000, {}),
    ("length", "min_tokens", 0, None, {}),
    ("length", "max_tokens", 1, None, {"min_tokens": 0}),
    ("numeric_match", "tolerance", 0, None, {}),
    ("reasoning_steps", "enough", 1, None, {}),
    ("recovery", "within", 1, None, {}),
    ("repetition", "ngram", 1, 64, {}),
    ("thought_length", "min_words", 1, None, {}),
    ("thought_length", "max_words", 1, None, {"min_words": 1}),
]
"""Component, option, the lowest number and the highest, and what else must be given for it."""


def options(name: str, **given: Any) -> Any:
    model = options_of(COMPONENTS.find(name))
    needed = {key: value for key, value in GIVEN.items() if key in model.model_fields}
    return model.model_validate({**needed, **given})


def test_a_product_of_logits_is_refused() -> None:
    with pytest.raises(ValidationError, match='together = "product" multiplies probabilities: give activation'):
        options("process_reward_model", together="product")

    assert options("process_reward_model", together="product", activation="sigmoid").together == "product"
    assert options("process_reward_model", together="min").together == "min"


def test_weights_where_a_recipe_gives_none() -> None:
    assert {name: options(name).weight for name in COMPONENTS.included()} == {
        name: WEIGHTS.get(name, 1.0) for name in COMPONENTS.included()
    }


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name: str) -> None:
    given = options(name)

    assert {key: getattr(given, key) for key in DEFAULTS[name]} == DEFAULTS[name]
    assert given.enabled
    assert given.on_error == "fail"


@pytest.mark.parametrize(("name", "key", "lowest", "highest", "beside"), BOUNDS)
def test_the_numbers_at_the_ends_are_taken_and_no_further_ones(
    name: str, key: str, lowest: float, highest: float | None, beside: dict[str, Any]
) -> None:
    for edge, beyond in ((lowest, -1), *([] if highest is None else [(highest, 1)])):
        assert getattr(options(name, **beside, **{key: edge}), key) == edge
        with pytest.raises(ValidationError):
            options(name, **beside, **{key: edge + beyond})
