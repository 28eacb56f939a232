"""An environment's tools, read from the text with which AgentGym's client describes them to a model.

The text, `tools.txt` in the environment's folder, is that of the client's first message. It is the only source of
tools, parameters and meanings: the instructions and the JSON Schemas come from it.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gymfleet_contracts.session import Tool
from pydantic import JsonValue

_HEAD: Final = (
    "You are an autonomous intelligent agent. You can use actions to help people solve problems.\n"
    "We detail name, description, input(parameters) and output(returns) of each action as follows:\n"
)
_FORM: Final = (
    "Write an action as [your action] with Action Input: [your action input], the input as a JSON object in the same "
    'line, such as get_x with Action Input: {"name": "value"}.'
)
_SECTION: Final = re.compile(r"Name: (\w+)\((.*)\)\nDescription: (.*)")
_PARAMETER: Final = re.compile(r"- (\w+)(?: \(Type: (.*?)(?:, Enum: \[(.*?)\])?\))? ?(?:: ?(.*))?")
_ANY: Final[Mapping[str, JsonValue]] = {}
_TYPES: Final[Mapping[str, Mapping[str, JsonValue]]] = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "['string', 'number', 'array']": {"type": ["string", "number", "array"]},
    "['string', 're.RegexObject']": {"type": "string"},
    "['integer', 'None']": {"type": ["integer", "null"]},
    "array[string]": {"type": "array", "items": {"type": "string"}},
    "array[integer]": {"type": "array", "items": {"type": "integer"}},
    "array[array[string]]": {"type": "array", "items": {"type": "array", "items": {"type": ["string", "number"]}}},
    "array[array[Any]]": {"type": "array", "items": {"type": "array", "items": {}}},
}


@dataclass(frozen=True, slots=True)
class Toolbox:
    """Tools, and the instructions that describe them to a model."""

    instructions: str
    tools: tuple[Tool, ...]


def read_toolbox(path: Path, *, optional: Collection[str] = ()) -> Toolbox:
    """Return the tools that a text describes; a call may leave out the `optional` parameters."""
    text = path.read_text(encoding="utf-8").strip()
    tools = tuple(
        _tool(match, body.partition("\n\n")[0], optional)
        for match, body in ((match, text[match.end() :]) for match in _SECTION.finditer(text))
    )
    return Toolbox(instructions=f"{_HEAD}{text}\n{_FORM}", tools=tools)


def _tool(head: re.Match[str], body: str, optional: Collection[str]) -> Tool:
    name, signature, description = head.groups()
    told = _parameters(body)
    names = [part.strip() for part in signature.split(",") if part.strip()]
    properties: dict[str, JsonValue] = {parameter: told[parameter] for parameter in names}
    schema: dict[str, JsonValue] = {"type": "object", "properties": properties, "additionalProperties": False}
    if required := [parameter for parameter in names if parameter not in optional]:
        schema["required"] = list[JsonValue](required)
    return Tool(name=name, description=description, parameters=schema)


def _parameters(body: str) -> dict[str, JsonValue]:
    """Return the schema of each parameter listed between `Parameters:` and `Returns:`."""
    _, _, listed = body.partition("Parameters:\n")
    found: dict[str, JsonValue] = {}
    for line in listed.partition("Returns:\n")[0].splitlines():
        if match := _PARAMETER.fullmatch(line.strip()):
            schema = dict(_TYPES[match[2]] if match[2] else _ANY)
            if match[3]:
                schema["enum"] = [value.strip() for value in match[3].split(",")]
            if match[4]:
                schema["description"] = match[4].strip()
            found[match[1]] = schema
    return found
