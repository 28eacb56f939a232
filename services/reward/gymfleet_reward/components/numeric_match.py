"""The right number."""

from typing import Annotated, Any

from gymfleet_contracts.comparing import same_number, the_number
from pydantic import Field

from gymfleet_reward.answers import AnswerComponent, AnswerOptions, text_of
from gymfleet_reward.component import ComponentError


class NumericOptions(AnswerOptions):
    """How far off an answer may be."""

    tolerance: Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)] = 1e-9
    """Largest difference, absolute or relative to the right number. The default tells whole numbers up to a billion
    apart."""


class NumericMatch(AnswerComponent[NumericOptions]):
    """1 if the only number of the answer is the right one. `1,200`, `$1.2e3` and `50 %`, which is 0.5 or 50, are
    numbers.
    """

    Options = NumericOptions
    version = "5"

    def compared(self, answer: str, right: Any) -> float:
        """See `AnswerComponent`. An answer with several numbers is wrong: it is undecided."""
        wanted = the_number(text_of(right, self.options.ground_truth_from))
        if wanted is None:
            raise ComponentError(f"{self.options.ground_truth_from} is no number")
        given = the_number(answer)
        return float(given is not None and same_number(given, wanted, self.options.tolerance))
