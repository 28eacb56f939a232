"""TRL's preference sets: `prompt`, `chosen` and `rejected`."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from gymfleet_contracts.conversation import Message
from gymfleet_contracts.data_records import DataRecord, Preference, form_of
from pydantic import JsonValue

from gymfleet_kit.data.converter import Converter, ConverterOptions, UnusableRecord, Written
from gymfleet_kit.data.converters._prompt import messages_in, prompt_in, prompt_of


class TrlOptions(ConverterOptions):
    """None of its own."""


class Trl(Converter[TrlOptions]):
    """TRL's preferences: messages or texts, with a prompt, or with one that both replies begin with."""

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
        {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
    )

    def convert(self, record: Mapping[str, JsonValue]) -> Iterator[DataRecord]:
        """Yield the preference."""
        chosen, rejected = messages_in(record, "chosen", "assistant"), messages_in(record, "rejected", "assistant")
        prompt = prompt_in(record) if record.get("prompt") is not None else _shared(chosen, rejected)
        if record.get("prompt") is None:
            chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
        yield Preference(prompt=prompt, chosen=chosen, rejected=rejected)

    def write(self, one: DataRecord) -> Written:
        """Return a preference with messages and a prompt."""
        if not isinstance(one, Preference):
            raise UnusableRecord(f"this form holds preferences; {form_of(one)} are none")
        record: dict[str, JsonValue] = {
            name: prompt_of(part)
            for name, part in (("prompt", one.prompt), ("chosen", one.chosen), ("rejected", one.rejected))
        }
        return Written(record, frozenset({"task"} if one.task else ()))


def _shared(chosen: tuple[Message, ...], rejected: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the longest beginning that both have, and after which the assistant goes on in both."""
    size = 0
    for place, (one, other) in enumerate(zip(chosen, rejected, strict=False)):
        if one.role == other.role == "assistant":
            size = place
        if one != other:
            break
    if not size:
        raise UnusableRecord("prompt: it is missing, and chosen and rejected do not begin with the same messages")
    return chosen[:size]
