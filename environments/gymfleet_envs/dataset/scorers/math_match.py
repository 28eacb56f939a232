"""The right mathematical answer, as the MATH benchmark compares it."""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from gymfleet_envs.dataset.scorer import BadGold, OneOf, ScorerOptions

_MAX_CHARS: Final = 4_096
"""Maximum length of an answer; a longer one is wrong."""
_ARGUMENT: Final = r"(\{[^{}]*\}|[0-9A-Za-z])"
_TEXT: Final = r"\\(?:text|textbf|textrm|mbox|mathrm)"
_REWRITTEN: Final[list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]]] = [
    (re.compile(rf"(?<=.){_TEXT}\{{ (?![^{{}}]*\b(?:or|and)\b)[^{{}}0-9]*\}}(?:\^\{{?[23]\}}?)?$"), ""),  # a unit
    (re.compile(rf"^{_TEXT}\{{([^{{}}]*)\}}$"), r"\1"),
    (re.compile(r"\\(?:left|right)(?![A-Za-z])"), ""),
    (re.compile(r"\\[dt]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"(?<!\\)\\[!,;: ]|[\s~]"), ""),
    (re.compile(r"\^\{?\\circ\}?|°"), ""),
    (re.compile(r"\\?[$%]"), ""),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"(?<![0-9.])\.(?=[0-9])"), "0."),
    (re.compile(r"^[^=]{1,2}=(?=[^=]+$)"), ""),  # the name of the unknown
    (re.compile(r"\\sqrt([0-9A-Za-z])"), r"\\sqrt{\1}"),
    (re.compile(rf"\\frac{_ARGUMENT}{_ARGUMENT}"), lambda found: "\\frac" + "".join(map(_in_braces, found.groups()))),
]
_NUMBER: Final = re.compile(
    r"([-+]?)(?:((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?)"
    r"|(?:\\frac\{(-?[0-9]+)\}\{([0-9]+)\}|([0-9]+)/([0-9]+)))"
)


class MathMatch(OneOf[ScorerOptions]):
    r"""1 if the answer is the right LaTeX, apart from how it is set, or the same number, else 0.

    Spaces, `\left`, `\dfrac`, degrees, dollars, percent signs, a unit in `\text{ }` at the end and an unknown before
    `=` do not count, and `\frac12` is `\frac{1}{2}`: the comparison of the MATH benchmark (Hendrycks et al., 2021,
    arXiv:2103.03874). Numbers are equal also as fraction and as decimal.
    """

    def right_one(self, gold: str) -> str:
        """See `OneOf`."""
        if len(gold) > _MAX_CHARS:
            raise BadGold(f"it is longer than {_MAX_CHARS:,} characters")
        if not (right := _plain(gold)):
            raise BadGold("nothing is left of it without signs that do not count")
        return right

    def compared(self, answer: str, right: str) -> float:
        """See `OneOf`."""
        if len(answer) > _MAX_CHARS:
            return 0.0
        given = _plain(answer)
        number = _number(given)
        return float(given == right or (number is not None and number == _number(right)))


def _plain(text: str) -> str:
    text = text.strip()
    for pattern, by in _REWRITTEN:
        text = pattern.sub(by, text)
    return text


def _in_braces(argument: str) -> str:
    return argument if argument.startswith("{") else f"{{{argument}}}"


def _number(plain: str) -> Fraction | None:
    """Return the number that a whole answer is; None if it is no number."""
    if (found := _NUMBER.fullmatch(plain)) is None:
        return None
    sign, decimal, above, below, left, right = found.groups()
    try:
        value = Fraction(decimal.replace(",", "")) if decimal else Fraction(int(above or left), int(below or right))
    except (ValueError, ZeroDivisionError):  # too many digits for an int
        return None
    return -value if sign == "-" else value
