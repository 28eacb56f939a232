"""What a DBBench task holds."""

from dataclasses import dataclass

from gymfleet_envs.db.tables import Table


@dataclass(frozen=True, slots=True)
class DbTask:
    """A question about tables, or an order to change them.

    `answers` are right for a SELECT; for the other kinds `state` is the digest that the tables must come to.
    """

    prompt: str
    kind: str
    tables: tuple[Table, ...]
    gold_sql: str
    answers: tuple[str, ...] = ()
    state: str = ""

    @property
    def changes(self) -> bool:
        """Whether the state of the tables is scored, and not the answer."""
        return self.kind in ("INSERT", "UPDATE", "DELETE")
