"""The Maze environment, in the words of LMRL-Gym and AgentGym."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Literal, Self

from gymfleet_contracts.session import ExpertMove

from gymfleet_envs.environment import Environment, Image, Options, Outcome
from gymfleet_envs.maze.grid import MOVES, Cell, MazeTask, describe, distances, is_wall, neighbour
from gymfleet_envs.maze.picture import picture
from gymfleet_envs.maze.tasks import MAX_TURNS, generated, upstream
from gymfleet_envs.tasks import TaskSource

_ACTIONS: Final = {f"move {direction}": direction for direction in MOVES}


class MazeOptions(Options):
    """How to show the maze."""

    observation: Literal["text", "image", "both"] = "text"
    """`image` draws the content of the text and shows only the picture; `both` shows the text and the picture."""


class Maze(Environment[MazeTask]):
    """Walk to the goal, seeing only the walls next to the present cell.

    Reward as in AgentGym: 1 at the goal, else 0. A task allows twice the length of the shortest path plus four turns;
    LMRL-Gym's own mazes allow 50 turns.
    """

    name: ClassVar[str] = "maze"
    version: ClassVar[str] = "1.0.0"
    summary: ClassVar[str] = "Find the way to the goal of a maze, seeing only the walls next to you"
    instructions: ClassVar[str] = (
        "Reach the goal of the maze in as few moves as possible. A position is a row and a column: "
        "moving right adds 1 to the column, moving down adds 1 to the row. "
        "Actions: move up, move down, move left, move right."
    )
    max_turns: ClassVar[int] = MAX_TURNS
    options: ClassVar[MazeOptions] = MazeOptions()
    floors: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "takes_the_first_action": {"tiny": 0.14, "small": 0.08, "medium": 0.09, "large": 0.014},
        "plays_the_gold_of_another_task": {"tiny": 0.12, "small": 0.09, "medium": 0.08, "large": 0.036},
    }
    licence: ClassVar[str] = "Wording and the four upstream mazes: LMRL-Gym, MIT"

    _task: MazeTask
    _position: Cell
    _distances: dict[Cell, int] | None = None

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[MazeTask]:
        """Generated mazes, or `mazes.json` of LMRL-Gym in `data`."""
        return generated() if data is None else upstream(data)

    @classmethod
    def images(cls) -> Literal["beside", "only"] | None:
        """Return how observations show images, by the option `observation`."""
        if cls.options.observation == "text":
            return None
        return "only" if cls.options.observation == "image" else "beside"

    def reset(self, task: MazeTask, seed: int) -> str:  # noqa: ARG002 - nothing is random within an episode
        """Stand at the start."""
        self._task = task
        self._position = task.start
        self._distances = None
        self.turn_limit = task.turn_limit
        self.start_parts = self._parts()
        return "" if self.start_parts else self._observe()

    def step(self, action: str) -> Outcome:
        """Move, or stay if a wall is in the way or the action is none of the four."""
        direction = _ACTIONS.get(" ".join(action.lower().split()))
        if direction is not None:
            target = neighbour(self._position, direction)
            if not is_wall(self._task.rows, target):
                self._position = target
        if self._position == self._task.goal:
            return Outcome("Success\n", reward=1.0, terminated=True, score=1.0, action_valid=direction is not None)
        parts = self._parts()
        return Outcome("" if parts else self._observe(), action_valid=direction is not None, parts=parts)

    def expert(self) -> ExpertMove | None:
        """The next move on a shortest path; among equals, the one that brings the goal's row or column nearer."""
        if self._distances is None:
            self._distances = distances(self._task.rows, self._task.goal)
        here, goal = self._position, self._task.goal
        towards = [
            direction
            for direction, (row, column) in MOVES.items()
            if row * (goal[0] - here[0]) + column * (goal[1] - here[1]) > 0
        ]
        left = self._distances[here]
        shortest = [d for d in MOVES if self._distances.get(neighbour(here, d), left) < left]
        if not shortest:  # on the goal, where LMRL-Gym's task 25 starts: any wall will do
            return ExpertMove(thought="I am at the goal. Staying here.", action=f"move {self._blocked_side()}")
        move = next((direction for direction in towards if direction in shortest), shortest[0])
        where = f"The goal is {' and '.join(towards)}."
        if move in towards:
            why = ""
        elif all(is_wall(self._task.rows, neighbour(here, direction)) for direction in towards):
            why = " A wall is in the way."
        else:
            why = " That way is closed."
        return ExpertMove(thought=f"{where}{why} Going {move}.", action=f"move {move}")

    def state_key(self) -> str:
        """The agent's position."""
        return f"{self._position[0]},{self._position[1]}"

    def admissible_actions(self) -> list[str]:
        """The moves that no wall blocks."""
        rows, here = self._task.rows, self._position
        return [action for action, side in _ACTIONS.items() if not is_wall(rows, neighbour(here, side))]

    def snapshot(self) -> Self:
        """A shallow copy: everything in it is immutable or never changed."""
        return copy.copy(self)

    def _observe(self) -> str:
        return describe(self._task.rows, self._position, self._task.goal)

    def _parts(self) -> tuple[str | Image, ...]:
        """Return the picture, alone or below the text; nothing if observations are texts."""
        if self.options.observation == "text":
            return ()
        image = Image(picture(self._task.rows, self._position, self._task.goal))
        return (image,) if self.options.observation == "image" else (self._observe(), image)

    def _blocked_side(self) -> str:
        return next((d for d in MOVES if is_wall(self._task.rows, neighbour(self._position, d))), "up")


ENVIRONMENT = Maze
