"""Converting records of files to ours and back, by a converter whose answers are checked."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog
from gymfleet_contracts.conversation import Conversation, Record
from gymfleet_contracts.data_records import DataRecord, Form, Preference, TaskRow, form_of
from gymfleet_contracts.faults import faults
from gymfleet_contracts.trajectory import ScoredTrajectory
from pydantic import JsonValue, ValidationError

from gymfleet_kit.data.chunks import chunks
from gymfleet_kit.data.converter import Converter, UnusableRecord, Written
from gymfleet_kit.data.making import made, told
from gymfleet_kit.data.reading import DataError, parsed, records
from gymfleet_kit.plugins import PluginError, PluginKind

log = structlog.get_logger()

CONVERTERS: Final = PluginKind[Converter[Any]]("converter", (Converter,), "gymfleet_kit.data.converters")
MAX_CONVERSATIONS: Final = 10_000
"""The most conversations from one record."""
_KINDS: Final = (Conversation, ScoredTrajectory, Preference, TaskRow)
_MOST_FAULTS: Final = 3
T = TypeVar("T")


class ConverterFailed(PluginError):
    """A converter raised an error that does not concern the record, or answered nonsense."""


class CheckedConverter:
    """A converter whose answers can be relied on."""

    def __init__(self, name: str, plugin: Converter[Any]) -> None:
        self.name = name
        self.plugin = plugin

    @property
    def is_ours(self) -> bool:
        """Return whether it reads our own form."""
        return self.name == "gymfleet"

    @property
    def writes(self) -> bool:
        """Return whether it has a way back."""
        return type(self.plugin).write is not Converter.write

    def convert(self, record: Mapping[str, JsonValue]) -> list[DataRecord]:
        """Return the records that a record converts to. Raises `UnusableRecord` and `ConverterFailed`."""
        return self._asked(lambda: self._converted(record))

    def write(self, one: DataRecord) -> Written:
        """Return the record that converts to this one. Raises `UnusableRecord` and `ConverterFailed`."""
        return self._asked(lambda: self._written(one))

    def _converted(self, record: Mapping[str, JsonValue]) -> list[DataRecord]:
        answer = self.plugin.convert(record)
        if isinstance(answer, _KINDS) or not isinstance(answer, Iterable):
            raise ConverterFailed(f"{self._who} returns {type(answer).__name__} instead of conversations")
        found = list(islice(answer, MAX_CONVERSATIONS + 1))
        if len(found) > MAX_CONVERSATIONS:
            raise ConverterFailed(f"{self._who} makes more than {MAX_CONVERSATIONS} conversations of one record")
        for one in found:
            if type(one) not in _KINDS:
                raise ConverterFailed(f"{self._who} yields {type(one).__name__} instead of a Conversation")
        return found

    def _written(self, one: DataRecord) -> Written:
        answer = self.plugin.write(one)
        if type(answer) is not Written or type(answer.record) is not dict:
            raise ConverterFailed(f"{self._who}: write returns {type(answer).__name__} instead of Written with a dict")
        return answer

    def _asked(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except (UnusableRecord, ConverterFailed):
            raise
        except ValidationError as error:
            raise UnusableRecord(faults(error, most=_MOST_FAULTS)) from None
        except (Exception, SystemExit) as error:
            log.error("converter.failed", converter=self.name, exc_info=error)
            raise ConverterFailed(f"{self._who} failed: {told(error)}") from error

    @property
    def _who(self) -> str:
        return f"the converter {self.name}"


def converter_of(given: str | Mapping[str, Any], *, table: str) -> CheckedConverter:
    """Return the converter named at `table` in a recipe. Raises `PluginError`."""
    return CheckedConverter(*made(CONVERTERS, given, table=table))


def data_records(path: Path, converter: CheckedConverter) -> Iterator[DataRecord]:
    """Yield the records of a file, each with its place as `source` unless the converter gives another.

    Raises:
        DataError: the file is damaged, or a record is not one that the converter takes.
        ConverterFailed: the converter is at fault.
    """
    for place, record in records(path):
        try:
            found = converter.convert(record)
        except UnusableRecord as error:
            raise DataError(f"{place}: {refusal(converter, error)}") from None
        except ConverterFailed as error:
            raise ConverterFailed(f"{place}: {error}") from error
        for one in found:
            yield placed(one, place)


def learnable(path: Path, converter: CheckedConverter) -> Iterator[Record]:
    """Yield the conversations and episodes of a file. Raises as `data_records`, and `DataError` for anything else."""
    for one in data_records(path, converter):
        if isinstance(one, Preference | TaskRow):
            raise DataError(f"{one.source}: there are no replies to imitate in {form_of(one)}")
        yield one


def first_form(paths: Sequence[Path], converter: CheckedConverter) -> Form | None:
    """Return the form of the first usable record, or None if there is none. Raises as `data_records`."""
    for path in paths:
        for one in (one.record for chunk in chunks(path) for one in parsed(chunk)):
            with suppress(UnusableRecord):
                if one is not None and (found := converter.convert(one)):
                    return form_of(found[0])
    return None


def placed(one: DataRecord, place: str) -> DataRecord:
    """Return a record with its place as its source, if it has none; an episode has an id instead."""
    if isinstance(one, ScoredTrajectory) or one.source:
        return one
    return one.model_copy(update={"source": place})


def refusal(converter: CheckedConverter, error: UnusableRecord) -> str:
    """Return one line that says why a converter does not take a record."""
    return f"no record for the converter {converter.name}: {' '.join(str(error).split())}"
