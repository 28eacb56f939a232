"""DBBench's tables in MariaDB: every episode has its own database and user."""

import contextlib
import secrets
from collections.abc import Sequence
from typing import Any, Final, Self

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor, SSCursor

from gymfleet_envs.db.database import DATABASE, NO_OPS, VERBS, Refused, clipped, shown
from gymfleet_envs.db.mariadb_server import MariaServer, connect
from gymfleet_envs.db.mariadb_session import Watch, WatchLimits, session_settings
from gymfleet_envs.db.options import DbOptions
from gymfleet_envs.db.tables import Table, quoted
from gymfleet_envs.environment import EngineLost
from gymfleet_envs.sql_text import UnfitStatement, one_statement, tokens

_GRANTED: Final = "SELECT, INSERT, UPDATE, DELETE"
_SHOWN: Final = frozenset(("tables", "columns", "fields", "full", "create", "index", "databases"))
_LOST: Final = (2006, 2013, 2014, 2055, 0)
"""Client errors that leave no connection: the server went away, or the client gave up waiting."""
_READ_SLACK_S: Final = 5.0
_MAX_STATE_ROWS: Final = 1_000_000
_ROW_BYTES: Final = 32
"""Bytes that a row costs in addition to its values."""
_COM_RESET_CONNECTION: Final = 0x1F
_SHARED: Final = frozenset(("get_lock", "release_lock", "release_all_locks", "is_free_lock", "is_used_lock"))
"""Functions with which one session could wait for another, or pass it information."""


