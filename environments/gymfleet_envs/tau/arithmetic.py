"""The tool `calculate`: Python's arithmetic on numbers, bounded, and nothing else of Python."""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

_CHARACTERS: Final = frozenset("0123456789+-*/(). ")
_MAX_BITS: Final = 4096
"""Size limit of a power: upstream computes 9**9**9 for as long as it takes."""
_BINARY: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip


class _NotANumber(Exception):
    """The expression is Python, but not arithmetic. The message is the one that Python would give."""


def calculate(expression: str) -> str:
    """Return the result, rounded to 2 places, as the text of a float; or `Error: ` with Python's own words."""
    if not all(character in _CHARACTERS for character in expression):
        return "Error: invalid characters in expression"
    try:
        return str(round(float(_value(ast.parse(expression.lstrip(" "), "<string>", "eval").body)), 2))
    except (RecursionError, MemoryError):
        return "Error: too many nested parentheses"
    except (SyntaxError, ArithmeticError, TypeError, ValueError, _NotANumber) as error:
        return f"Error: {error}"


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int() | float()):
            return node.value
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return +_value(operand)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_value(left), _value(right))
        case ast.Call(func=function):
            raise _NotANumber(f"{type(_value(function)).__name__!r} object is not callable")
    raise _NotANumber("float() argument must be a string or a real number")


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > _MAX_BITS:
        raise _NotANumber("the power is too large")
    value = base**exponent
    if isinstance(value, complex):
        raise _NotANumber("float() argument must be a string or a real number, not 'complex'")
    return value
