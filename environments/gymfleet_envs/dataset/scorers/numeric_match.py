"""The right number."""

from typing import Annotated

from gymfleet_contracts.comparing import Number, same_number, the_number
from pydantic import Field

from gymfleet_envs.dataset.scorer import BadGold, OneOf, ScorerOptions


class NumericOptions(ScorerOptions):
    """How far off an answer may be and still be right."""

    tolerance: Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)] = 0.0
    """Largest difference, absolute or relative to the right number."""


class NumericMatch(OneOf[NumericOptions]):
    """1 if the only number of the answer is a right one; an answer with several has not decided."""

    Options = NumericOptions

    def right_one(self, gold: str) -> Number:
        """See `OneOf`."""
        if (number := the_number(gold)) is None:
            raise BadGold("it is no number")
        return number

    def compared(self, answer: str, right: Number) -> float:
        """See `OneOf`."""
        given = the_number(answer)
        return float(given is not None and same_number(given, right, self.options.tolerance))
