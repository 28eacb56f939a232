"""The right number."""

import math
import re
from typing import Annotated, Any, Final

from pydantic import Field

from gymfleet_reward.answers import AnswerComponent, AnswerOptions, text_of
from gymfleet_reward.component import ComponentError

_NUMBER: Final = re.compile(r"(?=[-+]?\.?\d)[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d{1,3})?(?:\s?%)?")
_MAX_CHARS: Final = 4_096
"""Of an answer: what is longer is no number."""


class NumericOptions(AnswerOptions):
    """How far off is still right."""

    tolerance: Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)] = 1e-6
    """Largest difference, absolute or relative to the right number."""


class NumericMatch(AnswerComponent[NumericOptions]):
    """1 if the only number of the answer is the right one. `1,200`, `1.2e3` and `50 %` are numbers."""

    Options = NumericOptions
    version = "1"

    def compared(self, answer: str, right: Any) -> float:
        """See `AnswerComponent`. An answer with several numbers is wrong: it has not decided."""
        wanted = _numbers(text_of(right, self.options.ground_truth_from))
        if len(wanted) != 1:
            raise ComponentError(f"{self.options.ground_truth_from} is no number")
        given = _numbers(answer)
        tolerance = self.options.tolerance
        return float(len(given) == 1 and math.isclose(given[0], wanted[0], rel_tol=tolerance, abs_tol=tolerance))


def _numbers(text: str) -> list[float]:
    if len(text) > _MAX_CHARS:
        return []
    return [_number(match.group()) for match in _NUMBER.finditer(text)]


def _number(text: str) -> float:
    bare = text.replace(",", "").rstrip()
    return float(bare.removesuffix("%").rstrip()) / 100 if bare.endswith("%") else float(bare)
