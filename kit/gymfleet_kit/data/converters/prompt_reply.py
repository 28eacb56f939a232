"""A prompt and a reply under separate keys, as in people's own files."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from gymfleet_contracts.conversation import Conversation, Message
from gymfleet_contracts.data_records import DataRecord
from pydantic import JsonValue

from gymfleet_kit.data.converter import Converter, ConverterOptions, UnusableRecord, Written, field
from gymfleet_kit.data.converters._chat import FACTS, NOTHING, beside, conversation_in, require_no_calls


class PromptReplyOptions(ConverterOptions):
    """The keys of a record."""

    prompt: str = "prompt"
    """The key of the user's text: in Alpaca `instruction`."""
    context: str = ""
    """The key of further text of the user below it, such as `input`, in records that have it; "" looks for none."""
    reply: str = "response"
    """The key of the reply to learn: in Alpaca `output`."""
    system: str = ""
    """The key of the system's text before the prompt, in records that have it; "" looks for none."""


class PromptReply(Converter[PromptReplyOptions]):
    """A prompt and its reply, each a text under a key named in the options."""

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
        """Return the record of a conversation with one reply."""
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
