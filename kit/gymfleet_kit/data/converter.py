"""What a converter is: how a record of somebody's file becomes ours, and how ours becomes one of theirs.

Those that come with gymfleet are the modules of `gymfleet_kit.data.converters`.
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
    """A record is not what the converter takes; the message is one line that says what is wrong with it."""


class ConverterOptions(BaseModel):
    """What a converter can be told, in the table of a recipe that names it. A misspelt key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


OptionsT = TypeVar("OptionsT", bound=ConverterOptions)


@dataclass(frozen=True)
class Written:
    """A record of a converter's form, and the names of what this form has no place for."""

    record: dict[str, JsonValue]
    lost: frozenset[str] = frozenset()
    """`learned`, `task`, `success`, `reward`, `id`, `labels`, `tools`, `reasoning`, `images`, `call_ids`, or
    `role:NAME` for a role that becomes another: what is not there, or something else, when it is converted again."""


class Converter(ABC, Generic[OptionsT]):
    """How a record of somebody's file becomes ours, and back. One object converts all records: it keeps none of them.

    A record may be a conversation, an episode, a preference or a task without replies.
    """

    Options: ClassVar[type[Any]] = ConverterOptions
    """The model of its options, a subclass of `ConverterOptions`."""
    examples: ClassVar[tuple[Mapping[str, JsonValue], ...]] = ()
    """Records as they stand in such files; the conformance suite has them converted, whole and damaged, and back."""

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    @abstractmethod
    def convert(self, record: Mapping[str, JsonValue]) -> Iterable[DataRecord]:
        """Return what is to be learned from a record: one conversation, several, or none.

        Raises `UnusableRecord` for a record that it cannot take; what pydantic says of a `Conversation` will do too.
        """

    def write(self, one: DataRecord) -> Written:
        """Return the record that is converted to this one: the same messages byte for byte, and a name for each loss.

        A converter that has no way back need not override it. Raises `UnusableRecord` for what its form cannot hold.
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
