"""DBBench's tables in MariaDB: a database and a user of its own for every episode."""

import contextlib
import secrets
from collections.abc import Sequence
from typing import Any, Final, Self

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor, SSCursor

from gymfleet_envs.db.database import DATABASE, NO_OPS, VERBS, Refused, clipped, shown
from gymfleet_envs.db.mariadb_server import MariaServer, connect
from gymfleet_envs.db.options import DbOptions
from gymfleet_envs.db.tables import Table, quoted
from gymfleet_envs.runtime.environment import EngineLost
from gymfleet_envs.runtime.sql_text import UnfitStatement, one_statement, tokens

_GRANTED: Final = "SELECT, INSERT, UPDATE, DELETE"
_SHOWN: Final = frozenset(("tables", "columns", "fields", "full", "create", "index", "databases"))
_LOST: Final = (2006, 2013, 2014, 2055, 0)
"""Client errors that leave no connection: the server went away, or the client gave up waiting."""
_READ_SLACK_S: Final = 5.0
_MAX_STATE_ROWS: Final = 1_000_000


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
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise

    def execute(self, sql: str) -> str:
        """As it stands, for MariaDB speaks MySQL's dialect."""
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
        return self._anonymous(self._run(sql))

    def state(self) -> list[list[tuple[Any, ...]]]:
        """Read by the administrator: the agent's connection may be gone."""
        with self._administrator() as cursor:
            found = []
            for table in self._tables:
                cursor.execute(f"SELECT * FROM {self._place(table)} LIMIT {_MAX_STATE_ROWS}")  # noqa: S608 - quoted
                found.append(list(cursor.fetchall()))
            return found

    def copy(self) -> Self:
        """Another database with the same rows."""
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
            # The name is ours, of hexadecimal digits; a statement about users takes no parameters everywhere.
            cursor.execute(f"CREATE USER '{self._name}'@'%' IDENTIFIED BY '{self._password}'")
            cursor.execute(f"GRANT {_GRANTED} ON {quoted(self._name)}.* TO '{self._name}'@'%'")
        with self._cursor() as cursor:
            cursor.execute("SHOW DATABASES")
            if others := {str(row[0]) for row in cursor.fetchall()} - {self._name, "information_schema"}:
                raise EngineLost(f"the database server lets every user into {sorted(others)}: drop what is open to all")

    def _run(self, sql: str) -> str:
        limit = self._options.observation_chars
        try:
            with self._cursor() as cursor:
                # Clock and dice stand still, so that the same statements give the same rows.
                cursor.execute("SET timestamp = 1700000000, rand_seed1 = 1, rand_seed2 = 1")
                cursor.execute(sql)
                if cursor.description is None:
                    return self._changed(cursor)
                rows = self._some_rows(cursor, 4 * limit)
        except pymysql.Error as error:
            return clipped(self._failed(error), limit)
        except (UnicodeError, ValueError) as error:
            return clipped(str(error), limit)
        return shown(rows, limit)

    def _changed(self, cursor: Cursor) -> str:
        connection = cursor.connection
        if cursor.rowcount > self._options.max_changed_rows:
            connection.rollback()
            return f"one statement may change at most {self._options.max_changed_rows} rows"
        connection.commit()
        return "[]"

    def _some_rows(self, cursor: Cursor, max_chars: int) -> list[tuple[Any, ...]]:
        """Rows until there are more than can be shown; then the connection is given up, for it would send them all."""
        rows: list[tuple[Any, ...]] = []
        num_chars = 0
        while (row := cursor.fetchone()) is not None:
            rows.append(row)
            num_chars += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
            if num_chars > max_chars:
                self._give_up()
                break
        return rows

    def _failed(self, error: pymysql.Error) -> str:
        """What the agent sees of an error. Raises `EngineLost` when it was the server that failed."""
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
        """End the connection and what the server still does for it."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        thread = int(connection.thread_id())
        # `close`, and a result that was not read to its end, would wait for all that the server still sends.
        if (result := connection._result) is not None:  # noqa: SLF001
            result.unbuffered_active = False
        connection._force_close()  # noqa: SLF001
        with contextlib.suppress(EngineLost, pymysql.Error), self._administrator() as cursor:
            cursor.execute(f"KILL CONNECTION {thread}")

    @contextlib.contextmanager
    def _cursor(self) -> Any:
        """The agent's connection, made anew when it was given up."""
        if self._connection is None:
            limit_s = self._options.statement_time_s
            self._connection = connect(
                self._options,
                user=self._name,
                password=self._password,
                database=self._name,
                cursorclass=SSCursor,
                read_timeout=limit_s + _READ_SLACK_S,
                init_command=f"SET max_statement_time = {limit_s:f}, sql_select_limit = 1000",
            )
        cursor = self._connection.cursor()
        try:
            yield cursor
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
        """Names that are drawn for each episode would make no two alike."""
        return text.replace(self._name, DATABASE)
