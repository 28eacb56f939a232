"""BFCL's rules for right calls of Python functions: names, types and values.

A possible answer gives each argument a list of values, any of which is right; an empty text among them means that the
argument may be left out. The rules are those of `bfcl-eval`'s `ast_checker`, with its oddities; where that stops with
an exception, the call is wrong.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from gymfleet_envs.function_calling.calls import Call, Value

Kind = Literal["simple", "multiple", "parallel", "irrelevance", "relevance"]
"""The right reply: one call of the first function; one call of one of several; several in any order; none; any."""

TYPES: Final[Mapping[str, type]] = {
    "string": str, "integer": int, "float": float, "boolean": bool, "array": list, "tuple": list, "dict": dict,
    "any": str,
}  # fmt: skip
NESTED: Final = ("array", "tuple")
"""The types that have `items`, whose types are checked too."""
_UNHEARD: Final = re.compile(r"[ ,./\-_*^]")
_LARGEST_FLOAT: Final = 1.7e308

Function = Mapping[str, Any]
"""A function's description: `name`, `description` and `parameters`, with `properties` and `required`."""
Answer = Mapping[str, Mapping[str, Sequence[Value]]]
"""One right call: the name of its function, and the right values of each argument."""


def is_right(
    kind: Kind, functions: Sequence[Function], calls: Sequence[Call] | None, answers: Sequence[Answer]
) -> bool:
    """Return whether a reply is right; `calls` is None if nothing was called."""
    if kind == "irrelevance":
        return not calls
    if not calls:
        return False
    if kind == "relevance":
        return True
    if len(calls) != len(answers) or any(call.fault for call in calls):
        return False
    if kind == "parallel":
        return _all_matched(functions, calls, answers)
    function = functions[0] if kind == "simple" else _named(functions, answers[0])
    return _fits(function, calls[0], answers[0])


def _all_matched(functions: Sequence[Function], calls: Sequence[Call], answers: Sequence[Answer]) -> bool:
    """Match each answer with the first call that fits it; like BFCL, look for no better assignment."""
    left = list(calls)
    for answer in answers:
        function = _named(functions, answer)
        found = next((number for number, call in enumerate(left) if _fits(function, call, answer)), None)
        if found is None:
            return False
        del left[found]
    return True


def _named(functions: Sequence[Function], answer: Answer) -> Function:
    name = next(iter(answer))
    return next(function for function in functions if function["name"] == name)


def _fits(function: Function, call: Call, answer: Answer) -> bool:
    possible = next(iter(answer.values()))
    described = function["parameters"]["properties"]
    if call.name != function["name"] or any(name not in call.arguments for name in function["parameters"]["required"]):
        return False
    if any(name not in described or name not in possible for name in call.arguments):
        return False
    if not all(_argument_fits(described[name], value, possible[name]) for name, value in call.arguments.items()):
        return False
    return all("" in values for name, values in possible.items() if name not in call.arguments)


def _argument_fits(described: Mapping[str, Any], value: Value, possible: Sequence[Value]) -> bool:
    kind = described["type"]
    item = TYPES[described["items"]["type"]] if kind in NESTED else None
    answered = next((type(one) for one in possible if one != ""), None)
    value = _converted(kind, value)
    if not _has_type(value, TYPES[kind], item, answered, possible):
        return False
    if type(value) is not TYPES[kind] or answered not in (None, TYPES[kind]):
        return value in possible  # a variable, which answers give as a text
    return _value_fits(value, item, possible)


def _converted(kind: str, value: Value) -> Value:
    """Return a tuple as a list and an integer as a float, if the description has that type."""
    if kind == "tuple" and type(value) is tuple:
        return list(value)
    if kind == "float" and type(value) is int and abs(value) < _LARGEST_FLOAT:
        return float(value)
    return value


def _value_fits(value: Value, item: type | None, possible: Sequence[Value]) -> bool:
    if isinstance(value, str):
        return _heard(value) in [_heard(one) for one in possible if type(one) is str]
    if isinstance(value, dict):
        return _dict_fits(value, possible)
    if isinstance(value, list):
        return any(_dicts_fit(value, one) if item is dict else _list_fits(value, one) for one in possible)
    return value in possible


def _has_type(value: Any, expected: type, item: type | None, answered: type | None, possible: Sequence[Value]) -> bool:
    given = type(value)
    if given is not expected:
        return answered is given
    return item is None or any(_items_have_type(value, item, answer) for answer in possible)


def _items_have_type(values: Sequence[Value], item: type, answer: Value) -> bool:
    """Return whether items have the described type or that of the answer's items; if that is no list, any type fits."""
    if type(answer) is not list:
        return True
    answered = next((type(one) for one in answer if one != ""), item)
    return all(type(value) in (item, answered) for value in values)


def _list_fits(value: Sequence[Value], answer: Value) -> bool:
    """Compare lists in order; a text as answer, such as the empty one, stands for its characters."""
    return isinstance(answer, list | str) and _heard_all(value) == _heard_all(answer)


def _dicts_fit(value: Sequence[Value], answer: Value) -> bool:
    if not isinstance(answer, list | str) or len(value) != len(answer):
        return False
    return all(_dict_fits(one, [part]) for one, part in zip(value, answer, strict=True))


def _dict_fits(value: Value, possible: Sequence[Value]) -> bool:
    return isinstance(value, dict) and any(isinstance(one, dict) and _keys_fit(value, one) for one in possible)


def _keys_fit(value: Mapping[str, Value], answer: Mapping[str, Value]) -> bool:
    """Whether keys are known and have one of their values, and missing ones are optional; inner dicts compare whole."""
    if any(key not in answer or _heard_one(one) not in _heard_all(answer[key]) for key, one in value.items()):
        return False
    return all("" in values for key, values in answer.items() if key not in value)


def _heard_one(value: Value) -> Value:
    return _heard(value) if type(value) is str else value


def _heard_all(values: Sequence[Value]) -> list[Value]:
    return [_heard_one(value) for value in values]


def _heard(text: str) -> str:
    """Return a text without the differences that do not count: case, spaces, some punctuation, and kinds of quotes."""
    return _UNHEARD.sub("", text).lower().replace("'", '"')
