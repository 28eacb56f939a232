"""What an episode asks of its database, whichever it is."""

from typing import Any, Final, Protocol, Self

VERBS: Final = frozenset(
    ("select", "with", "values", "insert", "replace", "update", "delete", "show", "describe", "desc")
)
NO_OPS: Final = frozenset(("begin", "start", "commit", "rollback", "use"))
"""Each statement is committed as it is executed, in the one database that there is: these change nothing."""
DATABASE: Final = "dbbench"
"""What the database is called in what an agent sees."""
TRUNCATED: Final = "[TRUNCATED]"


class Refused(Exception):
    """The statement is none that is executed here; the message is the observation."""


class Database(Protocol):
    """An episode's own database. Calls are made one at a time, from one thread after another."""

    def execute(self, sql: str) -> str:
        """One statement: its rows, or the error, as text. Raises `Refused`, `EngineLost`."""

    def state(self) -> list[list[tuple[Any, ...]]]:
        """The rows of the task's tables. Raises `EngineLost`."""

    def copy(self) -> Self:
        """Another database in the same state. Raises `EngineLost`."""

    def close(self) -> None:
        """Let go of it all."""


def shown(rows: list[tuple[Any, ...]], max_chars: int) -> str:
    """Rows as Python prints a list of tuples, which is how DBBench shows them."""
    return clipped(str(rows), max_chars)


def clipped(text: str, max_chars: int) -> str:
    """DBBench's cut."""
    return text[:max_chars] + TRUNCATED if len(text) > max_chars else text
