"""Arithmetic in a text that a model wrote: parsed, never evaluated as code, exact, and bounded in every direction."""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

MAX_CHARS: Final = 1_000
_MAX_DEPTH: Final = 50
_MAX_BITS: Final = 2_048
"""Bits of a value's numerator and of its denominator, some 600 digits."""
_TOKEN: Final = re.compile(r"[ \t]*(?:([0-9]+(?:\.[0-9]+)?|\.[0-9]+)|(\*\*|[-+*/^()]))")


class ArithmeticFault(ValueError):
    """The text is not arithmetic, or is too large. The message tells the model why."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The result of an expression."""

    value: Fraction
    numbers: tuple[Fraction, ...]
    """The numbers written in the expression, in order."""


def evaluate(text: str, *, powers: bool = False) -> Evaluated:
    """Evaluate numbers, `+ - * /` and parentheses, with `powers` also `^` and `**`. Raises `ArithmeticFault`."""
    if len(text) > MAX_CHARS:
        raise ArithmeticFault(f"longer than {MAX_CHARS} characters")
    parser = _Parser(_tokens(text), powers=powers)
    value = parser.sum(0)
    if parser.left:
        raise ArithmeticFault(f"unexpected {parser.left[0]!r}")
    return Evaluated(value, tuple(parser.numbers))


def _tokens(text: str) -> list[str]:
    found, place = [], 0
    text = text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ArithmeticFault(f"unexpected {text[place:].lstrip()[:1]!r}")
        found.append(match[1] or match[2])
        place = match.end()
    return found


class _Parser:
    """Recursive descent over the tokens; `left` holds those not read yet."""

    def __init__(self, tokens: list[str], *, powers: bool) -> None:
        self.left = tokens
        self.numbers: list[Fraction] = []
        self._powers = powers

    def sum(self, depth: int) -> Fraction:
        """Read terms between `+` and `-`."""
        value = self._product(depth)
        while (sign := self._take("+", "-")) is not None:
            term = self._product(depth)
            value = _bounded(value + term if sign == "+" else value - term)
        return value

    def _product(self, depth: int) -> Fraction:
        value = self._signed(depth)
        while (sign := self._take("*", "/")) is not None:
            factor = self._signed(depth)
            if sign == "/" and not factor:
                raise ArithmeticFault("division by zero")
            value = _bounded(value * factor if sign == "*" else value / factor)
        return value

    def _signed(self, depth: int) -> Fraction:
        if depth > _MAX_DEPTH:
            raise ArithmeticFault(f"nested deeper than {_MAX_DEPTH}")
        if (sign := self._take("+", "-")) is not None:
            value = self._signed(depth + 1)
            return -value if sign == "-" else value
        return self._power(depth)

    def _power(self, depth: int) -> Fraction:
        base = self._atom(depth)
        if not self._powers or self._take("^", "**") is None:
            return base
        return _raised(base, self._signed(depth + 1))  # to the right first: 2^3^2 is 2^9

    def _atom(self, depth: int) -> Fraction:
        if self._take("(") is not None:
            value = self.sum(depth + 1)
            if self._take(")") is None:
                raise ArithmeticFault("a parenthesis is not closed")
            return value
        if not self.left:
            raise ArithmeticFault("it ends where a number is expected")
        token = self.left.pop(0)
        if token[0] not in "0123456789.":
            raise ArithmeticFault(f"unexpected {token!r}")
        number = _bounded(Fraction(token))
        self.numbers.append(number)
        return number

    def _take(self, *wanted: str) -> str | None:
        return self.left.pop(0) if self.left and self.left[0] in wanted else None


def _raised(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ArithmeticFault("an exponent is a whole number")
    if not base and exponent < 0:
        raise ArithmeticFault("division by zero")
    if abs(exponent) * max(1, _bits(base)) > _MAX_BITS:  # before it is computed
        raise ArithmeticFault("the value is too large")
    return Fraction(base ** int(exponent))


def _bounded(value: Fraction) -> Fraction:
    if _bits(value) > _MAX_BITS:
        raise ArithmeticFault("the value is too large")
    return value


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())
