"""Settings of the textarena environment."""

from typing import Annotated, Final

from pydantic import Field

from gymfleet_envs.environment import Options

LEVELS: Final = (
    "FrozenLake-v0", "FrozenLake-v0-random", "Sudoku-v0-very-easy", "FrozenLake-v0-hardcore",
    "GuessTheNumber-v0-hardcore", "Mastermind-v0", "LightsOut-v0", "Sudoku-v0-easy", "Minesweeper-v0-small",
    "Mastermind-v0-hard", "Sudoku-v0", "Minesweeper-v0",
)  # fmt: skip
"""Games that differ by seed, are drawn in milliseconds and have an expert, easiest first."""
TWO_PLAYER_GAMES: Final = ("TicTacToe-v0", "Nim-v0", "Nim-v0-medium", "Nim-v0-large", "ConnectFour-v0")


class TextArenaOptions(Options):
    """Which of the package's single-player games to play."""

    games: Annotated[tuple[str, ...], Field(min_length=1)] = LEVELS
    """The levels, easiest first: ids of the package, such as `2048-v0-easy`."""


class TwoPlayersOptions(Options):
    """Which of the package's games for two to play."""

    games: Annotated[tuple[str, ...], Field(min_length=1)] = TWO_PLAYER_GAMES
    """The levels: names from `TWO_PLAYER_GAMES`."""
