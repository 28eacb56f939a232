"""A game from TextWorld's JSON, checked before anything plays it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from gymfleet_envs.tasks import TaskDataError
from gymfleet_envs.textworld.logic import Fact, Index, Logic, indexed
from gymfleet_envs.textworld.markup import Description, NotUnderstood, parse, quoted

_VERSION: Final = 1
_MOST: Final = {"world": 5_000, "infos": 2_000, "quests": 200}
_MOST_CHARS: Final = 20_000
_MOST_COMMANDS: Final = 500
_ID: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,40}")
_NAME: Final = re.compile(r"[^\[\]{}\x00-\x1f]{1,100}")
_MOST_REWARD: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Entity:
    """A room or a thing."""

    id: str
    kind: str
    name: str
    definite: str
    indefinite: str
    description: Description


@dataclass(frozen=True, slots=True)
class Quest:
    """A quest, which is worth points or loses the game."""

    reward: int
    optional: bool
    wins: tuple[frozenset[Fact], ...]
    fails: tuple[frozenset[Fact], ...]


@dataclass(frozen=True, eq=False)
class Game:
    """A game at its beginning, equal only to itself. Whatever depends only on the game is computed once."""

    logic: Logic
    facts: frozenset[Fact]
    entities: Mapping[str, Entity]
    quests: tuple[Quest, ...]
    objective: str
    walkthrough: tuple[str, ...]

    @cached_property
    def types(self) -> Mapping[str, str]:
        """The type of each id."""
        return {entity.id: entity.kind for entity in self.entities.values()}

    @cached_property
    def names(self) -> Mapping[str, str]:
        """The name of each thing in a command."""
        return {entity.id: entity.name for entity in self.entities.values()}

    @cached_property
    def changing(self) -> frozenset[Fact]:
        """The facts that actions change."""
        return frozenset(fact for fact in self.facts if fact[0] in self.logic.changing)

    @cached_property
    def fixed(self) -> Index:
        """The other facts, sorted."""
        return indexed(sorted(fact for fact in self.facts if fact[0] not in self.logic.changing))

    @cached_property
    def written(self) -> Sequence[str]:
        """All things in the order in which Inform 7 writes them down: room by room, each with its initial contents."""
        inside = indexed(sorted(fact for fact in self.facts if fact[0] in ("at", "in", "on")))
        ordered: list[str] = []

        def write(place: str) -> None:
            held = {fact[1] for name in ("at", "in", "on") for fact in inside.get((name, 2, place), ())}
            for entity in self.entities:
                if entity in held and entity not in ordered:
                    ordered.append(entity)
                    write("I" if entity == "P" else entity)

        for entity in self.entities.values():
            if entity.kind == "r":
                write(entity.id)
        return (*ordered, *(entity for entity in self.entities if entity not in ordered))

    @cached_property
    def max_score(self) -> int:
        """The sum of all rewards, as Inform 7's `maximum score`."""
        return sum(quest.reward for quest in self.quests if not quest.optional or quest.reward > 0)

    def is_a(self, entity: str, kind: str) -> bool:
        """Return whether a thing is of a type, or of a type derived from it."""
        return kind in self.logic.kinds[self.types[entity]]


def read_game(data: Mapping[str, Any], logic: Logic) -> Game:
    """Read a game with the rules `logic` from TextWorld's JSON. Raises `TaskDataError` with the fault."""
    if data.get("version", _VERSION) != _VERSION:
        raise TaskDataError(f"its version is {data.get('version')!r}; {_VERSION} can be read")
    kinds = _kinds(_list(data, "infos"), logic)
    facts = [_fact(fact, kinds, logic) for fact in _list(data, "world")]
    for fact in facts:
        for entity in fact[1:]:
            if entity not in kinds:
                raise TaskDataError(f"the fact {' '.join(fact)} is about {entity!r}, which 'infos' lacks")
    if sum(fact[:2] == ("at", "P") for fact in facts) != 1:
        raise TaskDataError("the player must be in one room")
    entities = {info[1]["id"]: _entity(info[1], kinds) for info in data["infos"]}
    metadata = data.get("metadata")
    walkthrough = metadata.get("walkthrough") if isinstance(metadata, Mapping) else None
    game = Game(
        logic,
        frozenset(facts),
        entities,
        tuple(_quest(quest, kinds, logic) for quest in _list(data, "quests")),
        quoted(_text(data.get("objective") or "", "objective")),
        _commands(walkthrough or []),
    )
    if not any(quest.wins and not quest.optional for quest in game.quests):
        raise TaskDataError("no quest of it can be won")
    if game.max_score <= 0:
        raise TaskDataError("its quests give no points")
    return game


