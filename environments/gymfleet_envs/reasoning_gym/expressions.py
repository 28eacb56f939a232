"""Formulas in a text that a model wrote: parsed by Python's grammar, and computed node by node, never as code."""

import ast
import cmath
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

MAX_CHARS: Final = 1_000
_WORD: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ALLOWED: Final = re.compile(r"[0-9A-Za-z_+\-*/(). \t\n]*", re.ASCII)
_MAX_BITS: Final = 2_048
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_OF_FORMULAS: Final = {**_OPERATORS, ast.Pow: operator.pow}


class ExpressionFault(ValueError):
    """The text is not a formula of the required kind."""


@dataclass(frozen=True, slots=True)
class Dual:
    """A number and its derivative with respect to the variable; operations on both follow the chain rule."""

    value: complex
    slope: complex = 0j

    def __add__(self, other: "Dual") -> "Dual":
        """Add both."""
        return Dual(self.value + other.value, self.slope + other.slope)

    def __sub__(self, other: "Dual") -> "Dual":
        """Subtract both."""
        return Dual(self.value - other.value, self.slope - other.slope)

    def __mul__(self, other: "Dual") -> "Dual":
        """Follow the product rule."""
        return Dual(self.value * other.value, self.slope * other.value + self.value * other.slope)

    def __truediv__(self, other: "Dual") -> "Dual":
        """Follow the quotient rule. Raises ZeroDivisionError."""
        value = self.value / other.value
        return Dual(value, (self.slope - value * other.slope) / other.value)

    def __pow__(self, other: "Dual") -> "Dual":
        """Raise to a power, constant or not. Raises ZeroDivisionError, and ValueError for the logarithm of 0."""
        value = self.value**other.value
        slope = other.value * self.value ** (other.value - 1) * self.slope
        if other.slope:
            slope += value * cmath.log(self.value) * other.slope
        return Dual(value, slope)


_FUNCTIONS: Final[Mapping[str, tuple[Callable[[complex], complex], Callable[[complex], complex]]]] = {
    "exp": (cmath.exp, cmath.exp),
    "log": (cmath.log, lambda x: 1 / x),
    "ln": (cmath.log, lambda x: 1 / x),
    "sqrt": (cmath.sqrt, lambda x: 0.5 / cmath.sqrt(x)),
    "sin": (cmath.sin, cmath.cos),
    "cos": (cmath.cos, lambda x: -cmath.sin(x)),
    "tan": (cmath.tan, lambda x: 1 + cmath.tan(x) ** 2),
    "asin": (cmath.asin, lambda x: 1 / cmath.sqrt(1 - x * x)),
    "acos": (cmath.acos, lambda x: -1 / cmath.sqrt(1 - x * x)),
    "atan": (cmath.atan, lambda x: 1 / (1 + x * x)),
    "sinh": (cmath.sinh, cmath.cosh),
    "cosh": (cmath.cosh, cmath.sinh),
    "tanh": (cmath.tanh, lambda x: 1 - cmath.tanh(x) ** 2),
}
"""Each function with its derivative. There is no `Integral` among them: it would be the question itself."""
_CONSTANTS: Final = {"C": Dual(0.7 + 0.2j), "E": Dual(cmath.e + 0j), "pi": Dual(cmath.pi + 0j)}


def arithmetic(text: str) -> tuple[Fraction, list[int]]:
    """Return the value of whole numbers with `+ - * /` and parentheses, and the numbers. Raises `ExpressionFault`.

    Raises ZeroDivisionError or OverflowError if the formula has no value here.
    """
    numbers: list[int] = []

    def value(node: ast.expr) -> Fraction:
        match node:
            case ast.Constant(value=int() as number):
                numbers.append(number)
                found = Fraction(number)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=inner):
                found = -value(inner) if isinstance(sign, ast.USub) else value(inner)
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
                found = _OPERATORS[type(sign)](value(left), value(right))
            case _:
                raise ExpressionFault("only whole numbers, + - * / and parentheses")
        if max(found.numerator.bit_length(), found.denominator.bit_length()) > _MAX_BITS:
            raise OverflowError
        return found

    return value(_parsed(text, ())), numbers


def derivative_at(text: str, variable: str) -> Callable[[complex], Dual]:
    """Return a function that gives the formula's value and derivative at a point. Raises `ExpressionFault`."""
    tree = _parsed(text, (variable, *_FUNCTIONS, *_CONSTANTS))

    def at(point: complex) -> Dual:
        known = {**_CONSTANTS, variable: Dual(point, 1 + 0j)}

        def value(node: ast.expr) -> Dual:
            match node:
                case ast.Constant(value=int() | float() as number):
                    return Dual(complex(number))
                case ast.Name(id=name) if name in known:
                    return known[name]
                case ast.UnaryOp(op=ast.UAdd(), operand=inner):
                    return value(inner)
                case ast.UnaryOp(op=ast.USub(), operand=inner):
                    return Dual(0j) - value(inner)
                case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OF_FORMULAS:
                    joined: Dual = _OF_FORMULAS[type(sign)](value(left), value(right))
                    return joined
                case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if name in _FUNCTIONS:
                    function, slope = _FUNCTIONS[name]
                    inside = value(inner)
                    return Dual(function(inside.value), slope(inside.value) * inside.slope)
            raise ExpressionFault("no formula of one variable")

        return value(tree)

    return at


def _parsed(text: str, words: Collection[str]) -> ast.expr:
    if len(text) > MAX_CHARS or not _ALLOWED.fullmatch(text):
        raise ExpressionFault("too long, or with characters that no formula has")
    # The tokenizer reads `1or` as a number and a word, with a warning: words are checked before it runs.
    if any(word not in words for word in _WORD.findall(re.sub(r"(?<=[0-9.])[eE](?=[+-]?[0-9])", " ", text))):
        raise ExpressionFault("an unknown word")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionFault("it does not parse") from None
