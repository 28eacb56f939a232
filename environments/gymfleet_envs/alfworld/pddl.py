"""A game's PDDL: checked, then grounded by fast-downward's translator, once per game."""

import contextlib
import io
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fast_downward.interface import pddl2sas

from gymfleet_envs.tasks import TaskDataError

_ARGV: Final = ["translate.py", "domain", "task"]
_argv, sys.argv = sys.argv, _ARGV  # the translator parses the command line when it is imported
try:
    from fast_downward.translate.pddl.conditions import Atom
    from fast_downward.translate.pddl_parser import lisp_parser, parsing_functions
finally:
    sys.argv = _argv

_TOKEN: Final = re.compile(r"[()]|[^\s()]+")
_COMMENT: Final = re.compile(r";[^\n]*")
_MAX_TOKENS: Final = 400_000
_MAX_DEPTH: Final = 60
_MAX_OBJECTS: Final = 1_500
_MAX_PARAMETERS: Final = 8
_MAX_OPERATOR_CHARS: Final = 1_000
_ATOM: Final = re.compile(rb"(Negated)?Atom ([^\s(]+)\((.*)\)")

Fact = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class GroundGame:
    """The parts of the PDDL that the engine needs. Names are in lower case, as in the translator.

    `types` has the type of each object; `supertypes` has, for each type, itself and all types above it; `parameters`
    has the name and type of each parameter of each action; `static` has the predicates that no action changes.
    """

    sas: bytes
    types: Mapping[str, str]
    supertypes: Mapping[str, frozenset[str]]
    parameters: Mapping[str, tuple[tuple[str, str], ...]]
    facts: tuple[Fact, ...]
    static: frozenset[str]


def check_pddl(domain: str, problem: str) -> None:
    """Check a domain and a problem, in milliseconds, because nothing is grounded. Raises `TaskDataError`."""
    with _translator():
        _parse(domain, problem)


def ground(domain: str, problem: str) -> GroundGame:
    """Ground a game. Raises `TaskDataError`."""
    with _translator():
        _parse(domain, problem)
        task, sas = pddl2sas(domain, problem)
        return GroundGame(
            sas=sas.encode(),
            types={item.name: item.type_name for item in task.objects},
            supertypes={item.name: frozenset((item.name, *item.supertype_names)) for item in task.types},
            parameters={
                action.name: tuple((item.name.removeprefix("?"), item.type_name) for item in action.parameters)
                for action in task.actions
            },
            facts=tuple(
                (atom.predicate, tuple(atom.args))
                for atom in task.init
                if isinstance(atom, Atom) and atom.predicate != "="
            ),
            static=frozenset(item.name for item in task.predicates)
            - {effect.literal.predicate for action in task.actions for effect in action.effects},
        )


def parse_atom(atom: bytes) -> tuple[bool, Fact]:
    """Return whether the atom is true, and its fact."""
    match = _ATOM.fullmatch(atom)
    if match is None:
        raise ValueError(f"the planner named an unreadable atom: {atom[:200]!r}")
    name, arguments = match[2].decode(), match[3].decode()
    return match[1] is None, (name, tuple(arguments.split(", ")) if arguments else ())


def _parse(domain: str, problem: str) -> Any:
    """Return the translator's task, with bounds checked: the planner writes names into buffers of fixed size."""
    for what, text in (("domain", domain), ("problem", problem)):
        _check_text(what, text)
    task = parsing_functions.parse_task(*(lisp_parser.parse_nested_list(t.split("\n")) for t in (domain, problem)))
    if len(task.objects) > _MAX_OBJECTS:
        raise ValueError(f"it has {len(task.objects)} objects; {_MAX_OBJECTS} is the limit")
    longest = max((len(item.name) for item in task.objects), default=0)
    for action in task.actions:
        if len(action.parameters) > _MAX_PARAMETERS:
            raise ValueError(f"action {action.name} has {len(action.parameters)} parameters; at most {_MAX_PARAMETERS}")
        if len(action.name) + len(action.parameters) * (longest + 1) > _MAX_OPERATOR_CHARS:
            raise ValueError(f"names of {longest} characters are too long for action {action.name}")
    for predicate in task.predicates:
        if len(predicate.name) + len(predicate.arguments) * (longest + 2) > _MAX_OPERATOR_CHARS:
            raise ValueError(f"names of {longest} characters are too long for predicate {predicate.name}")
    _check_facts(task)
    return task


def _check_facts(task: Any) -> None:
    """Refuse impossible facts: the translator accepts any fact, but an impossible one is a sign of damage."""
    objects = {item.name for item in task.objects}
    arities = {item.name: len(item.arguments) for item in task.predicates}
    for fact in task.init:
        if not isinstance(fact, Atom) or fact.predicate == "=":
            continue
        if arities.get(fact.predicate) != len(fact.args):
            raise ValueError(f"the fact {fact.predicate} with {len(fact.args)} arguments is not declared")
        if unknown := set(fact.args) - objects:
            raise ValueError(f"the fact {fact.predicate} names {min(unknown)}, which is no object")


def _check_text(what: str, text: str) -> None:
    if not text.isascii():
        raise ValueError(f"the {what} has other than ASCII characters")
    depth = num_tokens = 0
    for token in _TOKEN.finditer(_COMMENT.sub("", text)):
        num_tokens += 1
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth < 0 or depth > _MAX_DEPTH:
            raise ValueError(f"the {what}'s parentheses do not match, or are nested deeper than {_MAX_DEPTH}")
        if num_tokens > _MAX_TOKENS:
            raise ValueError(f"the {what} has more than {_MAX_TOKENS} words")
    if depth or not num_tokens:
        raise ValueError(f"the {what} is empty or ends in the middle")


@contextlib.contextmanager
def _translator() -> Iterator[None]:
    """Contain the translator's side effects: it prints, sets `sys.argv`, asserts, and exits on a fault."""
    argv = sys.argv
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except TaskDataError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - asserts and exits are its way to refuse a file
        raise TaskDataError(f"the PDDL cannot be played: {type(error).__name__}: {str(error)[:300]}") from None
    finally:
        sys.argv = argv
