"""Converting replies and conversations from one reply format to another, with a name for every loss."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from gymfleet_contracts.conversation import Conversation, Message

from gymfleet_kit.data.converter import UnusableRecord
from gymfleet_kit.formats import CheckedFormat, FormatFailed

WORDING: Final = "wording"
"""The reply did not follow its own format to the letter, and its text outside the format is lost."""
THOUGHT: Final = "thought"
"""The other format has no place for a thought, or not for this thought."""
LAYOUT: Final = "layout"
"""The written reply does not follow the other format to the letter, since the thought contains its markers."""
INSTRUCTIONS: Final = "instructions"
"""The old format's instructions are nowhere in its own words; the new ones were put below the first message."""


class ActionLost(UnusableRecord):
    """A reply's action cannot be written in the other format, or the reply has none."""


@dataclass(frozen=True, slots=True)
class Reformatted:
    """A reply in another format."""

    text: str
    losses: tuple[str, ...]
    """The names above, and those of notes for which the other format has no place: `plan`, `prediction`."""


def reformat(text: str, source: CheckedFormat, target: CheckedFormat) -> Reformatted:
    """Read a reply in one format and write it in another, then read it back and compare.

    Raises `ActionLost` if the action would change: another action must never be learned from. Raises `FormatFailed` for
    a faulty format.
    """
    reply = source.parse(text)
    if reply.action is None:
        raise ActionLost(f"a reply without an action, which cannot be reformatted: {text[:80]!r}")
    try:
        written = target.render(reply.thought, reply.action, reply.notes)
    except FormatFailed as error:
        raise ActionLost(f"the action {reply.action[:80]!r} cannot be written: {error}") from error
    read = target.parse(written)
    if read.action != reply.action:
        raise ActionLost(
            f"the action {reply.action[:80]!r} has no place in the other format, which reads {read.action!r:.80}"
        )
    losses = [] if reply.well_formed else [WORDING]
    losses += [THOUGHT] if read.thought != reply.thought else []
    losses += [name for name, note in reply.notes.items() if read.notes.get(name) != note]
    losses += [] if read.well_formed else [LAYOUT]
    return Reformatted(written, tuple(losses))


def reformat_conversation(
    conversation: Conversation, source: CheckedFormat, target: CheckedFormat
) -> tuple[Conversation, Counter[str]]:
    """Return a conversation in another format, and the counts of losses.

    Every reply that is learned from is reformatted, and of the others those with an action; the old format's
    instructions are replaced. Raises `ActionLost` with the number of the message, and `FormatFailed`.
    """
    losses: Counter[str] = Counter()
    messages: list[Message] = []
    for number, message in enumerate(conversation.messages, 1):
        if message.role != "assistant":
            messages.append(message)
            continue
        try:
            reply = reformat(message.content, source, target)
        except ActionLost as error:
            if message.teaches:
                raise ActionLost(f"message {number}: {error}") from None
            messages.append(message)
            continue
        losses.update(reply.losses)
        messages.append(message.model_copy(update={"content": reply.text}))
    return conversation.model_copy(update={"messages": _instructed(messages, source, target, losses)}), losses


def _instructed(
    messages: list[Message], source: CheckedFormat, target: CheckedFormat, losses: Counter[str]
) -> tuple[Message, ...]:
    """Return the messages with the new format's instructions instead of the old one's."""
    old, new = source.instructions, target.instructions
    told = [place for place, one in enumerate(messages) if one.role != "assistant" and old in one.content]
    for place in told:
        messages[place] = messages[place].model_copy(update={"content": messages[place].content.replace(old, new)})
    if not told:
        losses[INSTRUCTIONS] += 1
        messages[0] = messages[0].model_copy(update={"content": f"{messages[0].content}\n\n{new}"})
    return tuple(messages)
