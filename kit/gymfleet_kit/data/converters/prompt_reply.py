"""A prompt and a reply under keys of their own, as people's own files have them."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from gymfleet_contracts.conversation import Conversation, Message
from gymfleet_contracts.data_records import DataRecord
from pydantic import JsonValue

from gymfleet_kit.data.converter import Converter, ConverterOptions, UnusableRecord, Written, field
from gymfleet_kit.data.converters._chat import FACTS, NOTHING, beside, conversation_in, require_no_calls


class PromptReplyOptions(ConverterOptions):
    """The keys."""

    prompt: str = "prompt"
    """What the user says: Alpaca has `instruction`."""
    context: str = ""
    """What the user says below it, in records that have it, such as `input`; "" looks for none."""
    reply: str = "response"
    """What is learned: Alpaca has `output`."""
    system: str = ""
    """What stands before the prompt, likewise."""


class PromptReply(Converter[PromptReplyOptions]):
    """A prompt and its reply, each a text under a key that the options name."""

    Options = PromptReplyOptions
    examples: ClassVar[tuple[Mapping[str, JsonValue], ...]] = ({"prompt": "Is it raining?", "response": "No."},)

    def convert(self, record: Mapping[str, JsonValue]) -> Iterator[DataRecord]:
        """Yield the conversation."""
        options = self.options
        asked = field(record, options.prompt, str)
        if options.context and record.get(options.context):
            asked = f"{asked}\n\n{field(record, options.context, str)}"
        messages = [
            Message(role="user", content=asked),
            Message(role="assistant", content=field(record, options.reply, str)),
        ]
        if options.system and record.get(options.system) is not None:
            messages.insert(0, Message(role="system", content=field(record, options.system, str)))
        yield Conversation(messages=tuple(messages))

    def write(self, one: DataRecord) -> Written:
        """Return the record of a conversation of one reply."""
        given = conversation_in(one)
        require_no_calls(given.messages)
        *before, asked, reply = given.messages
        roles = [message.role for message in given.messages]
        if roles[-2:] != ["user", "assistant"] or roles[:-2] not in ([], ["system"] if self.options.system else []):
            raise UnusableRecord(f"this form holds one prompt and one reply, and not {', '.join(roles[:8])}")
        record: dict[str, JsonValue] = {self.options.prompt: asked.content, self.options.reply: reply.content}
        if before:
            record[self.options.system] = before[0].content
        facts = frozenset(name for name in FACTS if getattr(given, name) != NOTHING[name])
        return Written(record, facts | beside(given.messages))
