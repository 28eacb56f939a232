"""Reads the calls that a model writes, without ever running them: BFCL's list of Python calls, or JSON."""

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeAlias

Value: TypeAlias = Any
"""A Python literal: str, int, float, complex, bytes, bool, None, and lists, tuples and dicts of them."""

MAX_DEPTH: Final = 40
"""The greatest depth to which a call may be nested."""
MAX_BITS: Final = 2048
"""The most bits of an integer."""
_NUMBERS: Final = (int, float, complex)


@dataclass(frozen=True, slots=True)
class Call:
    """One call as it was written."""

    name: str
    """With its dots; empty if the called expression is not a name."""
    arguments: Mapping[str, Value] = field(default_factory=dict)
    """The named arguments. As in BFCL, a model's unnamed arguments are dropped."""
    unnamed: tuple[Value, ...] = ()
    """The unnamed arguments, which BFCL's gold calls have."""
    fault: str = ""
    """The reason why its arguments are not read. It still counts as a call, and as a wrong one."""


class _NoCall(Exception):
    """BFCL does not read the text as a list of calls."""


class _Refused(Exception):
    """A call whose arguments BFCL would compute, or that are nested too deep."""


def read_calls(text: str) -> list[Call] | None:
    """Return the calls of a reply, in order; None if it is not a list of calls, so that nothing is called.

    A reply is `[name(a=1, b="x"), ...]` with or without the brackets, as in BFCL's prompting mode, or JSON: an object
    with `name` and `arguments`, or a list of them. Reading takes time and memory in proportion to the text.
    """
    stripped = text.strip("`\n ")
    if (calls := _json_calls(stripped)) is not None:
        return calls
    opened = stripped if stripped.startswith("[") else f"[{stripped}"
    try:
        body = ast.parse(opened if opened.endswith("]") else f"{opened}]", mode="eval").body
        if not isinstance(body, ast.List | ast.Tuple | ast.Set):
            return None
        return [_call(element) for element in body.elts]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError, _NoCall):
        return None


def written(calls: Sequence[Call]) -> str:
    """Return calls in BFCL's form."""
    return f"[{', '.join(map(one_written, calls))}]"


def one_written(call: Call) -> str:
    """Return one call, as BFCL shows it with its result."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
    return f"{call.name}({arguments})"


def _call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call):
        raise _NoCall
    name = _dotted(node.func)
    try:
        _bound(node)
        if any(keyword.arg is None for keyword in node.keywords):
            raise _Refused("arguments are named one by one")
        arguments = {str(keyword.arg): _value(keyword.value) for keyword in node.keywords}
        return Call(name, arguments, tuple(_unnamed(argument) for argument in node.args))
    except _Refused as error:
        return Call(name, fault=str(error))


def _bound(node: ast.Call) -> None:
    given = (node.func, *node.args, *(keyword.value for keyword in node.keywords))
    if all(isinstance(part, ast.Constant | ast.Name) for part in given):  # nearly always
        return
    layer: list[ast.AST] = [node]
    for _ in range(MAX_DEPTH):
        layer = [child for parent in layer for child in ast.iter_child_nodes(parent)]
        if not layer:
            return
    raise _Refused(f"arguments are nested at most {MAX_DEPTH} deep")


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _unnamed(node: ast.expr) -> Value:
    try:
        return _value(node)
    except _NoCall:  # dropped unread, as the rest of them
        return None


def _value(node: ast.expr | None) -> Value:
    """Return an argument's value as BFCL reads it; a name becomes the text of the name."""
    match node:
        case ast.Constant(value=value):
            return "..." if value is Ellipsis else _bounded(value)
        case ast.Name(id=name):
            return name
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=ast.Constant(value=value)) if isinstance(value, _NUMBERS):
            return -_bounded(value) if isinstance(node.op, ast.USub) else _bounded(value)
        case ast.BinOp():
            raise _Refused("arguments are literals: nothing is computed")
        case ast.List() | ast.Tuple() | ast.Dict():
            return _collection(node)
    return _quoted(node)


def _collection(node: ast.List | ast.Tuple | ast.Dict) -> Value:
    if isinstance(node, ast.Dict):
        return {_value(key): _value(value) for key, value in zip(node.keys, node.values, strict=True)}
    values = [_value(element) for element in node.elts]
    return values if isinstance(node, ast.List) else tuple(values)


def _quoted(node: ast.expr | None) -> Value:
    """Return calls and subscripts within arguments as texts, but a call with named arguments as a dict by its name."""
    match node:
        case ast.Call(keywords=[]):
            return ast.unparse(node)
        case ast.Call():
            return {_dotted(node.func): {str(keyword.arg): _value(keyword.value) for keyword in node.keywords}}
        case ast.Subscript():
            return f"{ast.unparse(node.value)}[{ast.unparse(node.slice)}]"
    raise _NoCall


def _bounded(value: Value) -> Value:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise _Refused(f"integers have at most {MAX_BITS} bits")
    return value


def _json_calls(text: str) -> list[Call] | None:
    if not text.startswith("{") and (not text.startswith("[") or text[1:].lstrip()[:1] not in ("{", "]")):
        return None  # at once: BFCL's own form begins with a bracket too
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    listed = found if isinstance(found, list) else [found]
    calls = [_json_call(entry) for entry in listed]
    return [call for call in calls if call is not None] if None not in calls else None


def _json_call(entry: object) -> Call | None:
    """Return the call of an object with the keys that models are trained to write, or of BFCL's JSON form."""
    match entry:
        case {"name": str(name), "arguments": dict(arguments), **rest} if not rest:
            return Call(name, arguments) if _is_small(arguments) else Call(name, fault="the arguments are too large")
        case {"function": str(name), "parameters": dict(arguments), **rest} if not rest:
            return Call(name, arguments) if _is_small(arguments) else Call(name, fault="the arguments are too large")
    return None


def _is_small(arguments: Value) -> bool:
    """Return whether JSON values stay within `MAX_DEPTH` and `MAX_BITS`."""
    layer = [arguments]
    for _ in range(MAX_DEPTH):
        if any(isinstance(value, int) and value.bit_length() > MAX_BITS for value in layer):
            return False
        layer = [part for value in layer if isinstance(value, dict | list)
                 for part in (value.values() if isinstance(value, dict) else value)]  # fmt: skip
        if not layer:
            return True
    return False


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
