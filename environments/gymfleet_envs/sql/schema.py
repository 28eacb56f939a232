"""A database put into words, as in AgentGym's sqlgym (and BIRD's own baseline)."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schema:
    """Tables and columns by their numbers, as in Spider's and BIRD's tables files.

    `columns` are pairs of the table's number and a name; the first is `*`, of table -1.
    """

    name: str
    tables: tuple[str, ...]
    columns: tuple[tuple[int, str], ...]
    primary_keys: frozenset[int]
    foreign_keys: tuple[tuple[int, int], ...]


def in_words(schema: Schema, *, published: bool) -> str:
    """Return the text before the question.

    Args:
        schema: the schema to describe.
        published: whether to match AgentGym's text to the letter, which is in lower case and names, for a foreign
            key, the column after the one that is meant.
    """
    tables = [table.lower() if published else table for table in schema.tables]
    columns = [name.lower() if published else name for _, name in schema.columns]
    parts = [f"{schema.name} contains tables such as {', '.join(tables)}."]
    for number, table in enumerate(tables):
        own = [place for place, (of, _) in enumerate(schema.columns) if of == number and place > 0]
        keys = [columns[place] for place in own if place in schema.primary_keys]
        parts.append(f"Table {table} has columns such as {', '.join(columns[place] for place in own)}.")
        parts.append(f"{', '.join(keys)} is the primary key.")
    shift = 1 if published else 0
    for one, other in schema.foreign_keys:
        parts.append(
            f"The {_at(columns, one + shift)} of {tables[schema.columns[one][0]]} is the foreign key of "
            f"{_at(columns, other + shift)} of {tables[schema.columns[other][0]]}."
        )
    return " ".join(parts)


def read_schema(name: str, connection: sqlite3.Connection) -> Schema:
    """Return the schema of the database itself. Raises `sqlite3.Error`."""
    tables = tuple(
        str(row[0])
        for row in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY rowid"
        )
    )
    columns: list[tuple[int, str]] = [(-1, "*")]
    keys: set[int] = set()
    for number, table in enumerate(tables):
        for row in connection.execute("SELECT name, pk FROM pragma_table_info(?) ORDER BY cid", (table,)):
            if row[1]:
                keys.add(len(columns))
            columns.append((number, str(row[0])))
    places = {(tables[of].lower(), column.lower()): place for place, (of, column) in enumerate(columns) if of >= 0}
    foreign: list[tuple[int, int]] = []
    for table in tables:
        query = 'SELECT "from", "table", "to" FROM pragma_foreign_key_list(?) ORDER BY id DESC, seq'
        for own, other, column in connection.execute(query, (table,)):
            one = places.get((table.lower(), str(own).lower()))
            two = places.get((str(other).lower(), str(column or own).lower()))
            if one is not None and two is not None:
                foreign.append((one, two))
    return Schema(name, tables, tuple(columns), frozenset(keys), tuple(foreign))


def _at(columns: Sequence[str], place: int) -> str:
    """Return a name as AgentGym does: its list repeats itself, without the first entry, once for every table."""
    return columns[place] if place < len(columns) else columns[1]
