"""The agent's actions: a call of one of the tools, or the final answer."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gymfleet_contracts.formats.agentbench_kg import AgentbenchKg
from gymfleet_contracts.reply_format import FormatOptions
from gymfleet_contracts.session import Tool
from pydantic import JsonValue

from gymfleet_envs.environment import BadArguments

_FORMAT: Final = AgentbenchKg(FormatOptions())
_FINAL: Final = re.compile(r"(?:Find|Final) Answer: #([0-9]{1,6})\.?")
_CALL: Final = re.compile(r"(\w{1,64})\((.*)\)[.;]?")
_VARIABLE: Final = re.compile(r"#[0-9]{1,6}")
_ENTITY_OR_VARIABLE: Final = "An entity of the question, or a variable such as #0."
_SET: Final = "A variable such as #0."


def _tool(name: str, description: str, **arguments: str) -> Tool:
    properties: dict[str, JsonValue] = {
        argument: {"type": "string", "minLength": 1, "maxLength": 1024, "description": meaning}
        for argument, meaning in arguments.items()
    }
    required: list[JsonValue] = list(arguments)
    return Tool(
        name=name,
        description=description,
        parameters={"type": "object", "properties": properties, "required": required, "additionalProperties": False},
    )


TOOLS: Final = (
    _tool("get_relations", "List the relations that lead on from an entity or a variable.",
          variable=_ENTITY_OR_VARIABLE),
    _tool("get_neighbors", "Make a variable of all entities that a relation leads to from an entity or a variable.",
          variable=_ENTITY_OR_VARIABLE, relation="One of the relations that get_relations lists."),
    _tool("intersection", "Make a variable of what is in both of two variables of the same type.",
          variable1=_SET, variable2=_SET),
    _tool("get_attributes", "List the numerical attributes of a variable, for questions that ask for an extreme.",
          variable=_SET),
    _tool("argmax", "Make a variable of the entity of a variable that has the greatest value of an attribute.",
          variable=_SET, attribute="One of the attributes that get_attributes lists."),
    _tool("argmin", "Make a variable of the entity of a variable that has the least value of an attribute.",
          variable=_SET, attribute="One of the attributes that get_attributes lists."),
    _tool("count", "Make a variable of the number of entities in a variable.", variable=_SET),
    _tool("final_answer", "End with the variable that answers the question.", variable=_SET),
)  # fmt: skip
"""AgentBench's seven tools, and its final answer, which AgentBench takes only as text."""
PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    tool.name: tuple(tool.parameters["required"])  # type: ignore[arg-type]  # written above as a list of names
    for tool in TOOLS
    if tool.name != "final_answer"
}


@dataclass(frozen=True, slots=True)
class Call:
    """Call a tool, or a name that the agent takes for one."""

    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """End with this variable."""

    number: int


def read_action(text: str) -> Call | FinalAnswer | None:
    """Read a call or an answer, alone or in AgentBench's reply format; None if the text is neither."""
    text = text.strip()
    if text.startswith(("Thought:", "Action")):
        text = _FORMAT.parse(text).action or ""
    if final := _FINAL.fullmatch(text):
        return FinalAnswer(int(final[1]))
    call = _CALL.fullmatch(text)
    return None if call is None else Call(call[1], _arguments(call[1], call[2]))


def _arguments(name: str, text: str) -> tuple[str, ...]:
    """Split at the last comma if the tool has two arguments: names of entities may contain commas."""
    given = text.rsplit(",", 1) if len(PARAMETERS.get(name, ())) == 2 else [text]
    return tuple(argument for one in given if (argument := one.strip()))


def action_of(tool: str, arguments: Mapping[str, JsonValue]) -> str:
    """Return a call of one of `TOOLS` in AgentBench's format. Raises `BadArguments`."""
    if tool == "final_answer":
        variable = str(arguments["variable"]).strip()
        if _VARIABLE.fullmatch(variable) is None:
            raise BadArguments("the answer is a variable, such as #0")
        return f"Final Answer: {variable}"
    values = [str(arguments[name]).strip() for name in PARAMETERS[tool]]
    if any(not value or value != " ".join(value.splitlines()) for value in values):
        raise BadArguments("an argument has one line that is not blank")
    if "," in "".join(values[1:]):
        raise BadArguments(f"the {PARAMETERS[tool][1]} has no comma")
    return f"{tool}({', '.join(values)})"
