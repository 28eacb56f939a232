"""The maze itself: cells, moves, distances and the description of the surroundings."""

from collections import deque
from dataclasses import dataclass
from typing import Final

Cell = tuple[int, int]
"""Row and column, from the top left; LMRL-Gym calls them x and y."""

MOVES: Final[dict[str, Cell]] = {"right": (0, 1), "left": (0, -1), "up": (-1, 0), "down": (1, 0)}
_SIDES: Final = {"right": "to your right", "left": "to your left", "up": "above you", "down": "below you"}


@dataclass(frozen=True, slots=True)
class MazeTask:
    """A maze with a start and a goal. `rows` are strings of `#` (wall) and `.` (free), closed all round."""

    rows: tuple[str, ...]
    start: Cell
    goal: Cell
    turn_limit: int

    @property
    def fingerprint(self) -> str:
        """A text that is equal for equal tasks."""
        return f"{'/'.join(self.rows)} {self.start} {self.goal}"


def neighbour(cell: Cell, direction: str) -> Cell:
    """Return the cell on that side."""
    row, column = MOVES[direction]
    return cell[0] + row, cell[1] + column


def is_wall(rows: tuple[str, ...], cell: Cell) -> bool:
    """Whether the cell cannot be entered."""
    return rows[cell[0]][cell[1]] == "#"


def distances(rows: tuple[str, ...], goal: Cell) -> dict[Cell, int]:
    """Return the number of moves to `goal` from every cell from which it can be reached."""
    reached = {goal: 0}
    frontier = deque([goal])
    while frontier:
        cell = frontier.popleft()
        for direction in MOVES:
            beside = neighbour(cell, direction)
            if beside not in reached and not is_wall(rows, beside):
                reached[beside] = reached[cell] + 1
                frontier.append(beside)
    return reached


def describe(rows: tuple[str, ...], position: Cell, goal: Cell) -> str:
    """Return the observation, in LMRL-Gym's words (`describe_observation_give_position`), including the line end."""
    walls = [side for direction, side in _SIDES.items() if is_wall(rows, neighbour(position, direction))]
    if not walls:
        around = "There are no walls near you."
    elif len(walls) == 1:
        around = f"There is a wall {walls[0]}."
    else:
        around = f"There are walls {', '.join(walls)}."
    return (
        f"The goal is at position {_place(goal)}. Your current position is at position {_place(position)}. {around}\n"
    )


def _place(cell: Cell) -> str:
    # LMRL-Gym writes the digits of a number apart: "1, 1 0" is column ten.
    return ", ".join(" ".join(str(number)) for number in cell)
