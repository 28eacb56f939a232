"""Our own records, as written by `gymfleet`: JSON or rows of a table."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from gymfleet_contracts.data_records import DataRecord
from pydantic import JsonValue, ValidationError

from gymfleet_kit.data import samples
from gymfleet_kit.data.columns import record_of
from gymfleet_kit.data.converter import Converter, ConverterOptions, UnusableRecord, Written


class Gymfleet(Converter[ConverterOptions]):
    """Episodes, conversations, preferences and rows of tasks, as written by gymfleet itself."""

    examples: ClassVar[tuple[Mapping[str, JsonValue], ...]] = tuple(
        record.model_dump(mode="json")
        for record in (samples.episodes()[2], samples.conversations()[3], *samples.preferences(), *samples.rows())
    )

    def convert(self, record: Mapping[str, JsonValue]) -> Iterator[DataRecord]:
        """Yield the record."""
        try:
            yield record_of(record)
        except ValidationError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise UnusableRecord(f"no row of ours: {type(error).__name__}: {error}") from None

    def write(self, one: DataRecord) -> Written:
        """Return the record as it is."""
        return Written(one.model_dump(mode="json"))
