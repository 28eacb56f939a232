"""The interface of a converter, which turns a record of another file format into ours, and back.

The included converters are the modules of `gymfleet_kit.data.converters`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

from gymfleet_contracts.data_records import DataRecord, form_of
from pydantic import BaseModel, ConfigDict, JsonValue

_KINDS: Final = {
    str: "text", list: "a list", dict: "an object", bool: "true or false", int: "a number", float: "a number",
    type(None): "null",
}  # fmt: skip
T = TypeVar("T")


class UnusableRecord(ValueError):
    """A record is not one that the converter takes; the message is one line that says what is wrong with it."""


class ConverterOptions(BaseModel):
    """The options of a converter, in the recipe table that names it. A misspelt key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


OptionsT = TypeVar("OptionsT", bound=ConverterOptions)


@dataclass(frozen=True)
class Written:
    """A record of a converter's form, and the names of the parts for which this form has no place."""

    record: dict[str, JsonValue]
    lost: frozenset[str] = frozenset()
    """`learned`, `task`, `success`, `reward`, `id`, `labels`, `tools`, `reasoning`, `images`, `call_ids`, or
    `role:NAME` for a role that becomes another: parts that are missing or different when it is converted again."""


class Converter(ABC, Generic[OptionsT]):
    """Turns a record of another format into ours, and back. One object converts all records, and keeps none of them.

    A record may be a conversation, an episode, a preference or a task without replies.
    """

    Options: ClassVar[type[Any]] = ConverterOptions
    """The model of its options, a subclass of `ConverterOptions`."""
    examples: ClassVar[tuple[Mapping[str, JsonValue], ...]] = ()
    """Records as in such files; the conformance suite converts them, whole and damaged, and back."""

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    @abstractmethod
    def convert(self, record: Mapping[str, JsonValue]) -> Iterable[DataRecord]:
        """Return the records to learn from: one conversation, several, or none.

        Raises `UnusableRecord` for a record that it cannot take; pydantic's error for a `Conversation` will do too.
        """

    def write(self, one: DataRecord) -> Written:
        """Return the record that converts to this one: the same messages byte for byte, and a name for each loss.

        A converter without a way back need not override it. Raises `UnusableRecord` if its form cannot hold the record.
        """
        raise UnusableRecord(f"{type(self).__name__} only reads; it has no way back for {form_of(one)}")


def field(record: Mapping[str, JsonValue], name: str, kind: type[T]) -> T:
    """Return a field of a record. Raises `UnusableRecord` if it is missing, or not of this kind."""
    value: Any = record.get(name)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        there = f"it is {_KINDS.get(type(value), type(value).__name__)}" if name in record else "it is missing"
        raise UnusableRecord(f"{name}: {_KINDS.get(kind, kind.__name__)} is wanted; {there}")
    return value
