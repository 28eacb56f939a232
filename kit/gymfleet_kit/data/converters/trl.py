"""TRL's preference sets: `prompt`, `chosen` and `rejected`."""

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

from gymfleet_contracts.conversation import Message
from gymfleet_contracts.data_records import DataRecord, Preference, form_of
from pydantic import JsonValue

from gymfleet_kit.data.converter import Converter, ConverterOptions, UnusableRecord, Written
from gymfleet_kit.data.converters._prompt import messages_in, prompt_in, prompt_of

_SPEAKER: Final = re.compile(r"(?:\A|\n)\n(Human|Assistant): ?")


class TrlOptions(ConverterOptions):
    """No options of its own."""


class Trl(Converter[TrlOptions]):
    """TRL's preferences: messages or texts, with a separate prompt, one with which both replies begin, or both.

    Texts without a prompt are transcripts, as in HH-RLHF: `Human:` and `Assistant:`, each after an empty line.
    """

    Options = TrlOptions
    examples: ClassVar[tuple[Mapping[str, JsonValue], ...]] = (
        {
            "prompt": [{"role": "user", "content": "What colour is the sky?"}],
            "chosen": [{"role": "assistant", "content": "Blue."}],
            "rejected": [{"role": "assistant", "content": "Green."}],
        },
        {
            "chosen": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}],
            "rejected": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "3"}],
        },
        {
            "prompt": "1 + 1?",  # as in UltraFeedback
            "chosen": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}],
            "rejected": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "3"}],
        },
        {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
        {
            "chosen": "\n\nHuman: How are you?\n\nAssistant: Well.",
            "rejected": "\n\nHuman: How are you?\n\nAssistant: No.",
        },
    )

    def convert(self, record: Mapping[str, JsonValue]) -> Iterator[DataRecord]:
        """Yield the preference."""
        if record.get("tools"):
            raise UnusableRecord("tools: only conversations declare functions")
        if record.get("prompt") is None:
            yield _divided(_whole(record, "chosen"), _whole(record, "rejected"))
            return
        prompt = prompt_in(record)
        chosen, rejected = messages_in(record, "chosen", "assistant"), messages_in(record, "rejected", "assistant")
        if not all(replies and replies[0].role != "assistant" for replies in (chosen, rejected)):
            yield Preference(prompt=prompt, chosen=chosen, rejected=rejected)
            return
        one = _divided(chosen, rejected)
        if not all(message in one.prompt for message in prompt):
            raise UnusableRecord("prompt: chosen and rejected begin with other messages")
        yield one

    def write(self, one: DataRecord) -> Written:
        """Return a preference with messages and a prompt."""
        if not isinstance(one, Preference):
            raise UnusableRecord(f"this form holds preferences; {form_of(one)} are none")
        record: dict[str, JsonValue] = {
            name: prompt_of(part)
            for name, part in (("prompt", one.prompt), ("chosen", one.chosen), ("rejected", one.rejected))
        }
        return Written(record, frozenset({"task"} if one.task else ()))


def _whole(record: Mapping[str, JsonValue], name: str) -> tuple[Message, ...]:
    """Return the messages of a field that begins with the prompt."""
    text = record.get(name)
    if not isinstance(text, str):
        return messages_in(record, name, "assistant")
    before, *parts = _SPEAKER.split(text)
    if before or not parts:
        raise UnusableRecord(f"{name}: a text that begins with no `Human:`, and there is no prompt")
    said = zip(parts[::2], parts[1::2], strict=True)
    return tuple(
        Message(role="user" if speaker == "Human" else "assistant", content=words.strip()) for speaker, words in said
    )


def _divided(chosen: tuple[Message, ...], rejected: tuple[Message, ...]) -> Preference:
    """Return the preference of two conversations that begin alike."""
    prompt = _shared(chosen, rejected)
    return Preference(prompt=prompt, chosen=chosen[len(prompt) :], rejected=rejected[len(prompt) :])


def _shared(chosen: tuple[Message, ...], rejected: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the longest common beginning after which the assistant goes on in both."""
    size = 0
    for place, (one, other) in enumerate(zip(chosen, rejected, strict=False)):
        if one.role == other.role == "assistant":
            size = place
        if one != other:
            break
    if not size:
        raise UnusableRecord(
            "prompt: chosen and rejected do not begin with the same messages, and there is none beside them"
        )
    return chosen[:size]
