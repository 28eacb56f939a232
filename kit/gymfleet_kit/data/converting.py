"""Files as conversations, by a converter whose answers are checked."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

import structlog
from gymfleet_contracts.conversation import Conversation
from gymfleet_contracts.faults import faults
from pydantic import JsonValue, ValidationError

from gymfleet_kit.data.converter import Converter, UnusableRecord
from gymfleet_kit.data.making import made, told
from gymfleet_kit.data.reading import DataError, records
from gymfleet_kit.plugins import PluginError, PluginKind

log = structlog.get_logger()

CONVERTERS: Final = PluginKind[Converter[Any]]("converter", (Converter,), "gymfleet_kit.data.converters")
MAX_CONVERSATIONS: Final = 10_000
"""Of one record."""
_MOST_FAULTS: Final = 3


class ConverterFailed(PluginError):
    """A converter raised what says nothing of the record, or answered nonsense."""


class CheckedConverter:
    """A converter whose answers can be relied on."""

    def __init__(self, name: str, plugin: Converter[Any]) -> None:
        self.name = name
        self.plugin = plugin

    def convert(self, record: Mapping[str, JsonValue]) -> list[Conversation]:
        """Return the conversations of a record. Raises `UnusableRecord` and `ConverterFailed`."""
        try:
            answer = self.plugin.convert(record)
            if isinstance(answer, Conversation) or not isinstance(answer, Iterable):
                raise ConverterFailed(f"{self._who} returns {type(answer).__name__} instead of conversations")
            found = list(islice(answer, MAX_CONVERSATIONS + 1))
        except (UnusableRecord, ConverterFailed):
            raise
        except ValidationError as error:
            raise UnusableRecord(faults(error, most=_MOST_FAULTS)) from None
        except (Exception, SystemExit) as error:
            log.error("converter.failed", converter=self.name, exc_info=error)
            raise ConverterFailed(f"{self._who} failed: {told(error)}") from error
        if len(found) > MAX_CONVERSATIONS:
            raise ConverterFailed(f"{self._who} makes more than {MAX_CONVERSATIONS} conversations of one record")
        for one in found:
            if type(one) is not Conversation:
                raise ConverterFailed(f"{self._who} yields {type(one).__name__} instead of a Conversation")
        return found

    @property
    def _who(self) -> str:
        return f"the converter {self.name}"


def converter_of(given: str | Mapping[str, Any], *, table: str) -> CheckedConverter:
    """Return the converter that a recipe names at `table`. Raises `PluginError`."""
    return CheckedConverter(*made(CONVERTERS, given, table=table))


def conversations(path: Path, converter: CheckedConverter) -> Iterator[Conversation]:
    """Yield the conversations of a file, each with its place as `source` unless the converter says another.

    Raises:
        DataError: the file is damaged, or a record is not what the converter takes.
        ConverterFailed: the converter is at fault.
    """
    for place, record in records(path):
        try:
            found = converter.convert(record)
        except UnusableRecord as error:
            raise DataError(f"{place}: no record for the converter {converter.name}: {_line(error)}") from None
        except ConverterFailed as error:
            raise ConverterFailed(f"{place}: {error}") from error
        for one in found:
            yield one if one.source else one.model_copy(update={"source": place})


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
