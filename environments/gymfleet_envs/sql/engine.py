"""Queries on read-only databases: connections, and the rows that gold queries return."""

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from gymfleet_envs.sql.options import SqlOptions
from gymfleet_envs.sql.task import SqlTask, TableData
from gymfleet_envs.sql_text import UnfitStatement, one_statement, tokens
from gymfleet_envs.sqlite.guard import (
    PURE_FUNCTIONS,
    READ_ACTIONS,
    GuardedConnection,
    StatementFailed,
    StatementLimits,
)

Rows = frozenset[tuple[Any, ...]]
_Key = Path | tuple[TableData, ...]

_VERBS: Final = frozenset(("select", "with", "values"))
_DATE_FUNCTIONS: Final = frozenset(("date", "time", "datetime", "julianday", "strftime", "unixepoch"))
_MAX_KEPT_ROWS: Final = 1_000_000


def connect(task: SqlTask, options: SqlOptions, *, bounded: bool = False) -> GuardedConnection:
    """Open the task's database, in which nothing can be changed. Raises `StatementFailed` if it cannot be opened."""
    limits = StatementLimits(
        time_s=options.query_time_s,
        steps=None,
        value_bytes=options.value_bytes,
        memory_bytes=options.memory_bytes,
    )
    try:
        connection = _open(task.path) if task.path is not None else build(task)
        connection.text_factory = _text
        functions = PURE_FUNCTIONS | _DATE_FUNCTIONS
        return GuardedConnection(connection, limits, actions=READ_ACTIONS, functions=functions, bounded=bounded)
    except sqlite3.Error as error:
        raise StatementFailed(f"{task.path or 'the database'}: {error}") from None


def query(connection: GuardedConnection, sql: str, options: SqlOptions) -> list[tuple[Any, ...]]:
    """Return all rows. Raises `UnfitStatement`, and `StatementFailed`, also if there are too many rows."""
    one_statement(tokens(sql), _VERBS)
    rows, more = connection.run(sql, max_rows=options.max_rows, max_bytes=options.max_result_bytes)
    if more:
        raise StatementFailed(f"the result has more than {options.max_rows} rows or {options.max_result_bytes} bytes")
    return rows


def can_run(connection: GuardedConnection, sql: str) -> bool:
    """Return whether a query is allowed and can be prepared; it is not executed."""
    try:
        one_statement(tokens(sql), _VERBS)
        connection.run(f"EXPLAIN {sql}", max_rows=1, max_bytes=1)
    except (StatementFailed, UnfitStatement):
        return False
    return True


class Databases:
    """Open databases for future episodes, and the rows of gold queries. Safe for several threads.

    A connection serves one episode at a time; it keeps nothing of an episode, because nothing can be changed.
    """

    def __init__(self, max_idle: int = 64) -> None:
        self._max_idle = max_idle
        self._lock = threading.Lock()
        self._idle: OrderedDict[tuple[_Key, SqlOptions, bool], GuardedConnection] = OrderedDict()
        self._gold: OrderedDict[tuple[_Key, str], Rows] = OrderedDict()
        self._num_rows = 0

    @contextmanager
    def connection(self, task: SqlTask, options: SqlOptions, *, bounded: bool = False) -> Iterator[GuardedConnection]:
        """Provide the task's database, for a query that is `bounded` or not. Raises the same errors as `connect`."""
        key = (_key(task), options, bounded)
        with self._lock:
            found = self._idle.pop(key, None)
        connection = found or connect(task, options, bounded=bounded)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            surplus = [self._idle.pop(key)] if key in self._idle else []
            self._idle[key] = connection
            while len(self._idle) > self._max_idle:
                surplus.append(self._idle.popitem(last=False)[1])
        for each in surplus:
            each.close()

    def gold(self, task: SqlTask, connection: GuardedConnection, options: SqlOptions) -> Rows:
        """Return the rows of the task's gold query, computed on first request. Raises the same errors as `query`."""
        key = (_key(task), task.gold_sql)
        with self._lock:
            if (known := self._gold.get(key)) is not None:
                self._gold.move_to_end(key)
                return known
        rows = frozenset(query(connection, task.gold_sql, options))  # twice at worst, when two threads ask at once
        with self._lock:
            if key not in self._gold:
                self._gold[key] = rows
                self._num_rows += len(rows) + 1
            while self._num_rows > _MAX_KEPT_ROWS and len(self._gold) > 1:
                self._num_rows -= len(self._gold.popitem(last=False)[1]) + 1
        return rows


def _key(task: SqlTask) -> _Key:
    return task.path or task.tables


def _open(path: Path) -> sqlite3.Connection:
    # Immutable: no locks, no journal, and no other process may change the file.
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro&immutable=1",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=0,
    )


def build(task: SqlTask) -> sqlite3.Connection:
    """Return a database in memory that holds the task's tables."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, cached_statements=0)
    connection.execute("BEGIN")
    for table in task.tables:
        connection.execute(table.definition)
        places = ", ".join("?" * len(table.rows[0]))
        connection.executemany(f"INSERT INTO {table.name} VALUES ({places})", table.rows)  # noqa: S608 - our own names
    connection.execute("COMMIT")
    return connection


def _text(value: bytes) -> str:
    return value.decode(errors="replace")  # some published databases hold Latin-1
