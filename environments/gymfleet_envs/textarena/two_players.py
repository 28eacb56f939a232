"""Games with agents as both players: `gymfleet_envs.textarena.two_players:TextArenaTwoPlayers`."""

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from gymfleet_envs.environment import Environment, Game, Outcome, Seat
from gymfleet_envs.tasks import TaskDataError, TaskSource
from gymfleet_envs.textarena.environment import INSTRUCTIONS, LICENCE
from gymfleet_envs.textarena.games import Beginning, family_of, two_player_tasks
from gymfleet_envs.textarena.options import TWO_PLAYER_GAMES, TwoPlayersOptions
from gymfleet_envs.textarena.play import Play


class TextArenaTwoPlayers(Environment[Beginning]):
    """One game of two seats: 1 for a win, 0.5 for a draw, 0 for a loss."""

    name: ClassVar[str] = "textarena_two_players"
    version: ClassVar[str] = "1.0.0"
    summary: ClassVar[str] = "Play a game of TextArena for two, two agents against each other"
    instructions: ClassVar[str] = INSTRUCTIONS
    format: ClassVar[str] = "react"
    max_turns: ClassVar[int] = 128
    max_action_chars: ClassVar[int] = 1_024
    licence: ClassVar[str] = LICENCE
    options: ClassVar[TwoPlayersOptions] = TwoPlayersOptions()
    seats: ClassVar[tuple[str, ...]] = ("player_0", "player_1")

    play: Play
    _family: str

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[Beginning]:
        """Return the games that the options name."""
        if data is not None:
            raise TaskDataError(f"{data}: its games are the package's: there are no files to import")
        return two_player_tasks(cls.options.games, TWO_PLAYER_GAMES)

    def reset(self, task: Beginning, seed: int) -> str:
        """Begin the game; player 0 is to move."""
        del seed
        self.play, self._family = task.play.copy(), family_of(task.game)
        self.start_info = {"game": task.game}
        return ""

    def step(self, action: str) -> Outcome:
        """Play a move of the player to move; a second invalid move in a row loses."""
        if self.play.over:
            return Outcome("", terminated=True, action_valid=False)
        valid = self.play.act(action)
        return Outcome("", terminated=self.play.over, action_valid=valid)

    def game(self) -> Game:
        """Return the messages to each player since that player's last move."""
        play = self.play
        rewards = play.rewards()
        seats = {}
        for place, name in enumerate(self.seats):
            told = play.messages[place]
            if play.over:
                told = f"{told}\n[GAME] {play.reason or 'The game is over.'}".lstrip("\n")
            result = (rewards[place] + 1) / 2 if place in rewards else 0.0
            seats[name] = Seat(told, result, result)
        return Game(None if play.over else self.seats[play.mover], seats)

    def admissible_actions(self) -> Sequence[str]:
        """All moves of the player to move."""
        return [] if self.play.over else _MOVES[self._family](self.play.game.state.game_state)

    def state_key(self) -> str:
        """The whole game."""
        return repr((self.play.content(), self.play.broken_by))

    def state_digest(self) -> str:
        """A digest of the whole game, and of the messages that each player has not seen yet."""
        return hashlib.sha256(repr((self.state_key(), self.play.messages)).encode()).hexdigest()

    def snapshot(self) -> Self:
        """Return an independent copy."""
        other = copy.copy(self)
        other.play = self.play.copy()
        return other


def _free_squares(told: Mapping[str, Any]) -> list[str]:
    marks = [mark for row in told["board"] for mark in row]
    return [f"[{square}]" for square, mark in enumerate(marks) if not mark]


def _objects(told: Mapping[str, Any]) -> list[str]:
    return [f"[{pile} {number}]" for pile, size in enumerate(told["piles"]) for number in range(1, size + 1)]


def _open_columns(told: Mapping[str, Any]) -> list[str]:
    return [f"[col {column}]" for column, disc in enumerate(told["board"][0]) if disc == "."]


_MOVES: Final[Mapping[str, Callable[[Mapping[str, Any]], list[str]]]] = {
    "TicTacToe": _free_squares, "Nim": _objects, "ConnectFour": _open_columns,
}  # fmt: skip
