"""Generated rows: sums, and Countdown."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from pydantic import JsonValue

from gymfleet_envs.dataset.arithmetic import ArithmeticFault, evaluate
from gymfleet_envs.dataset.row import Message, Row
from gymfleet_envs.dataset.scorer import AnyScorer, make_scorer
from gymfleet_envs.tasks import GeneratedTasks


@dataclass(frozen=True, slots=True)
class _Level:
    data_source: str
    numbers: tuple[int, int]
    """The smallest and the largest count of numbers."""
    largest: int
    operators: str

    @property
    def only_sums(self) -> bool:
        """Whether no operator binds more tightly than another."""
        return set(self.operators) <= {"+", "-"}


_LEVELS: Final[Mapping[str, _Level]] = {
    "arithmetic": _Level("arithmetic", (3, 3), 9, "+-"),
    "countdown": _Level("countdown", (4, 4), 9, "+-"),
    "arithmetic_hard": _Level("arithmetic", (3, 4), 99, "+-*"),
    "countdown_hard": _Level("countdown", (3, 4), 99, "+-*/"),
}


def generated_tasks() -> GeneratedTasks[Row]:
    """Return an endless supply of rows; the hash of its prompt puts each row into exactly one split."""
    return GeneratedTasks("dataset", _generate, lambda row: row.fingerprint, levels=tuple(_LEVELS))


def _generate(rng: random.Random, level: str) -> Row:
    shape = _LEVELS[level]
    while True:
        count = rng.randint(*shape.numbers)
        expression, numbers = _expression(rng, shape, count)
        try:
            value = evaluate(expression).value
        except ArithmeticFault:  # a division by zero
            continue
        if value.denominator == 1 and 0 < value <= shape.largest * 10:
            break
    if shape.data_source == "arithmetic":
        return _row(f"Compute {expression}. Answer with the number alone.", str(value), str(value), "arithmetic")
    operators = "+ or -" if shape.only_sums else "+ - * / and parentheses"
    question = f"Reach {value} with {', '.join(map(str, numbers))}. Use each number once, with {operators}."
    gold: JsonValue = {"target": int(value), "numbers": [*numbers]}
    return _row(f"{question} Answer with the calculation alone.", gold, expression, "countdown")


def _expression(rng: random.Random, shape: _Level, count: int) -> tuple[str, list[int]]:
    """Return an expression that joins numbers two by two with operators, and the numbers."""
    numbers = [rng.randint(1, shape.largest) for _ in range(count)]
    if shape.data_source == "countdown":
        numbers.sort(reverse=True)
    parts = list(map(str, numbers))
    while len(parts) > 1:
        place = 0 if shape.only_sums else rng.randrange(len(parts) - 1)
        joined = f"{parts[place]} {rng.choice(shape.operators)} {parts[place + 1]}"
        bare = len(parts) == 2 or shape.only_sums  # sums are read from the left: they need no parentheses
        parts[place : place + 2] = [joined if bare else f"({joined})"]
    return parts[0], numbers


def _row(prompt: str, gold: JsonValue, solution: str, data_source: str) -> Row:
    scorer = _scorer(data_source)
    told: dict[str, JsonValue] = {"ground_truth": gold, "data_source": data_source, "style": "rule"}
    return Row((Message("user", prompt),), data_source, scorer, scorer.checked(gold), told, solution)


@cache
def _scorer(data_source: str) -> AnyScorer:
    return make_scorer({"arithmetic": "numeric_match"}.get(data_source, data_source))
