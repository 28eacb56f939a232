"""TextArena's single-player games as an environment: the package's words and rules; only its own win is success."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Self

from gymfleet_contracts.session import ExpertMove

from gymfleet_envs.environment import Environment, Outcome
from gymfleet_envs.tasks import TaskDataError, TaskSource
from gymfleet_envs.textarena.experts import EXPERTS
from gymfleet_envs.textarena.games import DRAWS_IN_PLAY, WON, Beginning, family_of, single_player_tasks
from gymfleet_envs.textarena.options import TextArenaOptions
from gymfleet_envs.textarena.play import Play

MOST_TURNS: Final = 1_000
INSTRUCTIONS: Final = (
    "Play the game by the rules that it tells. An action is a move in the form that the game asks for, in square "
    "brackets, and nothing else. A second invalid move in a row ends the game."
)
LICENCE: Final = "MIT (TextArena)"


class TextArena(Environment[Beginning]):
    """One single-player game."""

    name: ClassVar[str] = "textarena"
    version: ClassVar[str] = "1.0.0"
    summary: ClassVar[str] = "Play a single-player game of TextArena"
    instructions: ClassVar[str] = INSTRUCTIONS
    format: ClassVar[str] = "react"
    max_turns: ClassVar[int] = MOST_TURNS
    max_action_chars: ClassVar[int] = 1_024
    licence: ClassVar[str] = LICENCE
    options: ClassVar[TextArenaOptions] = TextArenaOptions()
    floors: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "echoes": {"Minesweeper-v0-small": 0.005},
        "guesses_codes_in_order": {"Mastermind-v0": 0.02, "Mastermind-v0-hard": 0.005},
        "names_all_moves_at_once": {"Minesweeper-v0-small": 0.005},
        "plays_the_gold_of_another_task": {
            "FrozenLake-v0": 0.23, "FrozenLake-v0-random": 0.05, "FrozenLake-v0-hardcore": 0.12,
            "GuessTheNumber-v0-hardcore": 0.2, "Mastermind-v0": 0.03, "Mastermind-v0-hard": 0.005,
            "Minesweeper-v0-small": 0.035,
        },
        "says_numbers_in_order": {"GuessTheNumber-v0-hardcore": 0.33},
        "walks_down_and_right": {"FrozenLake-v0": 0.27, "FrozenLake-v0-random": 0.07, "FrozenLake-v0-hardcore": 0.12},
    }  # fmt: skip

    play: Play
    _family: str

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[Beginning]:
        """Return the games that the options name."""
        if data is not None:
            raise TaskDataError(f"{data}: its games are drawn by the package: there are no files to import")
        return single_player_tasks(cls.options.games)

    def reset(self, task: Beginning, seed: int) -> str:
        """Begin the game. The episode depends only on the task; the seed changes nothing."""
        del seed
        self.play, self._family = task.play.copy(), family_of(task.game)
        if turns := self.play.game.state.max_turns:
            # Each move may come after an invalid one, which is no turn of the game; Bandit has one turn more.
            self.turn_limit = min(2 * (turns + 1), MOST_TURNS)
        self.start_info = {"game": task.game}
        self.start_private = {"seed": task.seed}
        return self.play.messages[0]

    def step(self, action: str) -> Outcome:
        """Play a move by the game's own rules."""
        play = self.play
        if play.over:
            return Outcome("The game is over.", score=self._score(), terminated=True, action_valid=False)
        valid = play.act(action)
        if not play.over:
            return Outcome(play.messages[0], action_valid=valid)
        told = [play.messages[0]] if play.messages[0] and play.broken_by is None else []
        # The reason for a lost game may reveal what was hidden, and the task may be played again.
        score = self._score()
        return Outcome(
            "\n".join((*told, f"[GAME] {play.reason if score else 'The game is over.'}")),
            reward=self._reward(),
            terminated=True,
            score=score,
            action_valid=valid,
            private={"reason": play.reason[:1_000]},
        )

    def expert(self) -> ExpertMove | None:
        """Play well, if the game has a good player."""
        player = EXPERTS.get(self._family)
        if player is None or self.play.over or (action := player(self.play.game)) is None:
            return None
        return ExpertMove(thought="I play the best move that I know.", action=action)

    def state_key(self) -> str:
        """The state of the game, including that of its next draws."""
        play = self.play
        drawn = play.num_actions if self._family in DRAWS_IN_PLAY else None
        return repr((play.content(), play.broken_by, drawn))

    def snapshot(self) -> Self:
        """Return an independent copy. The copy's draws depend on its own number of actions."""
        other = copy.copy(self)
        other.play = self.play.copy()
        return other

    def _reward(self) -> float:
        """Return the package's reward, at least 0; in most games it also pays for part of a solution."""
        return min(max(self.play.rewards().get(0, 0.0), 0.0), 1.0)

    def _score(self) -> float:
        play = self.play
        won = play.over and not play.ended_invalid and play.reason.startswith(WON[self._family])
        return float(won and self._reward() >= 1.0)


ENVIRONMENT: Final = TextArena
