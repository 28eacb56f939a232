"""The agent's view, in AgentGym's words."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT

from gymfleet_envs.babyai.world import HEADINGS, Cell, World

_STATES: Final = ("open", "closed", "locked")
_SHOWN: Final = frozenset({"door", "key", "ball", "box", "goal", "lava", "wall"})
_BARRIERS: Final = frozenset({"box", "wall"})
_SOLID: Final = frozenset({"wall", "box", "lava", "ball", "key"})


@dataclass(frozen=True, slots=True)
class Thing:
    """An object in view. Actions refer to it by its name and number; numbers count from the nearest."""

    kind: str
    name: str
    number: int
    cell: Cell
    front: int
    right: int

    @property
    def label(self) -> str:
        """`red ball 1`."""
        return f"{self.name} {self.number}"


@dataclass(frozen=True, slots=True)
class View:
    """Everything that the observation text and the actions are made from."""

    cell: Cell
    heading: int
    things: tuple[Thing, ...]
    solid: frozenset[Cell]
    """Cells in view that cannot be entered; doors do not count."""
    sees_anything: bool
    barrier: tuple[str, int] | None
    """The nearest wall or box straight ahead, and its distance."""
    carrying: tuple[str, str] | None
    """Colour and type."""
    columns: range
    rows: range


def look(world: World) -> View:
    """Read the agent's view, 7 by 7 cells ahead of it."""
    engine = world.engine
    size = int(engine.agent_view_size)
    x, y = (int(at) for at in engine.agent_pos)
    heading = int(engine.agent_dir)
    fx, fy = HEADINGS[heading]
    rx, ry = -fy, fx
    image = world.image
    found: list[tuple[int, str, str, Cell, int, int]] = []
    # Row by row from the far left: ties in distance keep this order, and numbers depend on it.
    for j, front in enumerate(range(size - 1, -1, -1)):
        for i, right in enumerate(range(-(size // 2), size // 2 + 1)):
            kind_index, color_index, state = image[i][j]
            kind = IDX_TO_OBJECT[kind_index]
            cell = (x + front * fx + right * rx, y + front * fy + right * ry)
            if kind not in _SHOWN or (front == 0 and right == 0) or min(cell) < 0:
                continue
            color = IDX_TO_COLOR[color_index]
            name = f"{color} {_STATES[state]} door" if kind == "door" else f"{color} {kind}"
            found.append((front + abs(right), kind, name, cell, front, right))
    found.sort(key=lambda item: item[0])
    numbers: Counter[str] = Counter()
    things: list[Thing] = []
    for _, kind, name, cell, front, right in found:
        if kind != "wall":
            numbers[name] += 1
            things.append(Thing(kind, name, numbers[name], cell, front, right))
    barriers = [(kind, front) for _, kind, _, _, front, right in found if kind in _BARRIERS and right == 0]
    carried = engine.carrying
    columns, rows = _area(x, y, fx, fy, size)
    return View(
        cell=(x, y),
        heading=heading,
        things=tuple(things),
        solid=frozenset(cell for _, kind, _, cell, _, _ in found if kind in _SOLID),
        sees_anything=bool(found),
        barrier=min(barriers, key=lambda item: item[1], default=None),
        carrying=None if carried is None else (carried.color, carried.type),
        columns=columns,
        rows=rows,
    )


def describe(view: View) -> str:
    """Return AgentGym's sentence, including its spacing."""
    if view.sees_anything:
        seen = "".join(f"There is a {thing.label} {_place(thing)} steps{_side(thing)}.  " for thing in view.things)
        text = f"In front of you in this room, you can see several objects: {seen}"
    else:
        text = "You cannot see any objects within sight."
    text += "The room has walls around you. "
    if view.barrier is not None:
        text += f"You are facing a {view.barrier[0]} {view.barrier[1]} steps away. "
    if view.carrying is None:
        return text + "You are not carrying anything."
    return text + f"You are carrying a {view.carrying[0]} {view.carrying[1]}."


def _place(thing: Thing) -> str:
    return f"right in front of you {thing.front}" if thing.right == 0 else str(thing.front)


def _side(thing: Thing) -> str:
    if thing.right == 0:
        return " away"
    side = "right" if thing.right > 0 else "left"
    return f" in front of you and {abs(thing.right)} steps to your {side}"


def _area(x: int, y: int, fx: int, fy: int, size: int) -> tuple[range, range]:
    """Return the columns and rows that paths may use: the view, and one line beyond it towards the agent's back.

    To the west and north, AgentGym's ranges also include one line on the agent's right or left; its paths, and so its
    episodes, depend on it.
    """
    left, top = x + fx * (size - 1) + fy * (size // 2), y + fy * (size - 1) - fx * (size // 2)
    return _span(left, left + size * (-fx - fy)), _span(top, top + size * (-fy + fx))


def _span(start: int, end: int) -> range:
    return range(end, start + 1) if end < start else range(start, end)
