"""A graph in a pyoxigraph store of this process: read-only, and shared by all sessions that query it."""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from pyoxigraph import Literal, NamedNode, Quad, Store

from gymfleet_envs.kg.program import FREEBASE_ID, And, Count, Extreme, Join, Program, topics

UNTYPED: Final = "common.topic"
"""The type of the entities that a relation leads to, if the graph has no types."""
_NAMESPACE: Final = "urn:gymfleet:kg:"
_KEPT_FACTS: Final = 50_000
_KEPT_SETS: Final = 2_000
_NO_WORD: Final = re.compile(r"[^\w.+~-]")
_INTEGER: Final = NamedNode("http://www.w3.org/2001/XMLSchema#integer")


@dataclass(frozen=True, slots=True)
class Words:
    """The words for a graph's parts."""

    names: Mapping[str, str]
    """The names of entities, by id: questions are about these only."""
    phrases: Mapping[str, str]
    """Phrases for relations, with `{}` for the starting point; other relations are named by their last part."""
    ranges: Mapping[str, str]
    """The types of the entities that relations lead to."""
    least_choices: int = 1
    """The fewest relations of an entity that a question begins with, so that a blind choice is seldom right."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The graph's facts about an entity."""

    links: Mapping[str, frozenset[str]]
    numbers: Mapping[str, tuple[int, ...]]


class Graph:
    """Sets of entities by the programs that make them."""

    def __init__(self, store: Store, words: Words) -> None:
        self._store = store
        self.words = words
        self.entities = tuple(sorted(words.names))
        # Bounded, because a graph may be larger than a process should hold; `everything` includes the topics.
        self.facts = lru_cache(_KEPT_FACTS)(self._facts)
        self.everything = lru_cache(_KEPT_SETS)(self._evaluated)
        self.relations = lru_cache(_KEPT_SETS)(self._relations)
        self.attributes = lru_cache(_KEPT_SETS)(self._attributes)
        self.phrase = lru_cache(_KEPT_SETS)(self._phrase)

    def is_entity(self, text: str) -> bool:
        """Return whether a text has the form of Freebase's ids, or is the id of an entity of this graph."""
        return FREEBASE_ID.fullmatch(text) is not None or text in self.words.names

    def range_of(self, relation: str) -> str:
        """Return the type of the entities that a relation leads to."""
        return self.words.ranges.get(relation, UNTYPED)

    def members(self, program: Program) -> frozenset[str]:
        """Return a set's members without the entities that it was made from."""
        return self.everything(program) - topics(program)

    def incoming(self, entity: str) -> list[tuple[str, str]]:
        """Return the entities and relations that lead to an entity, sorted."""
        quads = self._store.quads_for_pattern(None, None, node(entity), None)
        return sorted((_id(quad.subject), _id(quad.predicate)) for quad in quads)

    def _phrase(self, relation: str) -> str:
        """Return a relation in words, with `{}` for its starting point."""
        if (known := self.words.phrases.get(relation)) is not None:
            return known
        words = relation.rstrip(".").rpartition(".")[2].strip("_").replace("_", " ")
        return f"the {words or relation} of {{}}"

    def _facts(self, entity: str) -> Facts:
        links: dict[str, set[str]] = {}
        numbers: dict[str, list[int]] = {}
        for quad in self._store.quads_for_pattern(node(entity), None, None, None):
            if isinstance(quad.object, Literal):
                numbers.setdefault(_id(quad.predicate), []).append(int(quad.object.value))
            else:
                links.setdefault(_id(quad.predicate), set()).add(_id(quad.object))
        return Facts(
            {name: frozenset(found) for name, found in links.items()},
            {name: tuple(found) for name, found in numbers.items()},
        )

    def _evaluated(self, program: Program) -> frozenset[str]:
        match program:
            case Join(relation, str() as entity):
                return self.facts(entity).links.get(relation, frozenset())
            case Join(relation, base):
                return frozenset().union(*(self.facts(one).links.get(relation, ()) for one in self.everything(base)))
            case And(left, right):
                return self.everything(left) & self.everything(right)
            case Count(base):
                return frozenset((str(len(self.members(base))),))
            case Extreme(base, attribute, greatest):
                return self._extreme(base, attribute, greatest=greatest)

    def _extreme(self, base: Program, attribute: str, *, greatest: bool) -> frozenset[str]:
        values = {one: self.facts(one).numbers.get(attribute, ()) for one in self.members(base)}
        every = [value for found in values.values() for value in found]
        if not every:
            return frozenset()
        best = max(every) if greatest else min(every)
        return frozenset(one for one, found in values.items() if best in found)

    def _relations(self, what: Program | str) -> tuple[str, ...]:
        return tuple(sorted({name for one in self._asked(what) for name in self.facts(one).links}))

    def _attributes(self, what: Program | str) -> tuple[str, ...]:
        return tuple(sorted({name for one in self._asked(what) for name in self.facts(one).numbers}))

    def _asked(self, what: Program | str) -> Iterable[str]:
        if isinstance(what, str):
            return (what,)
        return () if isinstance(what, Count) else self.members(what)


def identifier(text: str) -> str:
    """Return the form of a name from the data in calls and in the store: `film.film.genre` for `/film/film/genre`.

    Letters of any script stay as they are, so that relations can be read; commas, brackets and blanks do not.
    """
    if text.startswith("/"):
        text = text[1:].replace("./", "..").replace("/", ".")
    return _NO_WORD.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    sign = found[0]
    if unicodedata.category(sign).startswith("M") and sign < "\U000e0000":  # an accent or a vowel sign
        return sign
    return "_" if sign == " " else quote(sign, safe="")


def node(name: str) -> NamedNode:
    """Return the node of an entity, a relation or an attribute."""
    return NamedNode(_NAMESPACE + name)


def link(subject: str, relation: str, other: str) -> Quad:
    """Return the statement that a relation leads from one entity to another."""
    return Quad(node(subject), node(relation), node(other))


def number(subject: str, attribute: str, value: int) -> Quad:
    """Return the statement that an entity has a number."""
    return Quad(node(subject), node(attribute), Literal(str(value), datatype=_INTEGER))


def _id(term: object) -> str:
    return str(getattr(term, "value", "")).removeprefix(_NAMESPACE)
