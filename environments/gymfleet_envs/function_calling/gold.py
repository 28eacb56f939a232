"""Calls that possible answers accept."""

from collections.abc import Mapping, Sequence
from typing import Any

from gymfleet_envs.function_calling.calls import Call, Value
from gymfleet_envs.function_calling.checker import Answer, Function


def gold_calls(functions: Sequence[Function], answers: Sequence[Answer]) -> list[Call]:
    """Return one call for each answer, with the first value of each argument and without optional arguments."""
    return [_call(functions, answer) for answer in answers]


def _call(functions: Sequence[Function], answer: Answer) -> Call:
    name, possible = next(iter(answer.items()))
    function = next(one for one in functions if one["name"] == name)
    required, described = function["parameters"]["required"], function["parameters"]["properties"]
    given = {
        argument: _first(values, described.get(argument, {}))
        for argument, values in possible.items()
        if argument in required or "" not in values
    }
    return Call(name, given)


def _first(values: Sequence[Value], described: Mapping[str, Any]) -> Value:
    """Return the first value that is not the mark of an optional argument; within dicts, values are lists again."""
    chosen = next((value for value in values if value != ""), "")
    if described.get("type") == "dict" and isinstance(chosen, dict):
        return _dict(chosen)
    if isinstance(chosen, list) and described.get("items", {}).get("type") == "dict":
        return [_dict(one) if isinstance(one, dict) else one for one in chosen]
    return chosen


def _dict(possible: Mapping[str, Value]) -> dict[str, Value]:
    return {key: values[0] for key, values in possible.items() if values and "" not in values}
