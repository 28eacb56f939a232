"""DBBench's tables in SQLite, in memory: the default."""

import sqlite3
from collections.abc import Sequence
from typing import Any, Final, Self

from gymfleet_envs.db.collation import COLLATION, compare, fold_each
from gymfleet_envs.db.database import DATABASE, NO_OPS, VERBS, Refused, clipped, shown
from gymfleet_envs.db.functions import FUNCTIONS, install
from gymfleet_envs.db.options import DbOptions
from gymfleet_envs.db.tables import Table, quoted
from gymfleet_envs.db.translation import translated
from gymfleet_envs.sql_text import Token, UnfitStatement, one_statement, tokens
from gymfleet_envs.sqlite.guard import (
    WRITE_ACTIONS,
    GuardedConnection,
    StatementFailed,
    StatementLimits,
)
from gymfleet_envs.sqlite.like import LikeRules

_PAGE_BYTES: Final = 4096
_MAX_STATE_ROWS: Final = 1_000_000
_MAX_SHOWN_ROWS: Final = 1000


class SqliteDatabase:
    """One connection to a database in memory.

    Args:
        tables: its initial tables.
        image: a database from `serialize`, to start from instead.
    """

    def __init__(self, tables: Sequence[Table], options: DbOptions, *, image: bytes | None = None) -> None:
        self._tables = tables
        self._options = options
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, cached_statements=0)
        connection.create_collation(COLLATION, compare)
        if image is None:
            _fill(connection, tables)
        else:
            connection.deserialize(image)
        connection.execute(f"PRAGMA max_page_count = {max(16, options.database_bytes // _PAGE_BYTES)}").fetchall()
        limits = StatementLimits(
            time_s=options.statement_time_s,
            steps=options.statement_steps,
            value_bytes=options.value_bytes,
            memory_bytes=options.memory_bytes,
        )
        self._guarded = GuardedConnection(
            connection, limits, actions=WRITE_ACTIONS, functions=FUNCTIONS, rules=LikeRules(fold_each, "\\")
        )
        install(connection, options.value_bytes)
        self._columns = frozenset(column.lower() for table in tables for column in table.columns)

    def execute(self, sql: str) -> str:
        """Execute a statement, translated from MySQL's dialect; errors are SQLite's."""
        pieces = tokens(sql, mysql=True)
        try:
            statement = one_statement(pieces, VERBS | NO_OPS)
        except UnfitStatement as error:
            raise Refused(str(error)) from None
        verb = next(piece.name for piece in statement if piece.text != "(")
        if verb in NO_OPS:
            return "[]"
        if verb in ("show", "describe", "desc"):
            return shown(self._described(statement), self._options.observation_chars)
        limit = self._options.observation_chars
        try:
            text = translated(sql, self._columns)
            # Four times the length that is shown: more than enough to be cut, however short the values are.
            rows, _ = self._guarded.run(text, max_rows=_MAX_SHOWN_ROWS, max_bytes=4 * limit)
        except StatementFailed as error:
            return clipped(str(error), limit)
        return shown(rows, limit)

    def state(self) -> list[list[tuple[Any, ...]]]:
        """Return the rows in the tables' original columns: only rows of a table can change here."""
        size = self._options.database_bytes * 2
        return [
            self._guarded.run(
                f"SELECT * FROM {quoted(table.name)}",  # noqa: S608 - quoted
                max_rows=_MAX_STATE_ROWS,
                max_bytes=size,
            )[0]
            for table in self._tables
        ]

    def copy(self) -> Self:
        """Return a connection to a copy of the pages."""
        return type(self)(self._tables, self._options, image=self._guarded.serialize())

    def close(self) -> None:
        """Close the connection, which frees the memory."""
        self._guarded.close()

    def _described(self, statement: list[Token]) -> list[tuple[Any, ...]]:
        words = [piece.name for piece in statement]
        if words[0] == "show":
            words = [word for word in words if word != "full"]
            if words[1:2] == ["tables"]:
                return [(table.name,) for table in self._tables]
            if words[1:2] == ["databases"]:
                return [(DATABASE,)]
            if words[1:3] == ["create", "table"]:
                return [(table.name, _definition(table)) for table in self._named(words[-1])]
            if words[1:2] not in (["columns"], ["fields"]):
                raise Refused("SHOW knows TABLES, COLUMNS FROM, CREATE TABLE and DATABASES here")
        elif len(words) < 2:
            raise Refused("DESCRIBE needs the name of a table")
        return [(column, "text", "YES", "", None, "") for table in self._named(words[-1]) for column in table.columns]

    def _named(self, name: str) -> list[Table]:
        found = [table for table in self._tables if table.name.lower() == name]
        if not found:
            raise Refused(f"no such table: {name[:200]}")
        return found


def _fill(connection: sqlite3.Connection, tables: Sequence[Table]) -> None:
    for table in tables:
        columns = ", ".join(f"{quoted(column)} TEXT COLLATE {COLLATION}" for column in table.columns)
        connection.execute("BEGIN")
        connection.execute(f"CREATE TABLE {quoted(table.name)} ({columns})")
        places = ", ".join("?" * len(table.columns))
        connection.executemany(f"INSERT INTO {quoted(table.name)} VALUES ({places})", table.rows)  # noqa: S608 - quoted
        connection.execute("COMMIT")


def _definition(table: Table) -> str:
    columns = ",\n".join(f"  {quoted(column)} text DEFAULT NULL" for column in table.columns)
    return f"CREATE TABLE {quoted(table.name)} (\n{columns}\n)"


def state_after(tables: Sequence[Table], sql: str, options: DbOptions) -> list[list[tuple[Any, ...]]]:
    """Return the tables' rows after a statement. Raises `StatementFailed`, `UnfitStatement`."""
    database = SqliteDatabase(tables, options)
    try:
        one_statement(tokens(sql, mysql=True), VERBS)
        database._guarded.run(translated(sql, database._columns), max_rows=1, max_bytes=1)  # noqa: SLF001 - its own module
        return database.state()
    finally:
        database.close()
