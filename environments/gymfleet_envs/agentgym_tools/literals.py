"""Read the arguments of a call without evaluating them: JSON, or a Python literal as models write it.

AgentGym's servers call `eval` on them, so models write Python there: single quotes, `None`, sums such as `25.0 + 5`.
"""

import ast
import json
import re
import warnings
from typing import Any, Final, NoReturn

MAX_CHARS: Final = 16_384
_MAX_DEPTH: Final = 40
_MAX_NUMBER: Final = 1e15
_MAX_BITS: Final = 10_000
"""Size limit of an integer: Python writes out no more than 4,300 digits."""
_NAMES: Final = {"true": True, "false": False, "null": None}
_JSON_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"')


class Unreadable(ValueError):
    """The text is neither JSON nor a literal."""


def read_literal(text: str) -> Any:
    """Return the value that a text spells. Raises `Unreadable`."""
    if len(text) > MAX_CHARS:
        raise Unreadable
    try:
        value = json.loads(text, parse_constant=_refuse)
        if _depth(_JSON_TEXT.sub("", text)) <= _MAX_DEPTH:
            return value
    except (ValueError, RecursionError):
        pass
    if _depth(text) > _MAX_DEPTH:
        raise Unreadable
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes such as "\d", which a model's text may hold
            tree = ast.parse(text.strip(), mode="eval")
        return _value(tree.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        raise Unreadable from None


def _depth(text: str) -> int:
    """Return how deeply brackets and signs may be nested; the parser's stack grows with this depth."""
    if sum(map(text.count, "([{+-~")) <= _MAX_DEPTH:
        return 0
    depth = deepest = signs = 0
    for char in text:
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        if not char.isspace():
            signs = signs + 1 if char in "+-~" else 0
        deepest = max(deepest, depth, signs)
    return deepest


def _refuse(constant: str) -> NoReturn:
    raise Unreadable(constant)


def _value(node: ast.expr) -> Any:  # noqa: PLR0911 - one for each kind of node
    match node:
        case ast.Constant(value=int() as number) if number.bit_length() > _MAX_BITS:
            raise Unreadable
        case ast.Constant(value=str() | bool() | int() | float() | None):
            return node.value
        case ast.List(elts=items):
            return [_value(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_value(item) for item in items)
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand)
        case ast.BinOp(left=left, op=operator, right=right):
            return _calculated(_number(left), operator, _number(right))
        case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr="compile"), args=[ast.Constant(value=str())]):
            return node.args[0].value  # type: ignore[attr-defined]  # `re.compile("...")`, which only sheet's search takes
    raise Unreadable


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise Unreadable


def _number(node: ast.expr) -> int | float:
    value = _value(node)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _MAX_NUMBER:
        raise Unreadable
    return value


def _calculated(left: float, operator: ast.operator, right: float) -> float:
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div() if right:
            return left / right
    raise Unreadable
