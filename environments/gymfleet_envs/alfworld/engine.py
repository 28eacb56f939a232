"""One running game: textworld's PDDL games on fast-downward, with everything constant computed once."""

import json
import re
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gymfleet_envs.alfworld.game import Game
from gymfleet_envs.alfworld.library import Operator, PlannerPool
from gymfleet_envs.alfworld.pddl import Fact, GroundGame, ground, parse_atom
from gymfleet_envs.alfworld.textgen import Bindings, Grammar, Slot
from gymfleet_envs.tasks import TaskDataError

NOTHING_HAPPENS: Final = "Nothing happens."
_CACHED_GAMES: Final = 64
_CACHED_GRAMMARS: Final = 8
_TASK_RULE: Final = re.compile(r'("task"\s*:\s*\[\s*\{\s*"rhs"\s*:\s*)("(?:[^"\\\n]|\\.)*")')
_PLAIN_TASK: Final = re.compile(r'[^;|"<>\[\]#{}]*')
_ANY_TASK: Final = "gymfleet-task-of-this-game"
_ESCAPES: Final = (("_bar_", "|"), ("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."), ("_comma_", ","))
_POOL: Final = PlannerPool()

Facts = dict[str, set[tuple[str, ...]]]


@dataclass(frozen=True, slots=True, eq=False)
class CompiledGame:
    """The data that all episodes of one game share. `commands` fills as operators occur."""

    ground: GroundGame
    grammar: Grammar
    task: str | None
    names: Mapping[str, str]
    commands: dict[bytes, str]
    constant_templates: frozenset[str]


class Engine:
    """An episode. Not thread-safe; `close` returns the planner's copy to the pool."""

    def __init__(self, game: Game) -> None:
        self._game = compiled = compile_game(game)
        self._planner = _POOL.take()
        self._release = weakref.finalize(self, _POOL.give_back, self._planner)
        self._planner.load(compiled.ground.sas)
        self.facts: Facts = {}
        for predicate, arguments in compiled.ground.facts:
            self.facts.setdefault(predicate, set()).add(arguments)
        for atom in self._planner.atoms():
            self._set(atom, only_true=True)
        self.intro = self._text(compiled.grammar.derive_rule("intro", self))
        self.won = False
        self._look_around()

    def close(self) -> None:
        """Give the planner's copy to the next episode."""
        self._release()

    @property
    def commands(self) -> list[str]:
        """The commands possible now, sorted."""
        return sorted(self._commands)

    def step(self, command: str) -> str:
        """Execute a command that is possible now; any other command changes nothing."""
        operator = self._commands.get(command)
        if operator is None:
            return NOTHING_HAPPENS
        for atom in self._planner.apply(operator):
            self._set(atom)
        action, bindings = self._bind(operator[1])
        feedback = self._text(self._game.grammar.derive(self._game.grammar.actions[action].feedback, self, bindings))
        self._look_around()
        return feedback

    def state_key(self) -> str:
        """Return a text of all facts, equal for equal states."""
        return repr(sorted((predicate, sorted(told)) for predicate, told in self.facts.items() if told))

    def holds(self, command: str) -> bool:
        """Whether the command is possible now."""
        return command in self._commands

    def name(self, entity: str) -> str:
        """The player's name for an entity, such as `mug 1`."""
        return self._game.names.get(entity, entity)

    def matching(self, predicate: str, slots: tuple[Slot, ...], bindings: Bindings) -> list[tuple[str, ...]]:
        """Return the arguments of the facts that agree with the bindings, in order of their names."""
        bound = [(place, bindings[slot]) for place, slot in enumerate(slots) if slot in bindings]
        open_slots = [(place, kind) for place, (name, kind) in enumerate(slots) if (name, kind) not in bindings]
        ground = self._game.ground
        return sorted(
            arguments
            for arguments in self.facts.get(predicate, ())
            if len(arguments) == len(slots)
            and all(arguments[place] == entity for place, entity in bound)
            and all(kind in ground.supertypes.get(ground.types[arguments[place]], ()) for place, kind in open_slots)
        )

    def _look_around(self) -> None:
        """Update the possible commands, and whether the goal is reached."""
        self.won = self._planner.at_goal()
        commands: dict[str, Operator] = {}
        cached = self._game.commands
        for operator in self._planner.operators():
            command = cached.get(operator[1]) or self._command(operator[1])
            commands.setdefault(command, operator)
        self._commands = commands

    def _command(self, operator: bytes) -> str:
        action, bindings = self._bind(operator)
        game = self._game
        command = game.grammar.derive(game.grammar.actions[action].template, self, bindings)
        if action in game.constant_templates:
            game.commands[operator] = command
        return command

    def _bind(self, operator: bytes) -> tuple[str, Bindings]:
        action, *arguments = operator.decode().split()
        return action, dict(zip(self._game.ground.parameters[action], arguments, strict=False))

    def _set(self, atom: bytes, *, only_true: bool = False) -> None:
        """Update the facts with an atom from the planner; a false atom is recorded as `not_...`."""
        true, (predicate, arguments) = parse_atom(atom)
        if only_true and not true:
            return
        holds, fails = (predicate, f"not_{predicate}") if true else (f"not_{predicate}", predicate)
        self.facts.get(fails, set()).discard(arguments)
        self.facts.setdefault(holds, set()).add(arguments)

    def _text(self, text: str) -> str:
        return text if self._game.task is None else text.replace(_ANY_TASK, self._game.task)


