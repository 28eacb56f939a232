"""The data of a DBBench task."""

from dataclasses import dataclass

from gymfleet_envs.db.tables import Table


@dataclass(frozen=True, slots=True)
class DbTask:
    """A question about tables, or an order to change them.

    `answers` are the right answers to a SELECT; for the other kinds, `state` is the digest that the tables must have.
    """

    prompt: str
    kind: str
    tables: tuple[Table, ...]
    gold_sql: str
    answers: tuple[str, ...] = ()
    state: str = ""

    @property
    def changes(self) -> bool:
        """Whether the state of the tables is scored instead of the answer."""
        return self.kind in ("INSERT", "UPDATE", "DELETE")
