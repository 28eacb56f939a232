"""A prompt and a reply under separate keys, as in people's own files."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from gymfleet_contracts.conversation import Conversation, Message
from gymfleet_contracts.data_records import DataRecord, Preference
from pydantic import JsonValue

from gymfleet_kit.data.converter import Converter, ConverterOptions, UnusableRecord, Written, field
from gymfleet_kit.data.converters._chat import FACTS, NOTHING, beside, conversation_in, require_no_calls
from gymfleet_kit.data.converters._prompt import prompt_of


class PromptReplyOptions(ConverterOptions):
    """The keys of a record."""

    prompt: str = "prompt"
    """The key of the user's text: in Alpaca `instruction`."""
    context: str = ""
    """The key of further text of the user below it, such as `input`, in records that have it; "" looks for none."""
    reply: str = "response"
    """The key of the reply to learn: in Alpaca `output`."""
    rejected: str = ""
    """The key of a worse reply: with it, records are preferences, and `reply` names the key of the better reply."""
    system: str = ""
    """The key of the system's text before the prompt, in records that have it; "" looks for none."""


class PromptReply(Converter[PromptReplyOptions]):
    """A prompt and its reply, or two of which one is better, each a text under a key named in the options."""

    Options = PromptReplyOptions
    examples: ClassVar[tuple[Mapping[str, JsonValue], ...]] = ({"prompt": "Is it raining?", "response": "No."},)

    def convert(self, record: Mapping[str, JsonValue]) -> Iterator[DataRecord]:
        """Yield the conversation, or the preference."""
        options = self.options
        asked = field(record, options.prompt, str)
        if options.context and record.get(options.context):
            asked = f"{asked}\n\n{field(record, options.context, str)}"
        prompt = [Message(role="user", content=asked)]
        if options.system and record.get(options.system):
            prompt.insert(0, Message(role="system", content=field(record, options.system, str)))
        reply = Message(role="assistant", content=field(record, options.reply, str))
        if options.rejected:
            worse = Message(role="assistant", content=field(record, options.rejected, str))
            yield Preference(prompt=tuple(prompt), chosen=(reply,), rejected=(worse,))
        else:
            yield Conversation(messages=(*prompt, reply))

    def write(self, one: DataRecord) -> Written:
        """Return the record of a conversation with one reply, or of a preference between two if `rejected` is set."""
        if isinstance(one, Preference) and self.options.rejected:
            prompt_of([*one.prompt, *one.chosen, *one.rejected])
            record = self._written((*one.prompt, *one.chosen))
            if len(one.rejected) > 1:
                raise UnusableRecord("this form holds one rejected reply; `trl` has several messages")
            record[self.options.rejected] = one.rejected[0].content
            return Written(record, frozenset({"task"} if one.task else ()))
        given = conversation_in(one)
        require_no_calls(given.messages)
        facts = frozenset(name for name in FACTS if getattr(given, name) != NOTHING[name])
        return Written(self._written(given.messages), facts | beside(given.messages))

    def _written(self, messages: Sequence[Message]) -> dict[str, JsonValue]:
        roles = [message.role for message in messages]
        if roles[-2:] != ["user", "assistant"] or roles[:-2] not in ([], ["system"] if self.options.system else []):
            raise UnusableRecord(f"this form holds one prompt and one reply, and not {', '.join(roles[:8])}")
        *before, asked, reply = messages
        record: dict[str, JsonValue] = {self.options.prompt: asked.content, self.options.reply: reply.content}
        if before:
            if not before[0].content:
                raise UnusableRecord("the system's message is empty, which in this form is none")
            record[self.options.system] = before[0].content
        return record
