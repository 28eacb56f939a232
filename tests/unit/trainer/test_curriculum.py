"""The order of an epoch: drawn, or from easy to hard."""

import random
from typing import Any

import pytest
from gymfleet_trainer.learning.options import SupervisedOptions
from gymfleet_trainer.learning.sft_update import SftUpdater
from gymfleet_trainer.model.batching import TrainSequence
from pydantic import ValidationError
from torch import nn


def sequence(name: str, mask: list[int], reward: float) -> TrainSequence:
    """Tokens with a loss where the mask says so."""
    length = len(mask)
    return TrainSequence(
        [1] * length, [bool(one) for one in mask], [0.0] * length, [0.0] * (length - 1) + [reward], 0, name
    )


GIVEN = [
    sequence("long", [0, 1, 1, 1, 1, 1, 1], 0.5),
    sequence("two replies", [0, 1, 0, 1], 1.0),
    sequence("short", [0, 1], 0.0),
    sequence("three replies", [0, 1, 0, 1, 1, 0, 1], -1.0),
]


def order(seed: int = 0, **options: Any) -> list[str]:
    """In which an epoch goes over them, with one update for all tokens of each."""
    section = SupervisedOptions(tokens_per_batch=1, **options)
    model: Any = nn.Linear(1, 1)
    updater = SftUpdater(model, section, num_tokens=20)
    seen: list[str] = []

    def noted(part: list[TrainSequence], totals: Any) -> None:
        seen.extend(one.trajectory_id for one in part)

    updater._update_part = noted  # type: ignore[method-assign]
    updater.sft_epoch(GIVEN, 1, random.Random(seed))
    return seen


@pytest.mark.parametrize(
    ("curriculum", "easy_to_hard"),
    [
        ("length", ["short", "two replies"]),
        ("reward", ["two replies", "long", "short", "three replies"]),
        ("turns", []),
    ],
)
def test_an_epoch_goes_from_easy_to_hard(curriculum: str, easy_to_hard: list[str]) -> None:
    seen = order(curriculum=curriculum)

    assert seen[: len(easy_to_hard)] == easy_to_hard
    if curriculum == "turns":
        assert set(seen[:2]) == {"short", "long"}
        assert seen[2:] == ["two replies", "three replies"]


def test_what_is_as_hard_is_drawn() -> None:
    assert {order(seed, curriculum="turns")[0] for seed in range(12)} == {"short", "long"}
    assert len({tuple(order(seed)) for seed in range(12)}) > 4, "without a curriculum all of it is"


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(ValidationError, match="curriculum"):
        SupervisedOptions(curriculum="age")  # type: ignore[arg-type]