def _list(data: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = data.get(key)
    if not isinstance(value, list):
        raise TaskDataError(f"{key!r} must be a list")
    if len(value) > _MOST[key]:
        raise TaskDataError(f"{key!r} has {len(value)} entries; {_MOST[key]} is the limit")
    return value


def _kinds(infos: Sequence[Any], logic: Logic) -> dict[str, str]:
    kinds: dict[str, str] = {}
    for info in infos:
        match info:
            case [str(), {"id": str(entity), "type": str(kind)}] if _ID.fullmatch(entity):
                if kind not in logic.kinds:
                    raise TaskDataError(f"{entity} is of the type {kind[:40]!r}, which its rules lack")
                kinds[entity] = kind
            case _:
                raise TaskDataError("each entry of 'infos' must be [id, {id, type, name, desc, ...}]")
    if kinds.get("P") != "P" or kinds.get("I") != "I":
        raise TaskDataError("'infos' must have the player 'P' and the inventory 'I'")
    return kinds


def _fact(data: Any, kinds: Mapping[str, str], logic: Logic) -> Fact:
    match data:
        case {"name": str(name), "arguments": list(arguments)} if len(name) <= 100 and len(arguments) <= 10:
            pass
        case _:
            raise TaskDataError("each fact must be {name, arguments}")
    ids = []
    for argument in arguments:
        match argument:
            case {"name": str(entity), "type": str(kind)} if kinds.get(entity) == kind and kind in logic.kinds:
                ids.append(entity)
            case _:
                raise TaskDataError(f"a fact {name!r} is about something that 'infos' lacks")
    if len(ids) != logic.arities.get(name, len(ids)):
        raise TaskDataError(
            f"a fact {name!r} is about {len(ids)} things; in its rules it is about {logic.arities[name]}"
        )
    return (name, *ids)


def _entity(info: Mapping[str, Any], kinds: Mapping[str, str]) -> Entity:
    own = info["id"]
    name = info.get("name") or own
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise TaskDataError(f"{own}: its name must be a text of up to 100 characters without brackets")
    try:
        description = parse(_text(info.get("desc") or "", own), kinds, own)
    except NotUnderstood as error:
        raise TaskDataError(f"{own}: its description cannot be told: {error}") from None
    return Entity(
        own, kinds[own], name, _article(info, "definite", own), _article(info, "indefinite", own), description
    )


def _article(info: Mapping[str, Any], key: str, own: str) -> str:
    article = info.get(key) or ""
    if not isinstance(article, str) or (article and not _NAME.fullmatch(article)):
        raise TaskDataError(f"{own}: {key!r} must be a short text")
    return article


def _quest(data: Any, kinds: Mapping[str, str], logic: Logic) -> Quest:
    match data:
        case {"win_events": list(wins), "fail_events": list(fails), "reward": int(reward)}:
            pass
        case _:
            raise TaskDataError("each quest must have win_events, fail_events and a whole number as reward")
    if not 0 <= reward <= _MOST_REWARD:
        raise TaskDataError(f"a quest has the reward {reward}; 0 to {_MOST_REWARD} can be played")
    if data.get("repeatable"):
        raise TaskDataError("a quest can be repeated without end, so its points have no maximum")
    return Quest(
        reward,
        bool(data.get("optional", False)),
        tuple(_event(event, kinds, logic) for event in wins),
        tuple(_event(event, kinds, logic) for event in fails),
    )


def _event(data: Any, kinds: Mapping[str, str], logic: Logic) -> frozenset[Fact]:
    match data:
        case {"condition": {"preconditions": [_, *_] as conditions}} if len(conditions) <= 100:
            return frozenset(_fact(fact, kinds, logic) for fact in conditions)
    raise TaskDataError("each event must have a condition with 1 to 100 preconditions")


def _commands(walkthrough: Any) -> tuple[str, ...]:
    if (
        not isinstance(walkthrough, list)
        or len(walkthrough) > _MOST_COMMANDS
        or not all(isinstance(command, str) and len(command) <= 300 for command in walkthrough)
    ):
        raise TaskDataError(f"its walkthrough must be a list of up to {_MOST_COMMANDS} commands")
    return tuple(walkthrough)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or len(value) > _MOST_CHARS:
        raise TaskDataError(f"{where}: its text must have up to {_MOST_CHARS} characters")
    return value
