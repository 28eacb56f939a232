"""Generated households: a room's furniture, the things in it, and one of the six tasks."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gymfleet_envs.alfworld.game import Goal
from gymfleet_envs.alfworld.household import Household, Thing
from gymfleet_envs.alfworld.rooms import ROOM_OF_TASK, ROOMS
from gymfleet_envs.alfworld.vocabulary import (
    CLEANABLE,
    COOLABLE,
    FRIDGE,
    HEATABLE,
    HOLDS,
    LAMPS,
    MICROWAVE,
    SINK,
    TASK_TYPES,
)
from gymfleet_envs.tasks import GeneratedTasks

_SENTENCES: Final = {
    "pick_and_place_simple": ("put some {thing} on {place}", "put a {thing} in {place}"),
    "look_at_obj_in_light": ("look at {thing} under the {place}", "examine the {thing} with the {place}"),
    "pick_clean_then_place_in_recep": ("put a clean {thing} in {place}", "clean some {thing} and put it in {place}"),
    "pick_heat_then_place_in_recep": ("put a hot {thing} in {place}", "heat some {thing} and put it in {place}"),
    "pick_cool_then_place_in_recep": ("put a cool {thing} in {place}", "cool some {thing} and put it in {place}"),
    "pick_two_obj_and_place": ("put two {thing} in {place}", "find two {thing} and put them in {place}"),
}
_APPLIANCES: Final = {
    "pick_clean_then_place_in_recep": (SINK, CLEANABLE),
    "pick_heat_then_place_in_recep": (MICROWAVE, HEATABLE),
    "pick_cool_then_place_in_recep": (FRIDGE, COOLABLE),
}
_TINY_PLACES: Final = ("ArmChair", "Bed", "CoffeeTable", "Desk", "Dresser", "Shelf", "SideTable", "Sofa")
_TINY_THINGS: Final = ("Book", "CD", "CellPhone", "KeyChain", "Laptop", "Pen", "Pencil", "Watch")
_LAMP: Final = "DeskLamp"


@dataclass(frozen=True, slots=True)
class _Shape:
    num_receptacles: tuple[int, int]
    num_things: tuple[int, int]
    task_types: tuple[str, ...]
    turn_limit: int
    num_rooms: int = 1


_SHAPES: Final = {
    "tiny": _Shape((3, 4), (1, 2), TASK_TYPES[:1], 12),
    "small": _Shape((6, 8), (4, 6), TASK_TYPES[:3], 30),
    "room": _Shape((10, 14), (10, 15), TASK_TYPES, 50),
    "house": _Shape((20, 26), (20, 28), TASK_TYPES, 50, num_rooms=2),
}


def generated_tasks() -> GeneratedTasks[Household]:
    """The default task source."""
    return GeneratedTasks(
        "alfworld",
        _generate,
        repr,
        levels=tuple(_SHAPES),
        default_level="small",
        counts={"train": 20_000, "validation": 1_000, "test": 1_000},
    )


def furnish(
    rng: random.Random,
    goal: Goal,
    furniture: Sequence[str],
    kinds: Sequence[str],
    num_things: int,
    *,
    sentence: str | None = None,
    turn_limit: int | None = None,
) -> Household:
    """Put the goal's things, and others, into places that may hold them, but none where the goal wants it."""
    places = [*furniture, *(kind for kind in _needed(goal) if kind not in furniture)]
    if set(places) == {goal.receptacle}:  # then the thing could be nowhere else
        places.append("CounterTop" if goal.receptacle != "CounterTop" else "DiningTable")
    looking = goal.task_type == "look_at_obj_in_light"
    wanted = [goal.thing] * (2 if goal.task_type == "pick_two_obj_and_place" else 1)
    if looking:
        wanted.append(goal.receptacle)
    others = [kind for kind in kinds if kind not in (goal.thing, *LAMPS)]
    others = [rng.choice(others) for _ in range(num_things - len(wanted))] if others else []
    things = []
    for kind in (*wanted, *others):
        fitting = [place for place, at in enumerate(places) if kind in HOLDS.get(at, ())]
        if kind == goal.thing and not looking:
            fitting = [place for place in fitting if places[place] != goal.receptacle] or [
                place for place, at in enumerate(places) if at != goal.receptacle
            ]
        if kind in wanted and not fitting:
            fitting = list(range(len(places)))
        if fitting:
            things.append(Thing(kind, rng.choice(fitting)))
    rng.shuffle(things)
    text = sentence or rng.choice(_SENTENCES[goal.task_type])
    return Household(
        receptacles=tuple(places),
        things=tuple(things),
        goal=goal,
        sentence=text.format(thing=goal.thing.lower(), place=goal.receptacle.lower()),
        turn_limit=turn_limit,
    )


