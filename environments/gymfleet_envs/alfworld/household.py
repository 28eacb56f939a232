"""A household before it becomes a game: receptacles, things and the goal; and its PDDL problem."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

from gymfleet_envs.alfworld.game import Game, Goal
from gymfleet_envs.alfworld.vocabulary import (
    CLEANABLE,
    COOLABLE,
    HEATABLE,
    HOLDS,
    LAMPS,
    OPENABLE,
    SINK,
    SLICEABLE,
)
from gymfleet_envs.alfworld.wording import DOMAIN, Wording, grammar_text


@dataclass(frozen=True, slots=True)
class Thing:
    """A thing; `place` is the index of the receptacle that holds it."""

    kind: str
    place: int


@dataclass(frozen=True, slots=True)
class Household:
    """Receptacles by kind, things, the goal, and the sentence that states it."""

    receptacles: tuple[str, ...]
    things: tuple[Thing, ...]
    goal: Goal
    sentence: str
    turn_limit: int | None = None

    def game(self, wording: Wording) -> Game:
        """Return the game in the form of a game file."""
        return Game(
            domain=DOMAIN,
            grammar=grammar_text(wording, self.sentence),
            problem=problem_text(self),
            goal=self.goal,
            turn_limit=self.turn_limit,
        )


_ABILITIES: Final = (
    ("cleanable", CLEANABLE),
    ("heatable", HEATABLE),
    ("coolable", COOLABLE),
    ("sliceable", SLICEABLE),
    ("toggleable", frozenset(LAMPS)),
)
_ABILITY_OF_TASK: Final = {
    "pick_clean_then_place_in_recep": "cleanable",
    "pick_heat_then_place_in_recep": "heatable",
    "pick_cool_then_place_in_recep": "coolable",
}
_DOMAIN_CONSTANTS: Final = frozenset({"SinkBasin", "Microwave", "Fridge", "Knife", "ButterKnife"})
_GOALS: Final = {
    "pick_and_place_simple": "",
    "pick_clean_then_place_in_recep": "(cleanable ?o) (isClean ?o)",
    "pick_heat_then_place_in_recep": "(heatable ?o) (isHot ?o)",
    "pick_cool_then_place_in_recep": "(coolable ?o) (isCool ?o)",
}


def problem_text(household: Household) -> str:
    """Return the PDDL problem: each receptacle has its own location, and the agent one without a receptacle."""
    places = [_place_id(kind, number) for kind, number in _numbered(household.receptacles)]
    things = [f"{kind}_bar_{number:02}" for kind, number in _numbered([thing.kind for thing in household.things])]
    locations = [f"loc_bar_{index:02}" for index in range(len(places) + 1)]
    kinds = sorted({*household.receptacles} - _DOMAIN_CONSTANTS)
    sorts = sorted({thing.kind for thing in household.things} - _DOMAIN_CONSTANTS)
    lines = [
        "(define (problem household_game)",
        "(:domain household)",
        "(:objects agent1 - agent",
        *(f"{name} - location" for name in locations),
        *(f"{name} - receptacle" for name in places),
        *(f"{name} - object" for name in things),
        *(f"{kind}Type - rtype" for kind in kinds),
        *(f"{kind}Type - otype" for kind in sorts),
        ")",
        "(:init",
        *_init_facts(household, places, things, locations),
        ")",
        f"(:goal {_goal_text(household.goal)})",
        ")",
    ]
    return "\n".join(lines)


def _init_facts(household: Household, places: list[str], things: list[str], locations: list[str]) -> Iterator[str]:
    yield f"(atLocation agent1 {locations[-1]})"
    for kind, place, location in zip(household.receptacles, places, locations, strict=False):
        yield f"(receptacleType {place} {kind}Type)"
        yield f"(receptacleAtLocation {place} {location})"
        if kind in OPENABLE:
            yield f"(openable {place})"
    goal = household.goal
    held = {(goal.receptacle, goal.thing)}
    for thing, name in zip(household.things, things, strict=True):
        kind = thing.kind
        yield f"(objectType {name} {kind}Type)"
        yield f"(inReceptacle {name} {places[thing.place]})"
        yield f"(objectAtLocation {name} {locations[thing.place]})"
        if kind not in LAMPS:
            yield f"(pickupable {name})"
        for ability, kinds in _ABILITIES:
            if kind in kinds or (kind == goal.thing and _ABILITY_OF_TASK.get(goal.task_type) == ability):
                yield f"({ability} {name})"
        held.add((household.receptacles[thing.place], kind))
    present = {thing.kind for thing in household.things}
    for receptacle in sorted(set(household.receptacles)):
        for kind in sorted(present):
            if kind in HOLDS.get(receptacle, ()) or (receptacle, kind) in held:
                yield f"(canContain {receptacle}Type {kind}Type)"


def _goal_text(goal: Goal) -> str:
    thing, place = f"(objectType ?o {goal.thing}Type)", f"(receptacleType ?r {goal.receptacle}Type)"
    if goal.task_type == "look_at_obj_in_light":
        return (
            f"(and (exists (?t - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?t "
            f"{goal.receptacle}Type) (toggleable ?t) (isToggled ?t) (inReceptacle ?t ?r) (receptacleAtLocation ?r ?l) "
            f"(atLocation ?a ?l))) (exists (?o - object ?a - agent) (and {thing} (holds ?a ?o))))"
        )
    if goal.task_type == "pick_two_obj_and_place":
        return (
            f"(exists (?r - receptacle ?o - object ?p - object) (and (not (= ?o ?p)) {place} {thing} "
            f"(objectType ?p {goal.thing}Type) (inReceptacle ?o ?r) (inReceptacle ?p ?r)))"
        )
    return f"(exists (?r - receptacle ?o - object) (and {thing} {place} (inReceptacle ?o ?r) {_GOALS[goal.task_type]}))"


def _place_id(kind: str, number: int) -> str:
    # A basin is a part of its sink, and is named so in game files.
    return f"Sink_bar_{number:02}_bar_{SINK}" if kind == SINK else f"{kind}_bar_{number:02}"


def _numbered(kinds: tuple[str, ...] | list[str]) -> Iterator[tuple[str, int]]:
    counters: dict[str, count[int]] = {}
    for kind in kinds:
        yield kind, next(counters.setdefault(kind, count(1)))
