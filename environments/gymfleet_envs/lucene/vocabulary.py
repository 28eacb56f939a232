"""The vocabulary of an index on disk: a table of a SQLite database, with the recent terms in memory."""

import sqlite3
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

SCHEMA: Final = "CREATE TABLE terms (term TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;"
_RECENT_TERMS: Final = 65_536


class DiskVocabulary:
    """The numbers of the terms in a database's table."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self.get = lru_cache(maxsize=_RECENT_TERMS)(self._read)

    def _read(self, term: str) -> int | None:
        row = self._database.execute("SELECT number FROM terms WHERE term = ?", (term,)).fetchone()
        return None if row is None else int(row[0])


def write_vocabulary(database: sqlite3.Connection, vocabulary: Mapping[str, int]) -> None:
    """Fill the table that `SCHEMA` makes."""
    database.executemany("INSERT INTO terms VALUES (?, ?)", sorted(vocabulary.items()))
