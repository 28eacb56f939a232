"""Functions that conversations declare and call, as in OpenAI's chat API and other published sets."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gymfleet_contracts import strict_json
from gymfleet_contracts.conversation import MadeCall
from gymfleet_contracts.session import Tool
from gymfleet_contracts.strict_json import MAX_OBJECT_CHARS, read_object
from pydantic import JsonValue

from gymfleet_kit.data.converter import UnusableRecord, field

CALLS: Final = ("tool_calls", "function_call")
"""The keys under which messages have the assistant's calls."""
_OF_A_TOOL = frozenset({"name", "description", "parameters", "strict"})


def declared_in(given: JsonValue) -> tuple[Tool, ...]:
    """Return the tools declared in `tools`: a list of functions, each alone or in OpenAI's `{"type": "function", ...}`,
    or such a list as JSON text. `strict` is a request to a server, and is left out. Raises `UnusableRecord`.
    """
    if isinstance(given, str):
        try:
            given = strict_json.loads(given) if given.strip() else []
        except (ValueError, RecursionError):
            raise UnusableRecord("tools: a text that is no JSON") from None
    if not isinstance(given, list):
        raise UnusableRecord("tools: a list is wanted, or one as JSON text")
    return tuple(_tool(one, number) for number, one in enumerate(given, 1))


def declarations(tools: Sequence[Tool]) -> list[JsonValue]:
    """Return functions in OpenAI's form of declarations."""
    return [{"type": "function", "function": tool.model_dump(mode="json")} for tool in tools]


def calls_of(message: Mapping[str, JsonValue]) -> tuple[MadeCall, ...]:
    """Return the calls of a message: `tool_calls`, or the earlier `function_call`. Raises `UnusableRecord`."""
    if message.get("tool_calls"):
        return tuple(_call(one) for one in field(message, "tool_calls", list))
    alone = message.get("function_call")
    return (made_call(alone, "function_call"),) if alone is not None else ()


def made_call(given: JsonValue, where: str, call_id: str = "") -> MadeCall:
    """Return the call in `{"name": ..., "arguments": ...}`, with the arguments as an object or as JSON text."""
    if not isinstance(given, dict):
        raise UnusableRecord(f"{where}: a call is an object with `name` and `arguments`")
    arguments: Any = given.get("arguments")
    if isinstance(arguments, str):
        arguments = read_object(arguments or "{}")
    if not isinstance(arguments, dict) or read_object(json.dumps(arguments)) is None:
        raise UnusableRecord(
            f"{where}: arguments: an object is wanted, or one as JSON text, of at most {MAX_OBJECT_CHARS} characters"
        )
    return MadeCall(name=field(given, "name", str), arguments=arguments, id=call_id)


def said_call(call: MadeCall) -> dict[str, JsonValue]:
    """Return a call in the form that `made_call` reads, with the arguments as JSON text."""
    return {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}


def said_calls(calls: Sequence[MadeCall]) -> list[JsonValue]:
    """Return calls in the form of OpenAI's `tool_calls`; a call without an id stays without one."""
    return [{**({"id": call.id} if call.id else {}), "type": "function", "function": said_call(call)} for call in calls]


def _call(given: JsonValue) -> MadeCall:
    if not isinstance(given, dict) or given.get("type", "function") != "function":
        raise UnusableRecord("tool_calls: a call is an object with `function`")
    call_id = given.get("id")
    function = given.get("function", {key: value for key, value in given.items() if key in ("name", "arguments")})
    return made_call(function, "tool_calls", "" if call_id is None else field(given, "id", str))


def _tool(given: JsonValue, number: int) -> Tool:
    where = f"tools: function {number}"
    if isinstance(given, dict) and "function" in given:
        given = given["function"] if given.get("type", "function") == "function" else None
    if not isinstance(given, dict):
        raise UnusableRecord(f"{where} is no object with `function`")
    if strange := sorted(given.keys() - _OF_A_TOOL - {"type"}):
        raise UnusableRecord(f"{where} has {strange[0][:40]!r}, which is none of name, description, parameters")
    parameters = given.get("parameters")
    description = given.get("description")
    return Tool(
        name=field(given, "name", str),
        description="" if description is None else field(given, "description", str),
        parameters={"type": "object", "properties": {}} if parameters is None else field(given, "parameters", dict),
    )
