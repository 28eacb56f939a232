"""The administrator's side of a MariaDB server: connections, names, and the leftovers of dead processes."""

import atexit
import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from typing import Any, Final

import pymysql
import structlog
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from gymfleet_envs.db.options import DbOptions
from gymfleet_envs.db.tables import quoted
from gymfleet_envs.environment import EngineLost

_PREFIX: Final = "gymfleet"
"""Contains no underscore, which GRANT takes for any character."""
_MARK_CHARS: Final = 16
_TIMEOUT_S: Final = 30.0
_CONNECT_S: Final = 10.0
_MAX_PASSWORD_BYTES: Final = 4096
log = structlog.get_logger()


def connect(options: DbOptions, **given: Any) -> Connection:
    """Open a connection; `given` holds PyMySQL's own arguments. Raises `EngineLost`."""
    common = {"charset": "utf8mb4", "local_infile": False, "connect_timeout": _CONNECT_S, "write_timeout": _TIMEOUT_S}
    try:
        if options.unix_socket is None:
            return pymysql.connect(host=options.host, port=options.port, **common, **given)
        return _connect_socket(str(options.unix_socket), common | given)
    except (pymysql.Error, OSError) as error:
        raise EngineLost(f"MariaDB at {_name(options)}: {error}") from None


def _connect_socket(path: str, arguments: dict[str, Any]) -> Connection:
    """Connect through our own socket: PyMySQL does not close a socket on which nobody answers."""
    connection = pymysql.connect(unix_socket=path, ssl_disabled=True, defer_connect=True, **arguments)
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.settimeout(_CONNECT_S)
        link.connect(path)
        link.settimeout(None)
        connection.connect(link)
    except BaseException:
        link.close()
        raise
    return connection


def _name(options: DbOptions) -> str:
    return str(options.unix_socket) if options.unix_socket is not None else f"{options.host}:{options.port}"


class MariaServer:
    """A process's access to the server as administrator. Safe for several threads.

    Databases are named after their process, which holds a lock of that name as long as it lives. A starting process
    drops the databases and users of processes whose lock is free.
    """

    def __init__(self, options: DbOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._pid = 0
        self._mark = ""
        self._holder: Connection | None = None

    def new_name(self) -> str:
        """Return a name for a database and its user: unguessable, at most 64 characters. Raises `EngineLost`."""
        with self._lock:
            self._hold()
            return f"{_PREFIX}{self._mark}{secrets.token_hex(8)}"

    @contextlib.contextmanager
    def cursor(self) -> Iterator[Cursor]:
        """Open an administrator's cursor that commits each statement at once. Raises `EngineLost` for any failure."""
        with self._lock:
            idle = self._idle.pop() if self._idle and self._pid == os.getpid() else None
        connection = idle if idle is not None and _answers(idle) else self._connected()
        try:
            with connection.cursor() as cursor:
                yield cursor
        except BaseException as error:
            with contextlib.suppress(Exception):
                connection.close()
            if not isinstance(error, pymysql.Error):
                raise
            raise EngineLost(f"MariaDB at {_name(self._options)}: {error}") from None
        with self._lock:
            self._idle.append(connection)

    def sweep(self) -> int:
        """Drop what dead processes left behind; return the number of databases dropped. Raises `EngineLost`."""
        dropped = 0
        self.size("")  # an administrator who may not ask is found out before the first episode
        with self.cursor() as cursor:
            for name in self._left(cursor, "SELECT schema_name FROM information_schema.schemata"):
                cursor.execute(f"DROP DATABASE IF EXISTS {quoted(name)}")
                dropped += 1
            for name in self._left(cursor, "SELECT DISTINCT user FROM mysql.user"):
                cursor.execute("DROP USER IF EXISTS %s@'%%'", (name,))
        if dropped:
            log.info("database.swept", databases=dropped)
        return dropped

    def size(self, database: str) -> int:
        """Return the size of a database's files in bytes. Raises `EngineLost`."""
        with self.cursor() as cursor:
            query = (
                "SELECT COALESCE(SUM(file_size), 0) FROM information_schema.innodb_sys_tablespaces WHERE name LIKE %s"
            )
            cursor.execute(query, (f"{database}/%",))
            row = cursor.fetchone()
        return int(row[0]) if row is not None else 0

    def close(self) -> None:
        """Close the connections, which releases the lock."""
        with self._lock:
            for connection in (*self._idle, self._holder):
                if connection is not None and self._pid == os.getpid():
                    with contextlib.suppress(Exception):
                        connection.close()
            self._idle, self._holder = [], None

    def _left(self, cursor: Cursor, query: str) -> list[str]:
        try:
            cursor.execute(query)
        except pymysql.err.OperationalError:  # an administrator who may not read mysql.user
            return []
        names = [str(row[0]) for row in cursor.fetchall() if str(row[0]).startswith(_PREFIX)]
        left: list[str] = []
        for name in names:
            mark = name.removeprefix(_PREFIX)[:_MARK_CHARS]
            if len(name) != len(_PREFIX) + 2 * _MARK_CHARS or not set(name[len(_PREFIX) :]) <= set("0123456789abcdef"):
                continue
            cursor.execute("SELECT IS_FREE_LOCK(%s)", (_PREFIX + mark,))
            row = cursor.fetchone()
            if row is not None and row[0] == 1:
                left.append(name)
        return left

    def _hold(self) -> None:
        """Take the lock that marks this process as alive; take it again after a restart of the server."""
        if self._pid != os.getpid():  # connections do not survive a fork
            self._pid, self._holder, self._idle, self._mark = os.getpid(), None, [], secrets.token_hex(8)
        if self._holder is not None and _answers(self._holder):
            return
        self._holder = self._connected()
        try:
            with self._holder.cursor() as cursor:
                cursor.execute("SET SESSION wait_timeout = 2147483")
                cursor.execute("SELECT GET_LOCK(%s, 10)", (_PREFIX + self._mark,))
        except pymysql.Error as error:
            raise EngineLost(f"MariaDB at {_name(self._options)}: {error}") from None

    def _connected(self) -> Connection:
        return connect(
            self._options,
            user=self._options.user,
            password=_password(self._options),
            autocommit=True,
            read_timeout=_TIMEOUT_S,
        )


def _answers(connection: Connection) -> bool:
    """Whether the server is still there; if it is not, close the connection."""
    try:
        connection.ping()
    except pymysql.Error:
        with contextlib.suppress(Exception):
            connection.close()
        return False
    return True


def _password(options: DbOptions) -> str:
    if options.password_file is None:
        return ""
    try:
        with options.password_file.open("rb") as file:
            return file.read(_MAX_PASSWORD_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise EngineLost(f"db: the password file {options.password_file} cannot be read: {error}") from None


_SERVERS: Final[dict[DbOptions, MariaServer]] = {}
_SERVERS_LOCK: Final = threading.Lock()


def server_for(options: DbOptions) -> MariaServer:
    """Return the process's `MariaServer` for these options."""
    with _SERVERS_LOCK:
        if options not in _SERVERS:
            _SERVERS[options] = MariaServer(options)
            atexit.register(_SERVERS[options].close)
        return _SERVERS[options]