def _generate(rng: random.Random, level: str) -> Household:
    shape = _SHAPES[level]
    task_type = rng.choice(shape.task_types)
    num_receptacles, num_things = rng.randint(*shape.num_receptacles), rng.randint(*shape.num_things)
    if level == "tiny":
        places = rng.sample(_TINY_PLACES, num_receptacles)
        goal = Goal(task_type, rng.choice([kind for kind in _TINY_THINGS if kind in HOLDS[places[0]]]), places[0])
        rng.shuffle(places)
        sentence = _SENTENCES[task_type][0]
        return furnish(rng, goal, places, _TINY_THINGS, num_things, sentence=sentence, turn_limit=shape.turn_limit)
    room = rng.choice(ROOM_OF_TASK[task_type])
    names = [room, *rng.sample([name for name in ROOMS if name != room], shape.num_rooms - 1)]
    kinds = sorted({kind for name in names for kind in ROOMS[name].things})
    furniture = _furniture(rng, names, num_receptacles)
    goal = _draw_goal(rng, task_type, ROOMS[room].things, furniture)
    # The furniture that the task needs replaces other furniture.
    spare = [kind for kind in _needed(goal) if kind not in furniture]
    kept = [kind for kind in furniture if kind in _needed(goal)]
    rest = [kind for kind in furniture if kind not in _needed(goal)]
    furniture = sorted([*kept, *rest[: max(2, num_receptacles - len(kept) - len(spare))], *spare])
    return furnish(rng, goal, furniture, kinds, num_things, turn_limit=shape.turn_limit)


def _furniture(rng: random.Random, rooms: Sequence[str], num_receptacles: int) -> list[str]:
    """Return first one of each kind that the rooms always have, then more at random."""
    sure: list[str] = []
    more: list[str] = []
    for room in rooms:
        for kind, (fewest, most) in ROOMS[room].furniture.items():
            sure += [kind] * min(fewest, 1)
            more += [kind] * (rng.randint(fewest, most) - min(fewest, 1))
    rng.shuffle(sure)
    rng.shuffle(more)
    return [*sure, *more][:num_receptacles]


def _draw_goal(rng: random.Random, task_type: str, kinds: Sequence[str], furniture: Sequence[str]) -> Goal:
    if task_type == "look_at_obj_in_light":
        return Goal(task_type, rng.choice(kinds), _LAMP)
    appliance, able = _APPLIANCES.get(task_type, ("", frozenset(kinds)))
    pairs = [
        (kind, place)
        for kind in kinds
        if kind in able
        for place in sorted(set(furniture))
        if kind in HOLDS[place] and place != appliance and len(set(furniture) - {place}) > 1
    ]
    if not pairs:  # nothing here takes such a thing: some other piece of furniture will
        pairs = [(kind, place) for kind in kinds if kind in able for place in HOLDS if kind in HOLDS[place]]
        pairs = [pair for pair in pairs if pair[1] != appliance]
    thing, place = rng.choice(pairs)
    return Goal(task_type, thing, place)


def _needed(goal: Goal) -> list[str]:
    """Receptacles without which the goal cannot be reached."""
    needed = []
    if goal.task_type in _APPLIANCES:
        needed.append(_APPLIANCES[goal.task_type][0])
    needed.append("SideTable" if goal.task_type == "look_at_obj_in_light" else goal.receptacle)
    return needed
