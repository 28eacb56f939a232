"""Tools that a conversation offers and calls, and the rate of hallucinated ones.

A call is hallucinated if no tool of its name is offered: the false action of Agent-FLAN (arXiv:2403.12881), whose
authors count such replies among all replies to questions that need no tool, or have none. Here they are counted among
calls, because people's data are mixtures.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from gymfleet_contracts.conversation import Conversation, Record

from gymfleet_kit.data.filter import dialogue, replies

_NAME: Final = r"([A-Za-z_][\w.-]{0,127})"
_FLAGS: Final = re.MULTILINE | re.IGNORECASE
_OFFERS: Final = (
    re.compile(rf'"(?:name|api_name)"\s*:\s*"{_NAME}"'),
    re.compile(rf"^[ \t>*-]*(?:\d+[.)][ \t]*)?(?:Name|Tool|Function|API)[ \t]*:[ \t]*{_NAME}", _FLAGS),
    re.compile(rf"\b{_NAME}\("),
)
"""JSON schemas, lists of `Name: search(title)`, and signatures."""
_CALLS: Final = (
    re.compile(rf"^[ \t]*(?:Action|Act):\s*{_NAME}[ \t]*(?:with[ \t]+Action Input|\n\s*Action Input)[ \t]*:", _FLAGS),
    re.compile(rf"^[ \t]*(?:Action|Act):\s*{_NAME}\(", _FLAGS),
    re.compile(rf"\A\s*{_NAME}\([^\n]*\)\s*\Z"),
)
_JSON_NAME: Final = re.compile(rf'"(?:name|tool|tool_name|function)"\s*:\s*"{_NAME}"')
_JSON_ARGUMENTS: Final = re.compile(r'"(?:arguments|parameters|args|input|action_input|param)"\s*:')


def offered_tools(record: Record) -> frozenset[str]:
    """Return the names of the tools offered before the first reply that is learned from.

    They are a conversation's `tools`. Without these, they are read from JSON schemas, from lists with `Name: ...`, and
    from signatures; none if there is no such list.
    """
    if isinstance(record, Conversation) and record.tools:
        return frozenset(tool.name for tool in record.tools)
    return frozenset(name for text in _before_replies(record) for offer in _OFFERS for name in offer.findall(text))


def called_tools(reply: str) -> list[str]:
    """Return the names of the tools that a reply calls, in the forms ReAct with `Action Input`, JSON, and `f(...)`.

    Free text after `Action:`, such as `go to shelf 1`, calls no tool.
    """
    for call in _CALLS:
        if found := call.findall(reply):
            return found
    return _JSON_NAME.findall(reply) if _JSON_ARGUMENTS.search(reply) else []


@dataclass
class ToolUse:
    """Counts of tool calls, over one record or many."""

    num_replies: int = 0
    num_calls: int = 0
    """Calls in records that offer tools."""
    num_unknown: int = 0
    """Calls in records without a list of tools; they are counted nowhere else."""
    hallucinated: Counter[str] = field(default_factory=Counter)
    """Calls of tools that are not offered, by name."""

    @property
    def rate(self) -> float:
        """Return the share of calls that are hallucinated; 0 without calls."""
        return self.hallucinated.total() / self.num_calls if self.num_calls else 0.0


def tool_use(records: Iterable[Record]) -> ToolUse:
    """Count replies that are learned from, their calls, and calls of tools that are not offered."""
    use = ToolUse()
    for record in records:
        called = _called(record)
        use.num_replies += len(replies(record))
        if not called:
            continue
        offered = offered_tools(record)
        if not offered:
            use.num_unknown += len(called)
            continue
        use.num_calls += len(called)
        use.hallucinated.update(name for name in called if name not in offered)
    return use


def _called(record: Record) -> list[str]:
    if not isinstance(record, Conversation):
        return [name for reply in replies(record) for name in called_tools(reply)]
    said = (message for message in record.messages if message.teaches)
    return [
        name
        for message in said
        for name in ([call.name for call in message.tool_calls] or called_tools(message.content))
    ]


def _before_replies(record: Record) -> list[str]:
    if isinstance(record, Conversation):
        first = next(place for place, message in enumerate(record.messages) if message.teaches)
        return [message.content for message in record.messages[:first] if message.role in ("system", "user")]
    return [text for _, text in dialogue(record)[:1]]
