"""Paths through the agent's view."""

from collections import deque
from typing import Final

from gymfleet_envs.babyai.view import View
from gymfleet_envs.babyai.world import HEADINGS, Cell, Pose, Primitive

_TURNS: Final = tuple((((at - 1) % 4, Primitive.LEFT), ((at + 1) % 4, Primitive.RIGHT)) for at in range(4))


class Paths:
    """The paths that AgentGym's server takes from where the agent stands, found in one search.

    Cells out of sight count as free, and so do doors: the walk stops where it is blocked. For each pose, upstream's
    search remembers the last path that found the pose before its turn came, and searches again from a pose that was
    found twice. This decides among equally long paths, and so what an agent sees and bumps into.
    """

    def __init__(self, view: View) -> None:
        start = (view.cell, view.heading)
        came_from: dict[Pose, tuple[Pose, Primitive] | None] = {start: None}
        settled: set[Pose] = set()
        arriving: dict[Cell, Pose] = {}
        facing: dict[Cell, Pose] = {}
        solid, columns, rows = view.solid, view.columns, view.rows
        queue = deque([start])
        while queue:
            pose = queue.popleft()
            settled.add(pose)
            cell, heading = pose
            dx, dy = HEADINGS[heading]
            ahead = (cell[0] + dx, cell[1] + dy)
            arriving.setdefault(cell, pose)
            facing.setdefault(ahead, pose)
            following = (ahead, heading)
            if following not in settled and ahead not in solid and ahead[0] in columns and ahead[1] in rows:
                came_from[following] = (pose, Primitive.FORWARD)
                queue.append(following)
            for turned, primitive in _TURNS[heading]:
                following = (cell, turned)
                if following not in settled:
                    came_from[following] = (pose, primitive)
                    queue.append(following)
        self._came_from, self._arriving, self._facing = came_from, arriving, facing

    def to(self, goal: Cell, *, arrive: bool) -> tuple[Primitive, ...] | None:
        """Return the path to the goal cell, or to facing it from a neighbouring cell; None if there is none."""
        pose = (self._arriving if arrive else self._facing).get(goal)
        if pose is None:
            return None
        path: list[Primitive] = []
        while (step := self._came_from[pose]) is not None:
            pose, primitive = step
            path.append(primitive)
        return tuple(reversed(path))
