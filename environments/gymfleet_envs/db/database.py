"""The interface of an episode's database, whichever backend it has."""

from typing import Any, Final, Protocol, Self

VERBS: Final = frozenset(
    ("select", "with", "values", "insert", "replace", "update", "delete", "show", "describe", "desc")
)
NO_OPS: Final = frozenset(("begin", "start", "commit", "rollback", "use"))
"""Statements that change nothing: each statement is committed when it is executed, and there is only one database."""
DATABASE: Final = "dbbench"
"""The name under which an agent sees the database."""
TRUNCATED: Final = "[TRUNCATED]"


class Refused(Exception):
    """The statement is of a kind that is not executed here; the message is the observation."""


class Database(Protocol):
    """An episode's own database. Calls come one at a time, but may come from different threads."""

    def execute(self, sql: str) -> str:
        """Execute one statement; return its rows, or the error, as text. Raises `Refused`, `EngineLost`."""

    def state(self) -> list[list[tuple[Any, ...]]]:
        """The rows of the task's tables. Raises `EngineLost`."""

    def copy(self) -> Self:
        """Return another database in the same state. Raises `EngineLost`."""

    def close(self) -> None:
        """Release all resources."""


def shown(rows: list[tuple[Any, ...]], max_chars: int) -> str:
    """Format rows as Python prints a list of tuples, which is DBBench's form."""
    return clipped(str(rows), max_chars)


def clipped(text: str, max_chars: int) -> str:
    """Cut a text as DBBench does."""
    return text[:max_chars] + TRUNCATED if len(text) > max_chars else text
