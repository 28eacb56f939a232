"""The data of a KG task."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from gymfleet_envs.kg.program import Program


@dataclass(frozen=True, slots=True)
class Freebase:
    """The endpoint, with the ontology of its relations from AgentBench's files in a directory."""

    data: Path


Source: TypeAlias = int | Path | Freebase
"""The graph of a question: the number of a generated world, a directory of triples, or the endpoint."""


@dataclass(frozen=True, slots=True)
class KgTask:
    """A question about a knowledge graph."""

    question: str
    entities: tuple[tuple[str, str], ...]
    """The names that the question shows, and the entities they stand for."""
    gold: frozenset[str]
    """Ids of entities, or a number as text. Never empty."""
    program: Program | None
    """The program of the gold answer; None if the published calls are not playable."""
    source: Source

    @property
    def prompt(self) -> str:
        """Return question and entities in AgentBench's words."""
        return f"{self.question}\nEntities: [{', '.join(name for name, _ in self.entities)}]"
