"""The same game with agents as both players: `gymfleet_envs.card_game.self_play:CardGameSelfPlay`."""

from pathlib import Path
from typing import ClassVar

from gymfleet_envs.card_game import moves
from gymfleet_envs.card_game.base import Aquawar
from gymfleet_envs.card_game.battle import MOST_MOVES
from gymfleet_envs.card_game.tasks import Duel, fair_tasks
from gymfleet_envs.environment import Game, Outcome, Seat
from gymfleet_envs.tasks import TaskSource


class CardGameSelfPlay(Aquawar):
    """Aquawar with two seats. Each has the score that AgentBench gives a player."""

    name: ClassVar[str] = "card_game_self_play"
    summary: ClassVar[str] = "Battle with four fish against four, two agents against each other (AgentBench, Aquawar)"
    max_turns: ClassVar[int] = 2 * MOST_MOVES
    seats: ClassVar[tuple[str, ...]] = ("first", "second")

    _introductions: tuple[str, ...]

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[Duel]:
        """Games of two equal teams."""
        del data
        return fair_tasks()

    def reset(self, task: Duel, seed: int) -> str:
        """Begin the game. All draws depend only on the task; the seed changes nothing."""
        del seed
        self._match, self._failures = task.match(self.options.rules), 0
        self._introductions = tuple(self._match.introduction(side, self.options.rules) + "\n\n" for side in (0, 1))
        return ""

    def step(self, action: str) -> Outcome:
        """Play a text of the player to move; a player who has used up its tries has lost."""
        match = self._match.copy()
        is_valid = True
        try:
            match.play(action)
            self._failures = 0
        except moves.Unplayable:
            is_valid = False
            self._failures += 1
            if self._failures == self.options.tries:
                match.forfeited_by = match.battle.mover
        self._match = match
        return Outcome("", terminated=match.winner is not None, action_valid=is_valid)

    def game(self) -> Game:
        """Return each player's view; it describes the teams until the player has made its first move."""
        match = self._match
        over = match.winner is not None
        seats = {}
        for side, name in enumerate(self.seats):
            described = self._introductions[side] if match.battle.moves <= side and not over else ""
            score = match.score(side)
            seats[name] = Seat(described + match.told(side), score if over else 0.0, score)
        return Game(None if over else self.seats[match.battle.mover], seats)