class MariaDatabase:
    """A connection as a user who may read and write the rows of one database, and nothing else.

    Raises `EngineLost` when the server cannot be reached.
    """

    def __init__(self, tables: Sequence[Table], options: DbOptions, server: MariaServer) -> None:
        self._tables = tables
        self._options = options
        self._server = server
        self._connection: Connection | None = None
        self._name = server.new_name()
        self._password = secrets.token_hex(16)
        self._session = session_settings(options)
        # Room for half-full pages, and for the rows that an update replaces until it is committed.
        max_bytes = 2 * options.database_bytes + 16 * 2**20
        self._limits = WatchLimits(time_s=options.statement_time_s + _READ_SLACK_S, file_bytes=max_bytes)
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise

    def execute(self, sql: str) -> str:
        """Execute a statement unchanged, because MariaDB speaks MySQL's dialect."""
        pieces = tokens(sql, mysql=True)
        try:
            statement = one_statement(pieces, VERBS | NO_OPS)
        except UnfitStatement as error:
            raise Refused(str(error)) from None
        words = [piece.name for piece in statement if piece.text != "("]
        if words[0] in NO_OPS:
            return "[]"
        if words[0] == "show" and words[1:2] and words[1] not in _SHOWN:
            raise Refused("SHOW knows TABLES, COLUMNS FROM, CREATE TABLE and DATABASES here")
        names = {piece.name for piece in statement if piece.kind != "double"}
        if called := sorted(_SHARED & names):
            raise Refused(f"{called[0].upper()} cannot be used here: the server's locks belong to all of its sessions")
        return self._anonymous(self._run(sql, returning="returning" in names))

    def state(self) -> list[list[tuple[Any, ...]]]:
        """Read the rows as the administrator, because the agent's connection may be gone."""
        with self._administrator() as cursor:
            found = []
            for table in self._tables:
                cursor.execute(f"SELECT * FROM {self._place(table)} LIMIT {_MAX_STATE_ROWS}")  # noqa: S608 - quoted
                found.append(list(cursor.fetchall()))
            return found

    def copy(self) -> Self:
        """Return another database with the same rows."""
        twin = type(self)([Table(table.name, table.columns, ()) for table in self._tables], self._options, self._server)
        with self._administrator() as cursor:
            for table in self._tables:
                rows = f"SELECT * FROM {self._place(table)}"  # noqa: S608 - quoted
                cursor.execute(f"INSERT INTO {twin._place(table)} {rows}")  # noqa: SLF001 - quoted, its own class
        twin._tables = self._tables  # noqa: SLF001
        return twin

    def close(self) -> None:
        """Drop the database and its user."""
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.close()
        with contextlib.suppress(EngineLost), self._administrator() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {quoted(self._name)}")
            cursor.execute(f"DROP USER IF EXISTS '{self._name}'@'%'")

    def _set_up(self) -> None:
        with self._administrator() as cursor:
            cursor.execute(f"CREATE DATABASE {quoted(self._name)} CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
            for table in self._tables:
                columns = ", ".join(f"{quoted(column)} TEXT" for column in table.columns)
                cursor.execute(f"CREATE TABLE {self._place(table)} ({columns})")
                if table.rows:
                    places = ", ".join(["%s"] * len(table.columns))
                    cursor.executemany(
                        f"INSERT INTO {self._place(table)} VALUES ({places})",  # noqa: S608 - quoted
                        table.rows,
                    )
            # The name is ours, of hexadecimal digits; not every server takes parameters in a statement about users.
            cursor.execute(f"CREATE USER '{self._name}'@'%' IDENTIFIED BY '{self._password}'")
            cursor.execute(f"GRANT {_GRANTED} ON {quoted(self._name)}.* TO '{self._name}'@'%'")
        with self._cursor() as cursor:
            cursor.execute("SHOW DATABASES")
            if others := {str(row[0]) for row in cursor.fetchall()} - {self._name, "information_schema"}:
                raise EngineLost(f"the database server lets every user into {sorted(others)}: drop what is open to all")

    def _run(self, sql: str, *, returning: bool) -> str:
        limit = self._options.observation_chars
        watch = None
        try:
            with self._cursor() as cursor:
                with Watch(self._server, self._name, cursor.connection, self._limits) as watch:
                    cursor.execute(sql)
                    rows, num_changed = self._result(cursor, returning=returning)
                refusal = self._settled(cursor, num_changed)
        except pymysql.Error as error:
            failure = clipped(self._failed(error), limit)
            return self._full() if watch is not None and watch.exceeded else failure
        except UnicodeError as error:
            return clipped(str(error), limit)
        except ValueError:
            return "the statement was given up by the server"
        return refusal or shown(rows, limit)

    def _result(self, cursor: Cursor, *, returning: bool) -> tuple[list[tuple[Any, ...]], int]:
        """Return the rows that can be shown, and the number of rows that the statement has changed.

        A statement that returns rows may also have changed some: with RETURNING, it returns a row for each changed
        one. All of these are read, because nothing else gives their number.
        """
        if cursor.description is None:
            return [], cursor.rowcount
        rows: list[tuple[Any, ...]] = []
        num_rows = num_chars = 0
        while (row := cursor.fetchone()) is not None:
            num_rows += 1
            if num_chars <= 4 * self._options.observation_chars:
                rows.append(row)
                num_chars += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
            elif not returning:  # the server would send them all
                self._give_up()
                break
        return rows, num_rows if returning else 0

    def _settled(self, cursor: Cursor, num_changed: int) -> str:
        """Commit, or undo a statement that exceeds the limits and return a message about it.

        Every statement is a transaction, even one that only reads: it may hold locks.
        """
        connection = self._connection
        if connection is None:  # given up: the server undoes it
            return ""
        if num_changed > self._options.max_changed_rows:
            connection.rollback()
            return f"one statement may change at most {self._options.max_changed_rows} rows"
        if num_changed and self._num_bytes(cursor) > self._options.database_bytes:
            connection.rollback()
            return self._full()
        connection.commit()
        return ""

    def _num_bytes(self, cursor: Cursor) -> int:
        """Return the size of the tables' rows: it is the same on every server, unlike the size of the files."""
        total = 0
        for table in self._tables:
            lengths = " + ".join(f"COALESCE(LENGTH({quoted(column)}), 0)" for column in table.columns)
            cursor.execute(f"SELECT COALESCE(SUM({_ROW_BYTES} + {lengths}), 0) FROM {self._place(table)}")  # noqa: S608 - quoted
            total += sum(int(row[0]) for row in cursor.fetchall())
        return total

    def _full(self) -> str:
        """Give the pages of an undone statement back to the disk, and return a message about it."""
        with self._administrator() as cursor:
            for table in self._tables:
                cursor.execute(f"ALTER TABLE {self._place(table)} FORCE")
        return f"the tables may hold at most {self._options.database_bytes} bytes"

    def _failed(self, error: pymysql.Error) -> str:
        """Return the agent's view of an error. Raises `EngineLost` if the server itself failed."""
        code = error.args[0] if error.args else 0
        if code not in _LOST:
            with contextlib.suppress(pymysql.Error):
                if self._connection is not None:
                    self._connection.rollback()
            return f"{code}: {error.args[1]}" if len(error.args) > 1 else str(error)
        self._give_up()
        with self._cursor() as cursor:  # raises EngineLost when there is no server any more
            cursor.execute("SELECT 1")
            cursor.fetchall()
        return f"the statement takes longer than {self._options.statement_time_s:g} s"

    def _give_up(self) -> None:
        """End the connection and the work that the server still does for it."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        thread = int(connection.thread_id())
        # `close`, and a result not read to its end, would wait for everything that the server still sends.
        if (result := connection._result) is not None:  # noqa: SLF001
            result.unbuffered_active = False
        connection._force_close()  # noqa: SLF001
        with contextlib.suppress(EngineLost, pymysql.Error), self._administrator() as cursor:
            cursor.execute(f"KILL CONNECTION {thread}")

    @contextlib.contextmanager
    def _cursor(self) -> Any:
        """Open a cursor on the agent's connection, reconnected if it was given up, without earlier statements' state.

        AgentBench also connects anew for each statement: user variables and locks last for one statement only.
        """
        if self._connection is None:
            self._connection = connect(
                self._options,
                user=self._name,
                password=self._password,
                database=self._name,
                cursorclass=SSCursor,
                read_timeout=self._options.statement_time_s + _READ_SLACK_S,
            )
        else:
            self._connection._execute_command(_COM_RESET_CONNECTION, b"")  # noqa: SLF001 - PyMySQL has no method for it
            self._connection._read_ok_packet()  # noqa: SLF001
        cursor = self._connection.cursor()
        try:
            cursor.execute(self._session)
            yield cursor
        except ValueError:
            # Either the statement cannot be sent, or MariaDB sent an empty text for a COUNT that it gave up, and
            # closing the cursor would wait for the rest of the result.
            self._give_up()
            raise
        finally:
            if self._connection is not None:
                with contextlib.suppress(pymysql.Error):
                    cursor.close()

    @contextlib.contextmanager
    def _administrator(self) -> Any:
        with self._server.cursor() as cursor:
            yield cursor

    def _place(self, table: Table) -> str:
        return f"{quoted(self._name)}.{quoted(table.name)}"

    def _anonymous(self, text: str) -> str:
        """Replace the database's name: it is drawn for each episode, and would make no two episodes alike."""
        return text.replace(self._name, DATABASE)
