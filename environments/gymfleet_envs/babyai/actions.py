"""High-level actions: which are possible now, and the primitives that each stands for."""

from dataclasses import dataclass, field
from typing import Final

from gymfleet_envs.babyai.paths import Paths
from gymfleet_envs.babyai.view import Thing, View
from gymfleet_envs.babyai.world import HEADINGS, Cell, Primitive

CHECK: Final = "check available actions"
_PORTABLE: Final = frozenset({"ball", "box", "key"})


@dataclass(slots=True)
class Options:
    """Possible actions in AgentGym's order, and for impossible ones that name something in view, the reason."""

    possible: dict[str, tuple[Primitive, ...]] = field(default_factory=dict)
    targets: dict[str, Cell] = field(default_factory=dict)
    """The cell of the thing that a possible action names."""
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All actions that are possible now."""
        return (*self.possible, CHECK)


def options(view: View) -> Options:
    """Return all actions that are possible from here with the things in view."""
    paths = Paths(view)
    found = Options({"turn left": (Primitive.LEFT,), "turn right": (Primitive.RIGHT,)})
    if view.barrier is None or view.barrier[1] > 1:
        found.possible["move forward"] = (Primitive.FORWARD,)
    else:
        found.refused["move forward"] = "There is a barrier in front of you, you can't move forward."
    portable = [thing for thing in view.things if thing.kind in _PORTABLE and view.carrying is None]
    for thing in portable:
        _offer(found, paths, thing, "pickup", (Primitive.PICKUP,))
    _offer_drop(found, view)
    for door in (thing for thing in view.things if thing.kind == "door"):
        _offer_door(found, view, paths, door)
    if any(thing.kind == "box" and (thing.front, thing.right) == (1, 0) for thing in view.things):
        found.possible["toggle"] = (Primitive.TOGGLE,)
    for thing in sorted(view.things, key=lambda thing: thing.kind != "goal"):
        _offer(found, paths, thing, "go to", (), arrive=thing.kind == "goal")
    return found


def _offer(
    found: Options, paths: Paths, thing: Thing, verb: str, then: tuple[Primitive, ...], *, arrive: bool = False
) -> None:
    path = paths.to(thing.cell, arrive=arrive)
    if path is None:
        why = f"You cannot {verb} {thing.label}, as there is no path leading to it."
        found.refused[f"{verb} {thing.label}"] = why
    else:
        found.possible[f"{verb} {thing.label}"] = path + then
        found.targets[f"{verb} {thing.label}"] = thing.cell


def _offer_drop(found: Options, view: View) -> None:
    dx, dy = HEADINGS[view.heading]
    if view.carrying is None:
        found.refused["drop"] = "You cannot drop the object, as you are not carrying anything."
    elif (view.cell[0] + dx, view.cell[1] + dy) in view.solid:
        found.refused["drop"] = "You cannot drop the object, as there is already an object in front of you."
    else:
        found.possible["drop"] = (Primitive.DROP,)


def _offer_door(found: Options, view: View, paths: Paths, door: Thing) -> None:
    color, state, _ = door.name.split(" ")
    if state == "open":
        _offer(found, paths, door, "go through", (), arrive=True)
    else:
        toggle = f"toggle and go through {door.label}"
        if state == "closed":
            found.refused[f"go through {door.label}"] = (
                f"You cannot go through {door.label}, as it is closed. You should toggle it first."
            )
        elif view.carrying is None or view.carrying[1] != "key":
            found.refused[toggle] = f"You cannot {toggle}, as you are not carrying a key."
            return
        elif view.carrying[0] != color:
            found.refused[toggle] = (
                f"You cannot {toggle}, as the color of the key you are carrying does not match the color of door."
            )
            return
        _offer(found, paths, door, "toggle and go through", (Primitive.TOGGLE, Primitive.FORWARD))
    if (door.front, door.right) == (1, 0):
        found.possible["toggle"] = (Primitive.TOGGLE,)
