"""The interface of a knowledge base, wherever it is."""

from typing import Protocol

from gymfleet_envs.kg.program import Program


class KnowledgeBase(Protocol):
    """A graph in this process, or behind a SPARQL endpoint. Relations and attributes come sorted."""

    def is_entity(self, text: str) -> bool:
        """Return whether a text is the id of an entity, or may be one."""

    def relations(self, what: Program | str) -> tuple[str, ...]:
        """Return the relations that lead on from a set's members, or from an entity."""

    def attributes(self, what: Program) -> tuple[str, ...]:
        """Return the numerical attributes that members of a set have."""

    def range_of(self, relation: str) -> str:
        """Return the type of the entities that a relation leads to."""

    def members(self, program: Program) -> frozenset[str] | None:
        """Return a set's members without the entities that it was made from; None if there are too many."""
