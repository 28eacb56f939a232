"""Ways through what is in view."""

from collections import deque

from gymfleet_envs.babyai.view import View
from gymfleet_envs.babyai.world import HEADINGS, Cell, Pose, Primitive


class Paths:
    """Shortest ways from where the agent stands, found in one search.

    Cells out of sight count as free, and so do doors: the walk stops where it is blocked.
    """

    def __init__(self, view: View) -> None:
        start = (view.cell, view.heading)
        self._came_from: dict[Pose, tuple[Pose, Primitive] | None] = {start: None}
        self._arriving: dict[Cell, Pose] = {}
        self._facing: dict[Cell, Pose] = {}
        queue = deque([start])
        while queue:
            pose = queue.popleft()
            cell, heading = pose
            ahead = (cell[0] + HEADINGS[heading][0], cell[1] + HEADINGS[heading][1])
            # The first pose found is a nearest one.
            self._arriving.setdefault(cell, pose)
            self._facing.setdefault(ahead, pose)
            steps = [((cell, (heading - 1) % 4), Primitive.LEFT), ((cell, (heading + 1) % 4), Primitive.RIGHT)]
            if ahead not in view.solid and ahead[0] in view.columns and ahead[1] in view.rows:
                steps.insert(0, ((ahead, heading), Primitive.FORWARD))
            for following, primitive in steps:
                if following not in self._came_from:
                    self._came_from[following] = (pose, primitive)
                    queue.append(following)

    def to(self, goal: Cell, *, arrive: bool) -> tuple[Primitive, ...] | None:
        """The way to the goal cell, or to facing it from a neighbouring cell; None without one."""
        pose = (self._arriving if arrive else self._facing).get(goal)
        if pose is None:
            return None
        path: list[Primitive] = []
        while (step := self._came_from[pose]) is not None:
            pose, primitive = step
            path.append(primitive)
        return tuple(reversed(path))
