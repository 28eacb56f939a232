"""The programs of variables: a small language of sets, in which nothing that an agent wrote occurs unchecked."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

FREEBASE_ID: Final = re.compile(r"[mfg]\.[A-Za-z0-9_]{1,64}")
"""Freebase's machine ids."""
RELATION: Final = re.compile(r"[A-Za-z0-9_.%+~-]{1,256}")
"""Relations and attributes: only characters of URIs, so that a name cannot break out of SPARQL or of a call."""
MOST_PARTS: Final = 64
"""A larger program is refused: intersecting a variable with itself would double it each time."""
NUMBER_TYPE: Final = "type.int"


@dataclass(frozen=True, slots=True)
class Join:
    """The entities that `relation` leads to from `base`, an entity's id or a set."""

    relation: str
    base: "Program | str"


@dataclass(frozen=True, slots=True)
class And:
    """The entities that are in both sets."""

    left: "Program"
    right: "Program"


@dataclass(frozen=True, slots=True)
class Count:
    """The number of the set's members."""

    base: "Program"


@dataclass(frozen=True, slots=True)
class Extreme:
    """The members with the greatest value of an attribute, or with the least."""

    base: "Program"
    attribute: str
    greatest: bool


Program: TypeAlias = Join | And | Count | Extreme


@dataclass(frozen=True, slots=True)
class Variable:
    """The result of a call: `#0` is the first of a session's variables."""

    type: str
    """The type of its members; `type.int` is a number."""
    program: Program


def topics(program: Program | str) -> frozenset[str]:
    """Return the entities that a program names. They are never among its members, as AgentBench filters them out."""
    match program:
        case str():
            return frozenset((program,))
        case And(left, right):
            return topics(left) | topics(right)
        case Join(_, base):
            return topics(base)
        case Count(base) | Extreme(base, _, _):
            return topics(base)


def parts(program: Program | str) -> int:
    """Return the number of operations in a program."""
    match program:
        case str():
            return 0
        case And(left, right):
            return 1 + parts(left) + parts(right)
        case Join(_, base):
            return 1 + parts(base)
        case Count(base) | Extreme(base, _, _):
            return 1 + parts(base)


def program_of(calls: Sequence[tuple[str, tuple[str, ...]]], ids: Mapping[str, str]) -> Program:
    """Return the program of the last variable of a list of calls; entities may be given by the names in `ids`.

    Raises ValueError for calls that no session could make.
    """
    made: list[Program] = []
    for name, given in calls:
        if name in ("get_relations", "get_attributes"):
            continue
        made.append(_made(name, given, made, ids))
        if parts(made[-1]) > MOST_PARTS:
            raise ValueError("the calls lead too far")
    if not made:
        raise ValueError("no call makes a variable")
    return made[-1]


def _made(name: str, given: tuple[str, ...], made: Sequence[Program], ids: Mapping[str, str]) -> Program:
    match name, given:
        case "get_neighbors", (what, relation):
            return Join(relation, _known(what, made) if what.startswith("#") else ids.get(what, what))
        case "intersection", (left, right):
            return And(_known(left, made), _known(right, made))
        case "count", (what,):
            return Count(_known(what, made))
        case (("argmax" | "argmin"), (what, attribute)):
            return Extreme(_known(what, made), attribute, name == "argmax")
        case _:
            raise ValueError(f"{name} with {len(given)} arguments is no call")


def _known(argument: str, made: Sequence[Program]) -> Program:
    number = argument.removeprefix("#")
    if not (argument.startswith("#") and number.isascii() and number.isdecimal()) or int(number) >= len(made):
        raise ValueError(f"{argument!r} is no variable")
    return made[int(number)]
