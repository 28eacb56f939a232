"""Comparison of an answer with the right one, for components of the reward and for environments."""

import json
import re
import string
import unicodedata
from collections import Counter
from fractions import Fraction
from typing import Final, NamedTuple

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_NUMBER: Final = re.compile(
    r"([-+]?)[$€£]?((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)([eE][-+]?[0-9]{1,3})?(\s?%)?"
)
_MINUS: Final = {0x2212: "-"}
_DIGITS: Final = {"Nd", "No"}
"""Unicode's categories of decimal digits, and of superscripts, fractions and numbers in circles."""
_MAX_CHARS: Final = 4_096
"""Maximum length of an answer; a longer one has no number."""


def normalised(text: str) -> str:
    """Return a text in lower case without ASCII punctuation, English articles and surplus spaces.

    SQuAD compares texts in this form (Rajpurkar et al., 2016, arXiv:1606.05250).
    """
    return " ".join(_ARTICLES.sub(" ", _bare(text)).split())


def named(text: str) -> str:
    """Return a text in the form in which names are compared: normalised, but with its articles where nothing else would
    be left, and with its punctuation where even that is nothing.

    Otherwise `A` and `+` would both be nothing, and any answer of which nothing is left would match either.
    """
    return normalised(text) or " ".join(_bare(text).split()) or text.strip().lower()


def _bare(text: str) -> str:
    return text.lower().translate(_WITHOUT_PUNCTUATION)


def words_f1(given: str, right: str) -> float:
    """Return the harmonic mean of precision and recall over words, as SQuAD 2.0 computes it, in [0, 1].

    If either text has no words left, the result is 1 if both have none, and else 0.
    """
    mine, wanted = normalised(given).split(), normalised(right).split()
    if not mine or not wanted:
        return float(mine == wanted)
    shared = sum((Counter(mine) & Counter(wanted)).values())
    return 2 * shared / (len(mine) + len(wanted))


class Number(NamedTuple):
    """A number as it is written."""

    value: Fraction
    """The number before a percent sign."""
    is_percent: bool = False

    @property
    def amount(self) -> Fraction:
        """The number that is meant: a half for `50 %`."""
        return self.value / 100 if self.is_percent else self.value


def the_number(text: str) -> Number | None:
    """Return the only number in a text; None if it has none or several, because such an answer has not decided.

    `1,200`, `$1.2e3` and `50 %` are numbers. A text with digits, superscripts or fractions outside ASCII has none, so
    that they can neither hide a second answer nor be left out: `5²` is not 5.
    """
    if len(text) > _MAX_CHARS:
        return None
    if not text.isascii() and any(unicodedata.category(one) in _DIGITS and not one.isascii() for one in text):
        return None
    found = _NUMBER.finditer(text.translate(_MINUS))
    first, second = next(found, None), next(found, None)
    if first is None or second is not None:
        return None
    sign, digits, exponent, percent = first.groups(default="")
    return Number(Fraction(f"{sign}{digits.replace(',', '')}{exponent}"), bool(percent))


def same_number(given: Number, right: Number, tolerance: float) -> bool:
    """Return whether a number is off by at most `tolerance`, absolutely or relative to the right one.

    Where only one of them has a percent sign, it may be left out: GSM8K's right answers to questions for a percentage
    have none.
    """
    unsigned = given.is_percent != right.is_percent and _near(given.value, right.value, tolerance)
    return unsigned or _near(given.amount, right.amount, tolerance)


def _near(given: Fraction, right: Fraction, tolerance: float) -> bool:
    return abs(given - right) <= Fraction(tolerance) * max(Fraction(1), abs(right))


def things(text: str, separator: str = ",") -> set[str]:
    """Return the items of a text as `named`: those of a JSON list, or else the parts between separators."""
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        listed = None
    parts = [str(one) for one in listed] if isinstance(listed, list) else text.split(separator or None)
    return {named(one) for one in parts} - {""}
