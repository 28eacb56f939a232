"""Tool calls: checked against the environment's schemas before its code sees the arguments."""

from collections.abc import Mapping
from functools import cache
from typing import Final

import msgspec
from gymfleet_contracts.session import Tool
from gymfleet_envs.environment import AnyEnvironment
from gymfleet_kit.session_problems import InvalidToolCall
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from pydantic import JsonValue

MAX_ARGUMENTS_BYTES: Final = 256 * 1024
_RESERVED: Final = ("session_id", "index")
"""Arguments that tools have besides their own where they are offered to MCP clients."""
_TAKEN: Final = frozenset({"reset", "step", "state", "renew", "fork", "close"})
"""The MCP front's own tools."""
_MAX_DETAIL_CHARS: Final = 400
_encode: Final = msgspec.json.Encoder().encode


def fault_of(kind: type[AnyEnvironment]) -> str | None:
    """Return what is wrong with the tools that an environment declares; None when they are sound."""
    names = [tool.name for tool in kind.tools]
    if len(set(names)) != len(names):
        return "two tools have one name"
    if names and not kind.maps_tools():
        return "it declares tools and has no action_of"
    return next((f"tool {tool.name}: {fault}" for tool in kind.tools if (fault := _fault(tool))), None)


def check_call(kind: type[AnyEnvironment], name: str, arguments: Mapping[str, JsonValue]) -> None:
    """Check a call against the tool's schema. Raises `InvalidToolCall`."""
    validator = _validators(kind).get(name)
    if validator is None:
        known = ", ".join(tool.name for tool in kind.tools) or "none"
        raise InvalidToolCall(f"unknown tool {name!r}; known: {known}")
    try:
        size = len(_encode(arguments))
        if size > MAX_ARGUMENTS_BYTES:
            raise InvalidToolCall(f"{name}: the arguments have {size} bytes; {MAX_ARGUMENTS_BYTES} is the limit")
        error = best_match(validator.iter_errors(arguments))
    except (RecursionError, UnicodeEncodeError):
        raise InvalidToolCall(f"{name}: the arguments are nested too deeply or no valid Unicode") from None
    if error is not None:
        where = "".join(f"/{part}" for part in error.absolute_path)
        raise InvalidToolCall(f"{name}{where and ' ' + where}: {error.message[:_MAX_DETAIL_CHARS]}")


def _fault(tool: Tool) -> str | None:
    try:
        Draft202012Validator.check_schema(tool.parameters)
    except SchemaError as error:
        return f"its parameters are no JSON Schema: {error.message[:_MAX_DETAIL_CHARS]}"
    properties = tool.parameters.get("properties", {})
    if tool.parameters.get("type") != "object" or not isinstance(properties, dict):
        return "its parameters must be a schema of type object"
    if taken := [name for name in _RESERVED if name in properties]:
        return f"call the parameter {taken[0]} otherwise: MCP clients give one of that name beside the tool's own"
    return "call it otherwise: the MCP front has a tool of that name" if tool.name in _TAKEN else None


@cache
def _validators(kind: type[AnyEnvironment]) -> dict[str, Draft202012Validator]:
    return {tool.name: Draft202012Validator(tool.parameters) for tool in kind.tools}
