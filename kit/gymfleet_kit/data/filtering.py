"""Filtering records, by filters whose answers are checked."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog
from gymfleet_contracts.conversation import Record

from gymfleet_kit.data.filter import Filter, Refused, named
from gymfleet_kit.data.making import made, told
from gymfleet_kit.plugins import PluginError, PluginKind

log = structlog.get_logger()

FILTERS: Final = PluginKind[Filter[Any]]("filter", (Filter,), "gymfleet_kit.data.filters")


class FilterFailed(PluginError):
    """A filter raised, or answered nonsense."""


class CheckedFilter:
    """A filter whose answers can be relied on, for one list of records."""

    def __init__(self, name: str, plugin: Filter[Any]) -> None:
        self.name = name
        self.plugin = plugin

    @property
    def notes(self) -> bool:
        """Return whether it must see every record before it decides on the first one."""
        return type(self.plugin).note is not Filter.note

    def note(self, record: Record) -> None:
        """Show it a record. Raises `FilterFailed`."""
        self._asked("note", record)

    def keep(self, record: Record) -> bool:
        """Return whether it keeps a record. Raises `FilterFailed`."""
        return self._keeps(record)

    def kept(self, records: Sequence[Record]) -> list[Record]:
        """Return the records to keep, in order. Raises `FilterFailed`, and `Refused`."""
        for record in records:
            self._asked("note", record)
        return [record for record in records if self._keeps(record)]

    def _keeps(self, record: Record) -> bool:
        answer = self._asked("keep", record)
        if type(answer) is not bool:
            raise FilterFailed(f"the filter {self.name}: keep returns {answer!r:.40} instead of True or False")
        return answer

    def _asked(self, what: str, record: Record) -> object:
        try:
            return getattr(self.plugin, what)(record)
        except Refused as error:
            raise Refused(f"the filter {self.name}: {error}") from None
        except (Exception, SystemExit) as error:
            log.error("filter.failed", filter=self.name, what=what, exc_info=error)
            raise FilterFailed(f"the filter {self.name} failed in {what} for {named(record)}: {told(error)}") from error


def filter_of(given: str | Mapping[str, Any], *, table: str) -> CheckedFilter:
    """Return the filter named at `table` in a recipe. Raises `PluginError`."""
    return CheckedFilter(*made(FILTERS, given, table=table))
