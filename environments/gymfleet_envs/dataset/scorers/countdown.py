"""An equation that reaches the target with the given numbers (Countdown, as TinyZero plays it)."""

from fractions import Fraction
from typing import Annotated

from gymfleet_contracts.faults import faults
from pydantic import BaseModel, Field, JsonValue, StrictInt, ValidationError

from gymfleet_envs.dataset.arithmetic import ArithmeticFault, evaluate
from gymfleet_envs.dataset.scorer import BadGold, Scorer, ScorerOptions


class _Gold(BaseModel):
    target: StrictInt
    numbers: Annotated[list[StrictInt], Field(min_length=1, max_length=64)]


class Countdown(Scorer[ScorerOptions]):
    """1 for a calculation with `+ - * /` and parentheses that equals `target` and uses each of `numbers` exactly once.

    Unlike TinyZero's scorer, it has no `**` and no `//`, which make numbers easy to reach, and computes exactly.
    """

    def checked(self, gold: JsonValue) -> tuple[Fraction, tuple[Fraction, ...]]:
        """See `Scorer`. The right answer is an object with `target` and `numbers`."""
        try:
            found = _Gold.model_validate(gold)
        except ValidationError as error:
            raise BadGold(f"it needs a target and numbers, whole ones: {faults(error)}") from None
        return Fraction(found.target), tuple(sorted(map(Fraction, found.numbers)))

    def score(self, answer: str, right: tuple[Fraction, tuple[Fraction, ...]]) -> float:
        """See `Scorer`."""
        try:
            found = evaluate(answer)
        except ArithmeticFault:
            return 0.0
        target, numbers = right
        return float(found.value == target and tuple(sorted(found.numbers)) == numbers)
