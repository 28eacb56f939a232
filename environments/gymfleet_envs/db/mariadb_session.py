"""MariaDB's session settings, and the watch over it while it executes an agent's statement."""

import contextlib
import socket
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import pymysql
from pymysql.connections import Connection

from gymfleet_envs.db.mariadb_server import MariaServer
from gymfleet_envs.db.options import DbOptions
from gymfleet_envs.environment import EngineLost

_LOOK_S: Final = 0.05
_SELECTED_ROWS: Final = 1000


def session_settings(options: DbOptions) -> str:
    """Return the statement to execute before each of the agent's; it leaves nothing to the server's configuration.

    AgentBench's gold answers were made without MySQL's strict mode, and some of its statements fail in it. The clock
    and the random seeds are fixed, so that the same statements return the same rows.
    """
    settings = {
        "autocommit": 0,
        "sql_mode": "'NO_ENGINE_SUBSTITUTION'",
        "max_statement_time": f"{options.statement_time_s:f}",
        "sql_select_limit": _SELECTED_ROWS,
        "tmp_memory_table_size": options.database_bytes,
        "max_heap_table_size": max(16_384, options.database_bytes),
        "tmp_disk_table_size": 4 * options.database_bytes,
        "timestamp": 1700000000,
        "rand_seed1": 1,
        "rand_seed2": 1,
    }
    listed = ", ".join(f"SESSION {name} = {value}" for name, value in settings.items())
    return f"SET NAMES utf8mb4 COLLATE utf8mb4_general_ci, {listed}"


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """Limits of a statement's time, and of the size of its database's files meanwhile."""

    time_s: float
    file_bytes: int


class Watch:
    """Stops the statement that a connection executes when it exceeds its limits.

    A statement's data is on the disk before its rows can be counted, and MariaDB does not check `max_statement_time`
    while it merges the values that a `COUNT(DISTINCT ...)` has sorted.
    """

    def __init__(self, server: MariaServer, database: str, connection: Connection, limits: WatchLimits) -> None:
        self._server = server
        self._database = database
        self._connection = connection
        self._limits = limits
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, name="mariadb-watch", daemon=True)
        self.exceeded = False
        """Whether the files had grown too large."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        deadline = time.monotonic() + self._limits.time_s
        # The statement itself notices a server that does not answer.
        with contextlib.suppress(EngineLost, pymysql.Error, OSError):
            while not self._done.wait(_LOOK_S):
                if time.monotonic() > deadline:
                    self._connection._sock.shutdown(socket.SHUT_RDWR)  # noqa: SLF001 - whoever reads finds its end
                    return
                if self._server.size(self._database) > self._limits.file_bytes:
                    self.exceeded = True
                    with self._server.cursor() as cursor:
                        cursor.execute(f"KILL QUERY {int(self._connection.thread_id())}")
                    return
