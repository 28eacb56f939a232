"""What an action asks for: AgentBench's own form, or the bare statement or answer."""

import re
from dataclasses import dataclass
from typing import Final

_KIND: Final = re.compile(r"(?:Action:)?\s*(Operation|Answer)\b[:.]?", re.IGNORECASE)
_ANSWER: Final = re.compile(r"(?:Action:\s*)?(?:Answer\b[:.]?\s*)?Final Answer:[ \t]*([^\n]*)", re.IGNORECASE)
_BARE_ANSWER: Final = re.compile(r"(?:Action:\s*)?answer\b[:.]?\s*(.+)", re.IGNORECASE | re.DOTALL)
_BLOCK: Final = re.compile(r"```(?:sql|mysql)?[ \t]*\n?(.*?)(?:```|\Z)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Operation:
    """Execute this SQL."""

    sql: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Commit this final answer."""

    text: str


def read_action(action: str) -> Operation | Answer | None:
    """None when it is neither; of several blocks the first counts."""
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
