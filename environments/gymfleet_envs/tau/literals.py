"""Task lists that are published as Python source: read, never run."""

import ast
from typing import Any, Final

_MAKERS: Final = frozenset({"Task", "Action"})


class NoTaskList(Exception):
    """The source has no list of tasks."""


def tasks_in_python(source: str) -> list[Any]:
    """Return the longest list that is assigned to a name: of objects, or of calls of `Task` and `Action`.

    Raises `NoTaskList`, and ValueError for anything that is not a literal.
    """
    try:
        module = ast.parse(source)
    except (SyntaxError, MemoryError) as error:
        raise NoTaskList(str(error)) from None
    lists = [node.value for node in module.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    longest = max((one for one in lists if isinstance(one, ast.List)), key=lambda one: len(one.elts), default=None)
    if longest is None:
        raise NoTaskList("no list is assigned to a name")
    return [_value(node) for node in longest.elts]


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords) if name in _MAKERS:
            return {one.arg: _value(one.value) for one in keywords if one.arg is not None}
        case ast.List(elts=parts):
            return [_value(part) for part in parts]
        case ast.Dict(keys=keys, values=values):
            return {ast.literal_eval(key): _value(value) for key, value in zip(keys, values, strict=True) if key}
    return ast.literal_eval(node)
