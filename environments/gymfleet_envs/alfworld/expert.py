"""The expert: looks for things where they are likely to be, then does what the task asks.

It uses only what it has seen, as a player must, so that a policy can learn from its
episodes. Only when turns run short does it go straight to the thing.
"""

from dataclasses import dataclass, field
from typing import Final

from gymfleet_contracts.session import ExpertMove

from gymfleet_envs.alfworld.engine import Engine, Facts
from gymfleet_envs.alfworld.game import Goal
from gymfleet_envs.alfworld.vocabulary import FRIDGE, HOLDS, MICROWAVE, SINK

_HOLDS: Final = {kind.lower(): frozenset(thing.lower() for thing in things) for kind, things in HOLDS.items()}
_TREATMENTS: Final = {
    "pick_clean_then_place_in_recep": ("clean", SINK.lower(), "isclean"),
    "pick_heat_then_place_in_recep": ("heat", MICROWAVE.lower(), "ishot"),
    "pick_cool_then_place_in_recep": ("cool", FRIDGE.lower(), "iscool"),
}
_RESERVE: Final = 16


class _Stuck(Exception):
    """The task cannot be done from here."""


@dataclass(slots=True)
class Memory:
    """The receptacles that the player has looked into so far, and the number of its actions."""

    seen: set[str] = field(default_factory=set)
    num_turns: int = 0

    def look(self, engine: Engine) -> None:
        """Mark the receptacles that are open at the player's place as seen."""
        facts = engine.facts
        (place,) = (location for _, location in facts["atlocation"])
        for receptacle, location in facts.get("receptacleatlocation", ()):
            closed = (receptacle,) in facts.get("openable", ()) and (receptacle,) not in facts.get("opened", ())
            if location == place and not closed:
                self.seen.add(receptacle)


def next_move(engine: Engine, memory: Memory, goal: Goal, turn_limit: int) -> ExpertMove | None:
    """The next command of a plan from here; None if there is no plan."""
    try:
        return _Planner(engine, memory, goal, turn_limit).move()
    except _Stuck:
        return None


def _pairs(facts: Facts, predicate: str) -> dict[str, str]:
    return {pair[0]: pair[1] for pair in sorted(facts.get(predicate, ()))}


