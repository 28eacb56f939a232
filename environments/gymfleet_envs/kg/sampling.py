"""Questions about any graph: drawn with the program that answers them, and put into words."""

import random
from collections.abc import Callable, Mapping
from typing import Final

from gymfleet_envs.kg.graph import Graph
from gymfleet_envs.kg.program import And, Count, Extreme, Join, Program, topics
from gymfleet_envs.kg.scoring import f1
from gymfleet_envs.kg.task import KgTask, Source

LEVELS: Final = ("one_hop", "two_hops", "three_hops", "count", "superlative", "intersection")
MOST_MEMBERS: Final = 200
"""The most members of an intermediate set; larger sets make questions that nobody would ask."""
MOST_GOLD: Final = 12
LEAST_COUNTED: Final = 3
LEAST_COMPARED: Final = 5
_MOST_OVERLAP: Final = 1 / 3
"""The highest F1 of an intermediate set: that of five entities of which one is right."""
_TRIES: Final = 200


def draw(rng: random.Random, graph: Graph, level: str, source: Source) -> KgTask | None:
    """Return a question of a level; None if none was found."""
    for _ in range(_TRIES):
        program = _SHAPES[level](rng, graph)
        if program is None or not _is_fair(graph, program):
            continue
        names = _distinct_names(graph, topics(program))
        if names is not None:
            gold = graph.members(program)
            return KgTask(_question(graph, program), tuple(names.items()), gold, program, source)
    return None


def _hops(rng: random.Random, graph: Graph, number: int) -> Program | None:
    start = rng.choice(graph.entities)
    if len(graph.relations(start)) < graph.words.least_choices:
        return None
    program: Program | str = start
    for _ in range(number):
        if not (choices := _clear(graph, program)):
            return None
        program = Join(rng.choice(choices), program)
        if not 1 <= len(graph.members(program)) <= MOST_MEMBERS:
            return None
    return program if not isinstance(program, str) else None


def _clear(graph: Graph, what: Program | str) -> list[str]:
    """Return the relations whose words do not mean another relation too."""
    relations = graph.relations(what)
    words = [graph.phrase(relation) for relation in relations]
    return [relation for relation, said in zip(relations, words, strict=True) if words.count(said) == 1]


def _path(number: int) -> Callable[[random.Random, Graph], Program | None]:
    return lambda rng, graph: _hops(rng, graph, number)


def _count(rng: random.Random, graph: Graph) -> Program | None:
    base = _hops(rng, graph, rng.randint(1, 2))
    return None if base is None or len(graph.members(base)) < LEAST_COUNTED else Count(base)


def _superlative(rng: random.Random, graph: Graph) -> Program | None:
    base = _hops(rng, graph, rng.randint(1, 2))
    if base is None or len(among := graph.members(base)) < LEAST_COMPARED:
        return None
    attributes = [name for name in graph.attributes(base) if all(name in graph.facts(one).numbers for one in among)]
    if not attributes:
        return None
    program = Extreme(base, rng.choice(attributes), rng.random() < 0.5)
    return program if len(graph.members(program)) == 1 else None


def _intersection(rng: random.Random, graph: Graph) -> Program | None:
    left = _hops(rng, graph, rng.randint(1, 2))
    if left is None:
        return None
    shared = rng.choice(sorted(graph.members(left)))
    start, relation = rng.choice(graph.incoming(shared))
    if start in topics(left) or relation not in _clear(graph, start):
        return None
    right = Join(relation, start)
    return And(left, right) if _type(graph, left) == _type(graph, right) else None


_SHAPES: Final[Mapping[str, Callable[[random.Random, Graph], Program | None]]] = {
    "one_hop": _path(1),
    "two_hops": _path(2),
    "three_hops": _path(3),
    "count": _count,
    "superlative": _superlative,
    "intersection": _intersection,
}


def _type(graph: Graph, program: Program) -> str:
    return graph.range_of(program.relation) if isinstance(program, Join) else ""


def _is_fair(graph: Graph, program: Program) -> bool:
    """Return whether there is an answer, and no intermediate set comes near it."""
    gold = graph.members(program)
    if not 1 <= len(gold) <= MOST_GOLD:
        return False
    return all(f1(graph.members(step), gold) <= _MOST_OVERLAP for step in _steps(program))


def _steps(program: Program) -> list[Program]:
    """Return the sets that a program is made of, without itself."""
    match program:
        case Join(_, str()):
            return []
        case Join(_, base) | Count(base) | Extreme(base, _, _):
            return [base, *_steps(base)] if not isinstance(base, str) else []
        case And(left, right):
            return [left, right, *_steps(left), *_steps(right)]


def _distinct_names(graph: Graph, ids: frozenset[str]) -> dict[str, str] | None:
    names = {graph.words.names[one]: one for one in sorted(ids) if one in graph.words.names}
    return names if len(names) == len(ids) else None


def _question(graph: Graph, program: Program) -> str:
    match program:
        case Count(base):
            return f"Count {_said(graph, base)}."
        case Extreme(base, attribute, greatest):
            which = "greatest" if greatest else "least"
            measure = attribute.rpartition(".")[2].replace("_", " ")
            return f"Of {_said(graph, base)}, name the one with the {which} {measure}."
        case And(left, right):
            return f"Name what is both among {_said(graph, left)} and among {_said(graph, right)}."
        case Join():
            return f"Name {_said(graph, program)}."


def _said(graph: Graph, what: Program | str) -> str:
    match what:
        case str():
            return graph.words.names[what]
        case Join(relation, base):
            return graph.phrase(relation).replace("{}", _said(graph, base))
        case _:
            raise ValueError(f"{what} stands in no question's middle")
