"""High-level actions: which are possible now, and the primitives that each stands for."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from gymfleet_envs.babyai.view import Thing, View
from gymfleet_envs.babyai.world import HEADINGS, Cell, Primitive

CHECK: Final = "check available actions"
_PORTABLE: Final = frozenset({"ball", "box", "key"})


@dataclass(slots=True)
class Options:
    """Actions in AgentGym's order, and why those fail that name something in view."""

    possible: dict[str, tuple[Primitive, ...]] = field(default_factory=dict)
    targets: dict[str, Cell] = field(default_factory=dict)
    """The cell of what a possible action names."""
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All that can be done now."""
        return (*self.possible, CHECK)


def options(view: View) -> Options:
    """All that can be done from here with what is in view."""
    found = Options({"turn left": (Primitive.LEFT,), "turn right": (Primitive.RIGHT,)})
    if view.barrier is None or view.barrier[1] > 1:
        found.possible["move forward"] = (Primitive.FORWARD,)
    else:
        found.refused["move forward"] = "There is a barrier in front of you, you can't move forward."
    portable = [thing for thing in view.things if thing.kind in _PORTABLE and view.carrying is None]
    for thing in portable:
        _offer(found, view, thing, "pickup", (Primitive.PICKUP,))
    _offer_drop(found, view)
    for door in (thing for thing in view.things if thing.kind == "door"):
        _offer_door(found, view, door)
    if any(thing.kind == "box" and (thing.front, thing.right) == (1, 0) for thing in view.things):
        found.possible["toggle"] = (Primitive.TOGGLE,)
    for thing in sorted(view.things, key=lambda thing: thing.kind != "goal"):
        _offer(found, view, thing, "go to", (), arrive=thing.kind == "goal")
    return found


def _offer(
    found: Options, view: View, thing: Thing, verb: str, then: tuple[Primitive, ...], *, arrive: bool = False
) -> None:
    path = find_path(view, thing.cell, arrive=arrive)
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


def _offer_door(found: Options, view: View, door: Thing) -> None:
    color, state, _ = door.name.split(" ")
    if state == "open":
        _offer(found, view, door, "go through", (), arrive=True)
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
        _offer(found, view, door, "toggle and go through", (Primitive.TOGGLE, Primitive.FORWARD))
    if (door.front, door.right) == (1, 0):
        found.possible["toggle"] = (Primitive.TOGGLE,)


def find_path(view: View, goal: Cell, *, arrive: bool) -> tuple[Primitive, ...] | None:
    """A shortest way to the goal cell, or to facing it from a neighbouring cell; None without one.

    Cells out of sight count as free, and so do doors: the walk stops where it is blocked.
    """
    start = (view.cell, view.heading)
    came_from: dict[tuple[Cell, int], tuple[tuple[Cell, int], Primitive] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        (x, y), heading = state
        dx, dy = HEADINGS[heading]
        if (state[0] if arrive else (x + dx, y + dy)) == goal:
            path: list[Primitive] = []
            while (step := came_from[state]) is not None:
                state, primitive = step
                path.append(primitive)
            return tuple(reversed(path))
        ahead = (x + dx, y + dy)
        steps = [((x, y), (heading - 1) % 4, Primitive.LEFT), ((x, y), (heading + 1) % 4, Primitive.RIGHT)]
        if ahead not in view.solid and ahead[0] in view.columns and ahead[1] in view.rows:
            steps.insert(0, (ahead, heading, Primitive.FORWARD))
        for cell, turned, primitive in steps:
            if (cell, turned) not in came_from:
                came_from[cell, turned] = (state, primitive)
                queue.append((cell, turned))
    return None
