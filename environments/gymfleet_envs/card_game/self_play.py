"""The same game for two players that are both agents: `gymfleet_envs.card_game.self_play:CardGameSelfPlay`."""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from gymfleet_contracts.session import Tool
from pydantic import JsonValue

from gymfleet_envs.card_game import moves
from gymfleet_envs.card_game.battle import MOST_MOVES
from gymfleet_envs.card_game.environment import INSTRUCTIONS
from gymfleet_envs.card_game.match import Match
from gymfleet_envs.card_game.options import CardGameOptions
from gymfleet_envs.card_game.tasks import Duel, fair_tasks
from gymfleet_envs.environment import Environment, Game, Outcome, Seat
from gymfleet_envs.tasks import TaskSource


class CardGameSelfPlay(Environment[Duel]):
    """Aquawar with two seats. Each has the score that AgentBench gives a player."""

    name: ClassVar[str] = "card_game_self_play"
    version: ClassVar[str] = "1.0.0"
    summary: ClassVar[str] = "Battle with four fish against four, two agents against each other (AgentBench, Aquawar)"
    instructions: ClassVar[str] = INSTRUCTIONS
    format: ClassVar[str] = "react"
    max_turns: ClassVar[int] = 2 * MOST_MOVES
    max_action_chars: ClassVar[int] = 2048
    licence: ClassVar[str] = "Apache-2.0; rules and wording: AgentBench (Apache-2.0)"
    options: ClassVar[CardGameOptions] = CardGameOptions()
    tools: ClassVar[tuple[Tool, ...]] = moves.TOOLS
    seats: ClassVar[tuple[str, ...]] = ("first", "second")

    def __init__(self) -> None:
        self._match: Match
        self._failures = 0
        self._introductions: tuple[str, ...] = ()

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[Duel]:
        """Games of two equal teams."""
        del data
        return fair_tasks()

    def action_of(self, tool: str, arguments: Mapping[str, JsonValue]) -> str:
        """The arguments as JSON."""
        del tool
        return moves.action_of(arguments)

    def reset(self, task: Duel, seed: int) -> str:
        """Begin. What is drawn depends on the task alone; the seed changes nothing."""
        del seed
        self._match, self._failures = task.match(self.options.rules), 0
        self._introductions = tuple(self._match.introduction(side, self.options.rules) + "\n\n" for side in (0, 1))
        return ""

    def step(self, action: str) -> Outcome:
        """Play a text of the player who is to move; who has used up its tries has lost."""
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
        """What each player sees; the teams are described until it has made its first move."""
        match = self._match
        over = match.winner is not None
        seats = {}
        for side, name in enumerate(self.seats):
            described = self._introductions[side] if match.battle.moves <= side and not over else ""
            score = match.score(side)
            seats[name] = Seat(described + match.told(side), score if over else 0.0, score)
        return Game(None if over else self.seats[match.battle.mover], seats)

    def admissible_actions(self) -> Sequence[str]:
        """All moves, or all guesses that may be right, of the player who is to move."""
        return self._match.possible()

    def state_key(self) -> str:
        """The whole game."""
        return repr((self._match.state, self._failures))

    def state_digest(self) -> str:
        """Of the same: what is drawn next is in it."""
        return hashlib.sha256(self.state_key().encode()).hexdigest()

    def snapshot(self) -> Self:
        """A shallow copy: a step copies the match before it changes it."""
        return copy.copy(self)
