"""Settings of the DBBench environment."""

from pathlib import Path
from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from gymfleet_envs.environment import Options


class DbOptions(Options):
    """Which database, and what a statement may use up."""

    backend: Literal["sqlite", "mariadb"] = "sqlite"
    host: str = "127.0.0.1"
    port: PositiveInt = 3306
    unix_socket: Path | None = None
    """Instead of host and port."""
    user: str = "gymfleet"
    """May make databases and users; the grants that it needs are in the README."""
    password_file: Path | None = None
    """A file that holds the user's password and nothing else."""
    statement_time_s: PositiveFloat = 10.0
    statement_steps: PositiveInt = 20_000_000
    """SQLite: steps of its virtual machine, the same on every machine. A step takes some 20 ns."""
    value_bytes: PositiveInt = 65_536
    """SQLite: one value, and one row."""
    database_bytes: PositiveInt = 16 * 2**20
    """One episode's database: SQLite's pages, what the rows in MariaDB come to."""
    memory_bytes: PositiveInt = 512 * 2**20
    """SQLite: all databases and statements of a worker process together."""
    max_changed_rows: PositiveInt = 10_000
    """MariaDB: rows that one statement may insert, change or delete."""
    observation_chars: PositiveInt = 800