class _Planner:
    def __init__(self, engine: Engine, memory: Memory, goal: Goal, turn_limit: int) -> None:
        self._engine = engine
        self._seen = memory.seen
        # Too late to search: the way from the thing to the goal takes this many turns.
        self._in_haste = turn_limit - memory.num_turns <= min(_RESERVE, turn_limit // 3)
        self._goal = goal
        facts = engine.facts
        self._facts = facts
        self._here = next(location for _, location in facts["atlocation"])
        self._held = next((thing for _, thing in facts.get("holds", ())), None)
        self._locations = _pairs(facts, "receptacleatlocation")
        self._kinds = {name: kind.removesuffix("type") for name, kind in facts.get("receptacletype", ())}
        self._things = {name: kind.removesuffix("type") for name, kind in facts.get("objecttype", ())}
        self._places = _pairs(facts, "inreceptacle")

    def move(self) -> ExpertMove:
        wanted = self._goal.thing.lower()
        if self._held is not None and self._things.get(self._held) != wanted:
            return self._put_away(self._held)
        if self._held is None:
            return self._fetch(wanted)
        if self._goal.task_type == "look_at_obj_in_light":
            return self._light(self._held)
        return self._deliver(self._held)

    def _deliver(self, held: str) -> ExpertMove:
        name = self._name(held)
        treatment = _TREATMENTS.get(self._goal.task_type)
        if treatment is not None and not self._is(treatment[2], held):
            verb, kind, _ = treatment
            appliance = self._nearest(kind)
            if self._at(appliance):
                return self._do(f"{verb} {name} with {self._name(appliance)}", f"Now I {verb} it.")
            return self._go(appliance, f"I have the {name}. I {verb} it with a {kind}.")
        target = self._target()
        if not self._at(target):
            return self._go(target, f"I have the {name}. It goes to the {self._name(target)}.")
        return self._open(target) or self._put(held, target, f"I put the {name} here.")

    def _light(self, held: str) -> ExpertMove:
        lamp_kind = self._goal.receptacle.lower()
        lamp = self._find(lamp_kind, set())
        if isinstance(lamp, ExpertMove):
            return lamp
        place = self._places[lamp]
        if not self._at(place):
            return self._go(place, f"I have the {self._name(held)}. The {self._name(lamp)} is there.")
        return self._do(f"use {self._name(lamp)}", f"I turn on the {self._name(lamp)}.")

    def _fetch(self, kind: str) -> ExpertMove:
        done = set()
        if self._goal.task_type == "pick_two_obj_and_place":
            target = self._target()
            done = {thing for thing, place in self._places.items() if place == target}
        elif self._goal.task_type == "pick_and_place_simple":
            done = {
                thing for thing, place in self._places.items() if self._kind(place) == self._goal.receptacle.lower()
            }
        thing = self._find(kind, done)
        if isinstance(thing, ExpertMove):
            return thing
        place = self._places[thing]
        name = self._name(thing)
        if not self._at(place):
            return self._go(place, f"The {name} is at the {self._name(place)}.")
        return self._open(place) or self._do(f"take {name} from {self._name(place)}", f"Here is the {name}. I take it.")

    def _find(self, kind: str, excepted: set[str]) -> str | ExpertMove:
        """Return a thing of the kind whose place is known, or the next step of the search for one."""
        candidates = [
            thing
            for thing in sorted(self._places, key=self._name)
            if self._things.get(thing) == kind and thing not in excepted
        ]
        if not candidates:
            raise _Stuck
        for thing in sorted(candidates, key=lambda thing: not self._at(self._places[thing])):
            if self._in_haste or self._places[thing] in self._seen:
                return thing
        unseen = [place for place in self._locations if place not in self._seen]
        # Places where such a thing belongs come first, and of these the ones that need no opening. The goal's
        # receptacle comes last: the thing is not there.
        place = min(unseen, key=lambda place: self._likelihood(kind, place))
        if self._at(place):
            opening = self._open(place)
            if opening is not None:
                return opening
        return self._go(place, f"I have to find a {kind}. I have not looked at the {self._name(place)}.")

    def _likelihood(self, kind: str, place: str) -> tuple[bool, bool, bool, bool, tuple[str, int]]:
        return (
            self._kind(place) == self._goal.receptacle.lower(),
            not self._at(place),
            kind not in _HOLDS.get(self._kind(place), frozenset()),
            self._is("openable", place),
            self._order(place),
        )

    def _target(self) -> str:
        """Return the receptacle of the wanted kind with the most wanted things; among equals, the first."""
        wanted = self._goal.thing.lower()
        counts = {place: 0 for place in self._locations if self._kind(place) == self._goal.receptacle.lower()}
        for thing, place in self._places.items():
            if place in counts and self._things.get(thing) == wanted:
                counts[place] += 1
        if not counts:
            raise _Stuck
        return min(counts, key=lambda place: (-counts[place], self._order(place)))

    def _put_away(self, held: str) -> ExpertMove:
        thought = f"I do not need the {self._name(held)}."
        for place in sorted(self._locations, key=lambda place: (not self._at(place), self._order(place))):
            fits = (f"{self._kind(place)}type", f"{self._things.get(held)}type") in self._facts.get("cancontain", ())
            if fits and self._kind(place) != self._goal.receptacle.lower():
                if not self._at(place):
                    return self._go(place, thought)
                return self._open(place) or self._put(held, place, thought)
        raise _Stuck

    def _put(self, thing: str, place: str, thought: str) -> ExpertMove:
        name, where = self._name(thing), self._name(place)
        moving = f"move {name} to {where}"
        return self._do(moving if self._engine.holds(moving) else f"put {name} in/on {where}", thought)

    def _open(self, place: str) -> ExpertMove | None:
        if not self._is("openable", place) or self._is("opened", place):
            return None
        return self._do(f"open {self._name(place)}", f"The {self._name(place)} is closed. I open it.")

    def _go(self, place: str, thought: str) -> ExpertMove:
        return self._do(f"go to {self._name(place)}", thought)

    def _do(self, command: str, thought: str) -> ExpertMove:
        if not self._engine.holds(command):
            raise _Stuck
        return ExpertMove(thought=thought, action=command)

    def _nearest(self, kind: str) -> str:
        places = [place for place in self._locations if self._kind(place) == kind]
        if not places:
            raise _Stuck
        return min(places, key=lambda place: (not self._at(place), self._order(place)))

    def _is(self, predicate: str, entity: str) -> bool:
        return (entity,) in self._facts.get(predicate, ())

    def _at(self, place: str) -> bool:
        return self._locations[place] == self._here

    def _kind(self, place: str) -> str:
        return self._kinds.get(place, "")

    def _name(self, entity: str) -> str:
        return self._engine.name(entity)

    def _order(self, place: str) -> tuple[str, int]:
        """By name, and 2 before 10."""
        kind, _, number = self._name(place).rpartition(" ")
        return kind, int(number) if number.isdigit() else 0
