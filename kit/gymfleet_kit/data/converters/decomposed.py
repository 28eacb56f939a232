"""Agent-FLAN's recipe: replies in a format become plain turns, so that reasoning is learned separately."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Final

from gymfleet_contracts.conversation import Conversation, Message
from gymfleet_contracts.data_records import DataRecord
from gymfleet_contracts.reply_format import FormatSection
from pydantic import Field, JsonValue, NonNegativeInt

from gymfleet_kit.data.converter import Converter, UnusableRecord
from gymfleet_kit.data.converters.messages import Messages, MessagesOptions
from gymfleet_kit.formats import format_of

DECOMPOSED: Final = "decomposed"
_CALLS: Final = (
    re.compile(r"\A([A-Za-z_][\w.-]*)(?:[ \t]+with)?\s+Action Input:\s*(.+)\Z", re.DOTALL),
    re.compile(r"\A([A-Za-z_][\w.-]*)\((.+)\)\Z", re.DOTALL),
    re.compile(r"\A([A-Za-z_][\w.-]*)\[(.+)\]\Z", re.DOTALL),
)
_INPUT: Final = "Action Input:"
_Question = Annotated[str, Field(min_length=1, max_length=10_000)]


class DecomposedOptions(MessagesOptions):
    """The keys of a record, and how to split its replies."""

    format: str | dict[str, JsonValue] = "react"
    """The format of the replies: its name, or a table with `use` and its options."""
    whole_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    """The share of conversations that stay in their format, like Agent-FLAN's subset `toolbench_react_10p`."""
    without: tuple[_Question, ...] = ()
    """Texts to cut from messages before the first reply, such as the description of the format."""
    ask_action: _Question = "What do you do next? Say only the name of the action."
    """The question for the action after a thought: its name, or all of it if it has no arguments."""
    ask_arguments: _Question = "With which arguments?"
    """The question for the arguments after the name of an action."""
    seed: NonNegativeInt = 0
    """Determines, together with the messages' texts, which conversations stay whole."""


class Decomposed(Messages):
    """Ask for thought, action and arguments one by one instead of a reply in a format (arXiv:2403.12881)."""

    Options = DecomposedOptions
    options: DecomposedOptions
    examples: ClassVar[tuple[Mapping[str, JsonValue], ...]] = (
        {
            "messages": [
                {"role": "system", "content": "You may call: weather(city)"},
                {"role": "user", "content": "Is it raining in Kyoto?"},
                {"role": "assistant", "content": "Thought: I look.\nAction: weather(Kyoto)"},
                {"role": "tool", "content": "no"},
                {"role": "assistant", "content": "It is dry."},
            ],
        },
    )

    def __init__(self, options: DecomposedOptions) -> None:
        super().__init__(options)
        given = {"use": options.format} if isinstance(options.format, str) else options.format
        self._format = format_of(FormatSection.model_validate(given))

    def convert(self, record: Mapping[str, JsonValue]) -> Iterator[DataRecord]:
        """Yield the conversation, with its replies split or as it is."""
        for one in super().convert(record):
            if not isinstance(one, Conversation):
                raise UnusableRecord("it is no conversation")
            yield one if self._stays(one) else self._apart(one)

    write = Converter.write  # there is no way back

    def _stays(self, one: Conversation) -> bool:
        said = "\0".join(message.content for message in one.messages)
        drawn = hashlib.sha256(f"{self.options.seed}/{said}".encode(errors="replace")).digest()
        return int.from_bytes(drawn[:7]) < self.options.whole_share * 2**56

    def _apart(self, one: Conversation) -> Conversation:
        first = next(place for place, message in enumerate(one.messages) if message.teaches)
        messages = [
            part
            for place, message in enumerate(one.messages)
            for part in (
                self._parts(message) if message.teaches else [self._cut(message) if place < first else message]
            )
        ]
        if messages == list(one.messages):
            return one
        return one.model_copy(update={"messages": tuple(messages), "labels": (*one.labels, DECOMPOSED)})

    def _parts(self, reply: Message) -> list[Message]:
        """Split a reply into several, with a question before each but the first; keep one without an action whole.

        A reply that calls functions stays whole too; thoughts beside the text stay before the first part.
        """
        if reply.tool_calls:
            return [reply]
        parsed = self._format.parse(reply.content)
        if parsed.action is None:
            return [reply]
        name, arguments = _call(parsed.action, reply.content)
        asked = [(self.options.ask_action, name), (self.options.ask_arguments, arguments)]
        if not parsed.thought:
            asked = asked[1:]
        parts = [Message(role="assistant", content=parsed.thought or name, reasoning=reply.reasoning)]
        for question, answer in asked:
            if answer:
                parts += [Message(role="user", content=question), Message(role="assistant", content=answer)]
        return parts

    def _cut(self, message: Message) -> Message:
        content = message.content
        for text in (*self.options.without, self._format.instructions):
            content = content.replace(text, "")
        return message if content == message.content else message.model_copy(update={"content": content.strip()})


def _call(action: str, reply: str) -> tuple[str, str]:
    """Return the name and the arguments of a call; for an action that is no call, all of it and an empty string."""
    if _INPUT not in action and _INPUT in reply:  # in a line of its own, behind the one that the format reads
        action = f"{action} {_INPUT}{reply.rpartition(_INPUT)[2]}"
    found = next((match for call in _CALLS if (match := call.match(action)) is not None), None)
    return (action, "") if found is None else (found[1], found[2].strip())