@lru_cache(maxsize=_CACHED_GAMES)
def compile_game(game: Game) -> CompiledGame:
    """Ground and parse a game; the result is cached for other episodes of a group. Raises `TaskDataError`."""
    grammar_text, task = _without_task(game.grammar)
    grammar = _grammar(grammar_text)
    grounded = ground(game.domain, game.problem)
    if missing := sorted(set(grounded.parameters) - set(grammar.actions)):
        raise TaskDataError(f"the grammar has no text for the actions {', '.join(missing)}")
    constant = frozenset(
        name for name in grounded.parameters if grammar.depends_on(grammar.actions[name].template) <= grounded.static
    )
    return CompiledGame(grounded, grammar, task, demangled(grounded.facts), {}, constant)


@lru_cache(maxsize=_CACHED_GRAMMARS)
def _grammar(text: str) -> Grammar:
    return Grammar(text)


def _without_task(grammar: str) -> tuple[str, str | None]:
    """Split off the task's sentence: games differ only in it, so without it they share one parse."""
    match = _TASK_RULE.search(grammar)
    if match is None:
        return grammar, None
    try:
        task = json.loads(match[2])
    except ValueError:
        return grammar, None
    if not _PLAIN_TASK.fullmatch(task):
        return grammar, None
    return f'{grammar[: match.start()]}{match[1]}"{_ANY_TASK}"{grammar[match.end() :]}', task.replace("\\n", "\n")


def demangled(facts: Iterable[Fact]) -> dict[str, str]:
    """Return names for ids such as `mug_bar__minus_00_dot_73`: kind and number, counted as in alfworld."""
    ids = sorted({entity for _, arguments in facts for entity in arguments})
    kinds = {entity: _kind(entity) for entity in ids}
    left = Counter(kind for kind in kinds.values() if kind is not None)
    names: dict[str, str] = {}
    for entity, kind in kinds.items():
        if kind is None:
            names[entity] = f"{entity} "
            continue
        names[entity] = f"{kind} {left[kind]}"
        left[kind] -= 1
    return names


def _kind(entity: str) -> str | None:
    text = entity
    for escaped, plain in _ESCAPES:
        text = text.replace(escaped, plain)
    kind, bar, _ = text.partition("|")
    if not bar:
        return None
    return f"{kind}basin" if "basin" in entity else kind
