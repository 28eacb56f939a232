"""Actions as text: `NAME {JSON arguments}`, or upstream's `{"name": ..., "arguments": {...}}`."""

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from gymfleet_contracts.session import Tool
from pydantic import JsonValue

from gymfleet_envs.tau.task import RESPOND, Call

_NAMED: Final = re.compile(r"([A-Za-z_]\w{0,63})[ \t]*(?=[{(])\(?")
_MAX_DEPTH: Final = 16
SYNTAX: Final = "An action is one line, a tool's name and then its arguments as a JSON object"


class NoCall(Exception):
    """The text is not a call. The message shows the form of one."""


def read_call(action: str) -> Call:
    """Return the call that an action spells. Raises `NoCall`."""
    text = action.strip()
    named = _NAMED.match(text)
    try:
        value, end = _DECODER.raw_decode(text, named.end() if named else 0)
        rest = text[end:].strip()
        _bounded(value, _MAX_DEPTH)
    except (ValueError, RecursionError):
        raise NoCall(f'{SYNTAX}, such as {RESPOND} {{"content": "Hello."}}.') from None
    if named is not None and isinstance(value, dict) and rest in {"", ")"}:
        return Call(named[1], json.dumps(value, ensure_ascii=False))
    if isinstance(value, dict) and not rest and isinstance(value.get("name"), str):
        arguments = value.get("arguments", value.get("kwargs", {}))
        if isinstance(arguments, dict):
            return Call(value["name"][:64], json.dumps(arguments, ensure_ascii=False))
    raise NoCall(f'{SYNTAX}, such as {RESPOND} {{"content": "Hello."}}.')


def tool(name: str, description: str, required: Sequence[str] | None = None, /, **properties: JsonValue) -> Tool:
    """Declare a tool. Without `required`, all parameters are required. A text gives the meaning of a string."""
    fields: dict[str, JsonValue] = {
        key: {"type": "string", "description": value} if isinstance(value, str) else value
        for key, value in properties.items()
    }
    parameters: dict[str, JsonValue] = {
        "type": "object",
        "properties": fields,
        "required": list(properties if required is None else required),
    }
    return Tool(name=name, description=description, parameters=parameters)


def strings(description: str) -> JsonValue:
    """Return the schema of a list of strings."""
    return {"type": "array", "items": {"type": "string"}, "description": description}


def objects(description: str, **properties: JsonValue) -> JsonValue:
    """Return the schema of a list of objects whose properties are all required."""
    items: JsonValue = {
        "type": "object",
        "properties": {key: {"type": "string", "description": value} if isinstance(value, str) else value
                       for key, value in properties.items()},
        "required": list(properties),
    }  # fmt: skip
    return {"type": "array", "description": description, "items": items}


def listed(tools: Sequence[Tool]) -> str:
    """Describe the tools in text, one per line, for models that do not see the schemas."""
    return "\n".join(f"{one.name} {_shape(one.parameters)} - {one.description}" for one in tools)


def _shape(schema: Any) -> str:
    match schema:
        case {"enum": [*values]}:
            return " or ".join(json.dumps(value) for value in values)
        case {"type": "object", "properties": properties}:
            return "{" + ", ".join(f'"{key}": {_shape(value)}' for key, value in properties.items()) + "}"
        case {"type": "array", "items": items}:
            return f"[{_shape(items)}, ...]"
        case {"type": "string"}:
            return '"..."'
    return "0"


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _bounded(value: Any, depth: int) -> None:
    if depth == 0:
        raise ValueError("nested too deeply")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _bounded(part, depth - 1)


_DECODER: Final = json.JSONDecoder(parse_constant=_constant)
