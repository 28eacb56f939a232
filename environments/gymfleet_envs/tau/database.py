"""The records of a world: a base that all sessions share, and the changes that one session has made to it."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Self, TypeAlias

Record: TypeAlias = dict[str, Any]
Tables: TypeAlias = Mapping[str, Mapping[str, Record]]
"""Records by table and id. They are never changed: an `Overlay` copies what it changes."""
_SCALARS: Final = (str, int, float, bool, type(None))


class World:
    """The records that every session of a task begins with. Two worlds are equal only if they are the same object."""

    __slots__ = ("tables",)

    def __init__(self, tables: Tables) -> None:
        self.tables = tables


class Overlay:
    """The records of one session.

    Its memory grows only with what the session has touched, and so does the work of comparing two sessions.
    """

    __slots__ = ("_changes", "_own", "_world")

    def __init__(self, world: World) -> None:
        self._world = world
        self._own: dict[str, dict[str, Record]] = {name: {} for name in world.tables}
        self._changes: dict[tuple[str, str], str] | None = None

    def fork(self) -> Self:
        """Return an independent copy. Records that were changed are shared: `change` copies them again."""
        twin = type(self)(self._world)
        twin._own = {name: dict(records) for name, records in self._own.items()}  # noqa: SLF001 - its own class
        twin._changes = self._changes  # noqa: SLF001
        return twin

    def has(self, table: str, key: Any) -> bool:
        """Return whether there is such a record. Raises TypeError for a key that cannot be one, such as a list."""
        return key in self._own[table] or key in self._world.tables[table]

    def read(self, table: str, key: str) -> Record:
        """Return a record, which the caller must not change. Raises KeyError."""
        own = self._own[table]
        return own[key] if key in own else self._world.tables[table][key]

    def change(self, table: str, key: str) -> Record:
        """Replace a record with a fresh copy and return the copy: what was read before is no longer the record."""
        self._changes = None
        self._own[table][key] = copied(self.read(table, key))
        return self._own[table][key]

    def add(self, table: str, key: str, record: Record) -> None:
        """Add a new record, no part of which is held elsewhere."""
        self._changes = None
        self._own[table][key] = record

    def items(self, table: str) -> Iterator[tuple[str, Record]]:
        """Return ids and records of a table, in the order of the base."""
        own = self._own[table]
        base = self._world.tables[table]
        yield from ((key, own.get(key, record)) for key, record in base.items())
        yield from (item for item in own.items() if item[0] not in base)

    def records(self, table: str) -> Iterator[Record]:
        """Return the records of a table, in the order of the base."""
        return (record for _, record in self.items(table))

    def changes(self) -> Mapping[tuple[str, str], str]:
        """Return the canonical text of each record that differs from the base, by table and id."""
        if self._changes is None:
            self._changes = {}
            for table, records in self._own.items():
                base = self._world.tables[table]
                for key, record in records.items():
                    text = canonical(record)
                    if key not in base or canonical(base[key]) != text:
                        self._changes[table, key] = text
        return self._changes


def canonical(value: Any) -> str:
    """Return the text that tau-bench hashes: objects as pairs sorted by their keys, lists in their order.

    1, 1.0 and true are three different values, because upstream's texts of them differ.
    """
    return str(_hashable(value))


def copied(value: Any) -> Any:
    """Return a deep copy of a JSON value."""
    if isinstance(value, dict):
        return {key: part if isinstance(part, _SCALARS) else copied(part) for key, part in value.items()}
    if isinstance(value, list):
        return [part if isinstance(part, _SCALARS) else copied(part) for part in value]
    return value


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((key, _hashable(part)) for key, part in sorted(value.items()))
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return value
