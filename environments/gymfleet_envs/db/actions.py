"""Reads actions: AgentBench's own form, or a bare statement or answer."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gymfleet_contracts.session import Tool
from pydantic import JsonValue

from gymfleet_envs.environment import BadArguments

_KIND: Final = re.compile(r"(?:Action:)?\s*(Operation|Answer)\b[:.]?", re.IGNORECASE)
_ANSWER: Final = re.compile(r"(?:Action:\s*)?(?:Answer\b[:.]?\s*)?Final Answer:[ \t]*([^\n]*)", re.IGNORECASE)
_BARE_ANSWER: Final = re.compile(r"(?:Action:\s*)?answer\b[:.]?\s*(.+)", re.IGNORECASE | re.DOTALL)
_BLOCK: Final = re.compile(r"```(?:sql|mysql)?[ \t]*\n?(.*?)(?:```|\Z)", re.IGNORECASE | re.DOTALL)

TOOLS: Final = (
    Tool(
        name="execute_sql",
        description="Execute one SQL statement of MySQL's dialect and see its output.",
        parameters={
            "type": "object",
            "properties": {"query": {"type": "string", "minLength": 1, "description": "The statement."}},
            "required": ["query"],
            "additionalProperties": False,
        },
    ),
    Tool(
        name="commit_final_answer",
        description="Commit the final answer; after a change of the database it can be anything.",
        parameters={
            "type": "object",
            "properties": {
                "answers": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "The items of the answer, exactly as in the database.",
                }
            },
            "required": ["answers"],
            "additionalProperties": False,
        },
    ),
)


@dataclass(frozen=True, slots=True)
class Operation:
    """Execute this SQL."""

    sql: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Commit this final answer."""

    text: str


def read_action(action: str) -> Operation | Answer | None:
    """Read a statement or an answer; None if the action is neither. Of several blocks, the first counts."""
    text = action.strip()
    place = text.find("Action:")
    if place > 0:
        text = text[place:]
    kind = _KIND.match(text)
    operates = kind is not None and kind[1].lower() == "operation"
    if not operates:
        if answer := _ANSWER.match(text):
            return Answer(answer[1].strip())
        if answer := _BARE_ANSWER.match(text):
            return Answer(answer[1].strip())
    if block := _BLOCK.search(text):
        sql = block[1]
    else:
        sql = text[kind.end() :] if operates and kind is not None else text.removeprefix("Action:")
    return Operation(sql.strip()) if sql.strip() else None


def action_of(tool: str, arguments: Mapping[str, JsonValue]) -> str:
    """Return the action for a call of one of `TOOLS`. Raises `BadArguments`."""
    if tool == "commit_final_answer":
        return f"Action: Answer\nFinal Answer: {json.dumps(arguments['answers'], ensure_ascii=False)}"
    query = str(arguments["query"])
    if "```" in query:  # it would end the block
        raise BadArguments("the statement may not hold three backticks in a row")
    return f"Action: Operation\n```sql\n{query}\n```"
