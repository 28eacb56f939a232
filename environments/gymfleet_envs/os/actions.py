"""The agent's actions: run a script, answer, or finish."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gymfleet_contracts.formats.agentbench_os import AgentbenchOs
from gymfleet_contracts.reply_format import FormatOptions
from gymfleet_contracts.session import Tool
from pydantic import JsonValue

from gymfleet_envs.environment import BadArguments

_FORMAT: Final = AgentbenchOs(FormatOptions())
_FENCE: Final = re.compile(r"```(?:bash|sh|shell)?[ \t]*\n")

TOOLS: Final = (
    Tool(
        name="bash",
        description="Run bash code as root; its output is shown. The code must not ask for input.",
        parameters={
            "type": "object",
            "properties": {"code": {"type": "string", "minLength": 1, "description": "The bash code."}},
            "required": ["code"],
            "additionalProperties": False,
        },
    ),
    Tool(
        name="finish",
        description="Say that the task is finished, where something had to be done.",
        parameters={"type": "object", "properties": {}, "additionalProperties": False},
    ),
    Tool(
        name="answer",
        description="Give the answer, where a question was asked.",
        parameters={
            "type": "object",
            "properties": {"answer": {"type": "string", "description": "The answer alone, such as a number."}},
            "required": ["answer"],
            "additionalProperties": False,
        },
    ),
)


@dataclass(frozen=True, slots=True)
class Bash:
    """Run this in the shell."""

    code: str


@dataclass(frozen=True, slots=True)
class Commit:
    """End the episode with an answer; None for `finish`."""

    answer: str | None


def read_action(text: str) -> Bash | Commit | None:
    """Read AgentBench's reply format or a bare action; None if the text is neither."""
    text = text.strip()
    if "Act:" in text and not text.lower().startswith(("bash", "answer", "finish", "```")):
        text = _FORMAT.parse(text).action or ""
    lowered = text[:16].lower()
    if lowered.startswith("answer"):
        rest = text[len("answer") :]
        left, right = rest.find("("), rest.rfind(")")
        return Commit(rest[left + 1 : right]) if -1 < left < right and not rest[:left].strip() else None
    if lowered.rstrip(".!( )") == "finish" and len(text) <= 16:
        return Commit(None)
    if lowered.startswith(("bash", "```")):
        if blocks := _blocks(text):
            return Bash("\n\n".join(blocks))
        command = text[len("bash") :] if lowered.startswith("bash") else ""
        return Bash(command.strip()) if command[:1].isspace() and command.strip() else None
    return None


def _blocks(text: str) -> list[str]:
    blocks: list[str] = []
    end = 0
    while (fence := _FENCE.search(text, end)) and (end := text.find("\n```", fence.end() - 1)) >= 0:
        blocks.append(text[fence.end() : end])
        end += len("\n```")
    return blocks


def bash(command: str) -> str:
    """The action that runs a command, in AgentBench's format."""
    return f"bash\n\n```bash\n{command}\n```"


def action_of(tool: str, arguments: Mapping[str, JsonValue]) -> str:
    """Return the action for a call of one of `TOOLS`. Raises `BadArguments`."""
    if tool == "finish":
        return "finish"
    if tool == "answer":
        return f"answer({arguments['answer']})"
    code = str(arguments["code"])
    if "```" in code:  # it would end the block
        raise BadArguments("the code may not hold three backticks in a row; write them in another way")
    return bash(code)
