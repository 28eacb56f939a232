"""The maze as a picture: the content of the text, and no more of the maze."""

from typing import Final

from gymfleet_envs.maze.grid import MOVES, Cell, is_wall, neighbour
from gymfleet_envs.png import Colour, png_of

CELL_PIXELS: Final = 14
PALETTE: Final[tuple[Colour, ...]] = (
    (128, 128, 128), (255, 255, 255), (0, 0, 0), (0, 0, 255), (0, 160, 0),
)  # fmt: skip
UNSEEN, FREE, WALL, SELF, GOAL = range(len(PALETTE))


def picture(rows: tuple[str, ...], position: Cell, goal: Cell) -> bytes:
    """Return a PNG: the agent is blue, the goal green, neighbouring cells black (wall) or white, the rest grey."""
    seen = {goal: GOAL, position: SELF}
    for direction in MOVES:
        beside = neighbour(position, direction)
        seen.setdefault(beside, WALL if is_wall(rows, beside) else FREE)
    grid = [[seen.get((row, column), UNSEEN) for column in range(len(line))] for row, line in enumerate(rows)]
    return png_of(grid, PALETTE, cell_pixels=CELL_PIXELS)
