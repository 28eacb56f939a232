"""The data of an SQL task."""

from dataclasses import dataclass
from pathlib import Path

Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class TableData:
    """A generated table: `definition` is its CREATE TABLE statement."""

    name: str
    definition: str
    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, slots=True)
class SqlTask:
    """A question about a database, which is a file or made of tables."""

    prompt: str
    gold_sql: str
    path: Path | None = None
    tables: tuple[TableData, ...] = ()
