"""The one action grammar: what a reply must look like, and how it is read.

The prompt template, the environments' instructions, the format reward and the
dataset converters all use the parser that is registered here under its name.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A model's reply, taken apart.

    `action` is None when the reply holds none. `well_formed` says whether the
    reply follows the grammar to the letter; a sloppy reply can still carry an action.
    """

    thought: str
    action: str | None
    well_formed: bool


@dataclass(frozen=True, slots=True)
class Grammar:
    """A named, versioned reply format."""

    name: str
    version: int
    instructions: str
    """Shown to the model once, at the end of the environment's instructions."""
    complaint: str
    """The observation that answers a reply without an action."""
    parse: Callable[[str], ParsedReply]
    render: Callable[[str, str], str]
    """`render(thought, action)` writes a well-formed reply."""


_REACT: Final = re.compile(r"\s*Thought:(?P<thought>.*?)\s*Action:[ \t]*\n?[ \t]*(?P<action>[^\n]+?)\s*\Z", re.DOTALL)


def _parse_react(text: str) -> ParsedReply:
    head, marker, tail = text.rpartition("Action:")
    if not marker:
        return ParsedReply(thought=_strip_thought(text), action=None, well_formed=False)
    lines = tail.strip().splitlines()
    action = lines[0].strip() if lines else ""
    well_formed = _REACT.match(text) is not None and text.count("Action:") == 1 and text.count("Thought:") == 1
    return ParsedReply(thought=_strip_thought(head), action=action or None, well_formed=well_formed and bool(action))


def _strip_thought(text: str) -> str:
    return text.strip().removeprefix("Thought:").strip()


REACT: Final = Grammar(
    name="react",
    version=1,
    instructions='Answer with "Thought: <your reasoning> Action: <your action>".',
    complaint='Invalid format. Answer with "Thought: <your reasoning> Action: <your action>".',
    parse=_parse_react,
    render=lambda thought, action: f"Thought: {thought} Action: {action}",
)

GRAMMARS: Final[dict[str, Grammar]] = {REACT.name: REACT}


def get_grammar(name: str) -> Grammar:
    """Look a grammar up by name; KeyError names the known ones."""
    try:
        return GRAMMARS[name]
    except KeyError:
        raise KeyError(f"unknown action grammar {name!r}; known: {sorted(GRAMMARS)}") from None
