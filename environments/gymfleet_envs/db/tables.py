"""Tables, and the digest of their state, by which DBBench scores changes."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

MAX_NAME_CHARS: Final = 64
_GROUP_CONCAT_CHARS: Final = 1024


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts: every column is TEXT, as in DBBench."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def quoted(name: str) -> str:
    """Quote an identifier for both SQLite and MySQL."""
    return "`" + name.replace("`", "``") + "`"


def fit_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return names that every database takes: not empty, no trailing spaces, at most 64 characters, distinct.

    MySQL refuses other names, so a published table with such a column name cannot be set up as it is.
    """
    fit: list[str] = []
    taken: set[str] = set()
    for place, name in enumerate(names, start=1):
        base = name.rstrip()[:MAX_NAME_CHARS].rstrip() or f"column_{place}"
        new, number = base, 2
        while new.lower() in taken:
            new, number = f"{base[: MAX_NAME_CHARS - 4]}_{number}", number + 1
        taken.add(new.lower())
        fit.append(new)
    return tuple(fit)


def state_digest(tables: Sequence[Iterable[Sequence[Any]]], *, cut: bool = False) -> str:
    """Return the md5 of the rows' digests, sorted; for several tables, their md5s joined.

    DBBench asks the database for
    `md5(group_concat(rowhash order by rowhash))` with `rowhash = substring(md5(concat_ws(',', columns)), 1, 5)`.

    Args:
        tables: the rows of each table, NULL as None.
        cut: cut the joined digests like MySQL's default of `group_concat_max_len` = 1024, for more than 170 rows.
    """
    return "_".join(sorted(_table_digest(rows, cut) for rows in tables))


def _table_digest(rows: Iterable[Sequence[Any]], cut: bool) -> str:
    texts = (",".join(str(value) for value in row if value is not None) for row in rows)
    digests = sorted(_md5(text)[:5] for text in texts)
    if not digests:
        return "None"  # NULL: there is nothing to concatenate
    joined = ",".join(digests)
    return _md5(joined[:_GROUP_CONCAT_CHARS] if cut else joined)


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(errors="replace"), usedforsecurity=False).hexdigest()
