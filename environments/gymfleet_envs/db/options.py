"""Settings of the DBBench environment."""

from pathlib import Path
from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from gymfleet_envs.environment import Options


class DbOptions(Options):
    """The database, and the resources that a statement may use."""

    backend: Literal["sqlite", "mariadb"] = "sqlite"
    host: str = "127.0.0.1"
    port: PositiveInt = 3306
    unix_socket: Path | None = None
    """A socket to use instead of `host` and `port`."""
    user: str = "gymfleet"
    """A user who may create databases and users; the README lists the grants needed."""
    password_file: Path | None = None
    """A file that holds the user's password and nothing else."""
    statement_time_s: PositiveFloat = 10.0
    statement_steps: PositiveInt = 20_000_000
    """SQLite: limit in steps of its virtual machine, the same on every machine. A step takes some 20 ns."""
    value_bytes: PositiveInt = 65_536
    """SQLite: limit of one value, and of one row."""
    database_bytes: PositiveInt = 16 * 2**20
    """Limit of one episode's database: of its pages in SQLite, of the size of its rows in MariaDB."""
    memory_bytes: PositiveInt = 512 * 2**20
    """SQLite: limit of all databases and statements of a worker process together."""
    max_changed_rows: PositiveInt = 10_000
    """MariaDB: limit of the rows that one statement may insert, change or delete."""
    observation_chars: PositiveInt = 800
