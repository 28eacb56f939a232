"""A SQLite connection for statements that somebody else wrote, with limits on what they may touch and use up.

Every limit is there because one statement can exceed it: a recursive query that never ends, a join of a table with
itself, a value or a sorter that fills the memory, a view of views that is expanded for hours before its first row.
"""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from gymfleet_envs.sqlite.functions import install_bounded
from gymfleet_envs.sqlite.like import SQLITE_RULES, LikeRules

READ_ACTIONS: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
WRITE_ACTIONS: Final = READ_ACTIONS | {sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE}
PURE_FUNCTIONS: Final = frozenset(
    (
        "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "avg", "ceil", "ceiling", "char", "coalesce",
        "cos", "cosh", "count", "cume_dist", "degrees", "dense_rank", "exp", "first_value", "floor", "format", "glob",
        "group_concat", "hex", "ifnull", "iif", "instr", "lag", "last_value", "lead", "length", "like", "ln", "log",
        "log10", "log2", "lower", "ltrim", "max", "min", "mod", "nth_value", "ntile", "nullif", "percent_rank", "pi",
        "pow", "power", "printf", "quote", "radians", "rank", "replace", "round", "row_number", "rtrim", "sign", "sin",
        "sinh", "soundex", "sqrt", "substr", "substring", "sum", "tan", "tanh", "total", "trim", "trunc", "typeof",
        "unicode", "upper",
    )
)  # fmt: skip
"""SQLite's functions that always give the same result, and reach nothing outside."""

_STEPS_PER_LOOK: Final = 10_000
"""Virtual machine steps between two looks at the clock: some 200 microseconds, unless functions take longer."""


class StatementFailed(Exception):
    """The statement was refused or failed; the message is for its author."""


@dataclass(frozen=True, slots=True)
class StatementLimits:
    """The limits of one statement.

    Args:
        time_s: wall-clock time.
        steps: steps of SQLite's virtual machine; unlike time they are the same on every machine. None: any number.
        value_bytes: size of one value, and of one row in a table.
        memory_bytes: memory of all SQLite connections of this process together; the smallest limit ever set counts.
    """

    time_s: float
    steps: int | None
    value_bytes: int
    memory_bytes: int


class _Lane:
    """Lets statements run side by side, except for one that is repeated alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_running = 0
        self._taken = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._taken)
            self._num_running += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_running -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._taken)
            self._taken = True
            self._changed.wait_for(lambda: self._num_running == 0)
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._changed.notify_all()


_LANE: Final = _Lane()


class GuardedConnection:
    """Runs statements one at a time; safe to be called from one thread after another.

    Args:
        connection: opened with `check_same_thread=False` and `isolation_level=None`; it is closed by `close`.
        actions: authorizer codes that are allowed.
        functions: names of SQL functions that are allowed.
        bounded: whether to replace the functions in which one call can spend hours, which makes them some 25 times
            slower. They are quick on short texts; `may_grow` returns whether a statement may make long ones.
        rules: the rules of LIKE, if it is replaced.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        limits: StatementLimits,
        *,
        actions: frozenset[int],
        functions: frozenset[str],
        bounded: bool = True,
        rules: LikeRules = SQLITE_RULES,
    ) -> None:
        self._connection = connection
        self._limits = limits
        self._actions = actions
        self._functions = functions
        self._deadline = 0.0
        self._looks_left = 0
        self._stopped = ""
        self._denied = ""
        self._failed = ""
        _set_limits(connection, limits)
        if bounded:
            install_bounded(connection, limits.value_bytes, self._check, self._fail, rules)
        connection.set_progress_handler(self._look, _STEPS_PER_LOOK)
        connection.set_authorizer(self._authorize)

    def run(self, sql: str, *, max_rows: int, max_bytes: int) -> tuple[list[tuple[Any, ...]], bool]:
        """Execute one statement.

        Returns its rows, and whether there were more of them than `max_rows` or `max_bytes` (text and blobs
        by their length, other values 8 bytes each).
        Raises `StatementFailed`; the database is then unchanged.
        """
        try:
            with _LANE.shared():
                return self._run(sql, max_rows, max_bytes)
        except MemoryError:
            pass  # the limit is the process's, so the culprit may be another statement
        try:
            with _LANE.alone():
                return self._run(sql, max_rows, max_bytes)
        except MemoryError:
            raise StatementFailed("out of memory") from None

    def serialize(self) -> bytes:
        """Return the database's pages, for another connection's `deserialize`."""
        self._connection.set_authorizer(None)  # SQLite asks itself for the number of pages
        try:
            return self._connection.serialize()
        finally:
            self._connection.set_authorizer(self._authorize)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _run(self, sql: str, max_rows: int, max_bytes: int) -> tuple[list[tuple[Any, ...]], bool]:
        limits = self._limits
        self._deadline = time.monotonic() + limits.time_s
        self._looks_left = -1 if limits.steps is None else max(1, limits.steps // _STEPS_PER_LOOK)
        self._stopped = self._denied = self._failed = ""
        rows: list[tuple[Any, ...]] = []
        num_bytes = 0
        cursor = self._connection.cursor()
        try:
            cursor.execute(sql)
            for row in cursor:
                if len(rows) >= max_rows or num_bytes > max_bytes:
                    return rows, True
                rows.append(row)
                num_bytes += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
            # ValueError: NUL characters and lone surrogates, which SQLite cannot take
            raise StatementFailed(self._stopped or self._denied or self._failed or str(error)) from None
        finally:
            cursor.close()
        return rows, False

    def _look(self) -> int:
        """Return whether to stop; SQLite calls this now and then, in the thread that runs the statement."""
        self._looks_left -= 1
        if self._looks_left == 0:
            self._stopped = "interrupted: the statement takes too many steps"
        elif time.monotonic() > self._deadline:
            self._stopped = f"interrupted: the statement takes longer than {self._limits.time_s:g} s"
        return int(bool(self._stopped))

    def _check(self) -> None:
        """Raise if the time is over; called before a function that cannot be interrupted."""
        if time.monotonic() > self._deadline:
            self._stopped = f"interrupted: the statement takes longer than {self._limits.time_s:g} s"
            raise TimeoutError

    def _fail(self, message: str) -> None:
        self._failed = message

    def _authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action not in self._actions:
            self._denied = "not authorized: only the tables' rows can be worked with here"
        elif action == sqlite3.SQLITE_FUNCTION and (second or "").lower() not in self._functions:
            self._denied = f"no such function: {second}"
        elif action not in READ_ACTIONS and (first or "").lower().startswith("sqlite_"):
            self._denied = f"not authorized: {first} belongs to the database"  # also how table functions show up
        else:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY


def _set_limits(connection: sqlite3.Connection, limits: StatementLimits) -> None:
    for category, limit in (
        (sqlite3.SQLITE_LIMIT_LENGTH, limits.value_bytes),
        (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 64 * 1024),
        (sqlite3.SQLITE_LIMIT_COLUMN, 256),
        (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 200),
        (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 64),
        (sqlite3.SQLITE_LIMIT_VDBE_OP, 100_000),
        (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1000),  # LIKE takes as long as text times pattern, uninterrupted
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
        (sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 0),
        (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
    ):
        connection.setlimit(category, limit)
    connection.execute("PRAGMA temp_store = MEMORY")  # a sorter must not fill the disk
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute(f"PRAGMA hard_heap_limit = {limits.memory_bytes}").fetchall()
