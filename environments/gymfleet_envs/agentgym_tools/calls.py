"""Read a reply as AgentGym's servers do: `Action: NAME with Action Input: ARGUMENTS`, which must end the text.

The `Action:` may be missing: reply formats strip it. Everything before it is a thought.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

from gymfleet_envs.agentgym_tools.literals import Unreadable, read_literal

_MARK: Final = re.compile(r"with\s*Action Input:")
_ACTION: Final = "Action:"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool. `arguments` is the value that was written, of any type, mostly a dict."""

    name: str
    arguments: Any


class NoCall(Exception):
    """The text does not end with a call."""


def read_call(text: str) -> Call:
    """Return the call that ends a reply. Raises `NoCall`, and `Unreadable` for arguments that are not a literal.

    As in upstream's pattern, the arguments are the rest of the last line, which may end with one line break.
    """
    body = text.removesuffix("\n")
    for mark in _MARK.finditer(body):
        written = body[mark.end() :].lstrip()
        if "\n" in written:
            continue
        line = body[: mark.start()].rstrip().rpartition("\n")[2]
        before, found, name = line.partition(_ACTION)
        return Call((name if found else before).strip(), read_literal(written))
    raise NoCall


__all__ = ["Call", "NoCall", "Unreadable", "read_call"]
