"""Good players, who choose the next action from the state of a game. The package has none.

The players of Sudoku and Minesweeper know what is hidden; the others know no more than the agent.
"""

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

Cell = tuple[int, int]
_STEPS: Final[Mapping[str, Cell]] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
_MOST_CODES: Final = 5_000


def frozen_lake(game: Any) -> str | None:
    """Take the first step of a shortest path around the holes."""
    told = game.state.game_state
    grid, start, goal = told["grid"], tuple(told["player_pos"]), tuple(told["goal_pos"])
    first: dict[Cell, str] = {start: ""}
    queue = deque([start])
    while queue:
        row, column = queue.popleft()
        for word, (down, right) in _STEPS.items():
            cell = (row + down, column + right)
            inside = 0 <= cell[0] < game.size and 0 <= cell[1] < game.size
            if inside and cell not in first and grid[cell[0]][cell[1]] != "H":
                first[cell] = first[row, column] or word
                queue.append(cell)
    return f"[{first[goal]}]" if first.get(goal) else None


def guess_the_number(game: Any) -> str:
    """Halve the range that the hints leave."""
    low, high = game.min_number, game.max_number
    for number, hint in game.state.game_state["guess_history"]:
        low, high = (max(low, number + 1), high) if hint == "higher" else (low, min(high, number - 1))
    return f"[{(low + high) // 2}]"


def mastermind(game: Any) -> str | None:
    """Guess the first code that fits all answers so far; None if there are too many codes to look through."""
    told = game.state.game_state
    numbers, length = range(1, told["num_numbers"] + 1), told["code_length"]
    if len(numbers) ** length > _MOST_CODES:
        return None
    with_duplicates = told["duplicate_numbers"]
    codes = itertools.product(numbers, repeat=length) if with_duplicates else itertools.permutations(numbers, length)
    answers = [(entry["guess"], entry["black"], entry["white"]) for entry in told["history"]]
    for code in codes:
        if all(_pegs(code, guess) == (black, white) for guess, black, white in answers):
            return f"[{' '.join(map(str, code))}]"
    return None


def _pegs(code: Sequence[int], guess: Sequence[int]) -> tuple[int, int]:
    black = sum(one == other for one, other in zip(code, guess, strict=True))
    common = sum(min(code.count(number), guess.count(number)) for number in set(guess))
    return black, common - black


def lights_out(game: Any) -> str | None:
    """Press the first light of the fewest presses that turn all lights off."""
    size: int = game.size
    pressed = _presses(game.state.game_state["grid"], size)
    if not pressed:
        return None
    return f"[{pressed[0] // size} {pressed[0] % size}]"


def _presses(grid: Sequence[Sequence[bool]], size: int) -> list[int]:
    """Try all presses of the first row; then each row below must put out the lights in the row above it."""
    best: list[int] | None = None
    for first in itertools.product((False, True), repeat=size):
        lit = [list(row) for row in grid]
        pressed = []
        for row in range(size):
            for column in range(size):
                if first[column] if row == 0 else lit[row - 1][column]:
                    pressed.append(row * size + column)
                    _toggle(lit, row, column, size)
        if not any(lit[-1]) and (best is None or len(pressed) < len(best)):
            best = pressed
    return best or []


def _toggle(lit: list[list[bool]], row: int, column: int, size: int) -> None:
    for down, right in ((0, 0), *_STEPS.values()):
        if 0 <= row + down < size and 0 <= column + right < size:
            lit[row + down][column + right] ^= True


def sudoku(game: Any) -> str | None:
    """Fill the first empty cell."""
    for row, column in itertools.product(range(9), repeat=2):
        if game.state.game_state["board"][row][column] == 0:
            return f"[{row + 1} {column + 1} {game.full_grid[row][column]}]"
    return None


def minesweeper(game: Any) -> str | None:
    """Reveal the middle first, when no mine is laid yet, then the first cell without a mine."""
    if game.first_move:
        return f"[{game.rows // 2} {game.cols // 2}]"
    for row, column in itertools.product(range(game.rows), range(game.cols)):
        if not game.revealed[row][column] and game.grid[row][column] != -1:
            return f"[{row} {column}]"
    return None


def three_card_monte(game: Any) -> str:
    """Name the cup that the ball was moved to."""
    return f"[{game.ball_pos}]"


EXPERTS: Final[Mapping[str, Callable[[Any], str | None]]] = {
    "FrozenLake": frozen_lake,
    "GuessTheNumber": guess_the_number,
    "LightsOut": lights_out,
    "Mastermind": mastermind,
    "Minesweeper": minesweeper,
    "Sudoku": sudoku,
    "ThreeCardMonte": three_card_monte,
}
"""Experts by family; other families have none."""
