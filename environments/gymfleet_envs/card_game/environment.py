"""AgentBench's card game as an environment: the agent against one of gymfleet's opponents."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from gymfleet_contracts.session import ExpertMove

from gymfleet_envs.card_game import moves
from gymfleet_envs.card_game.base import Aquawar
from gymfleet_envs.card_game.battle import MOST_MOVES
from gymfleet_envs.card_game.kinds import NAMES, TEAM
from gymfleet_envs.card_game.players import thoughtful
from gymfleet_envs.card_game.suspicion import as_seen_by, best_guess
from gymfleet_envs.card_game.tasks import EXPERT_DEPTH, Duel, generated_tasks, play_opponent
from gymfleet_envs.environment import Outcome
from gymfleet_envs.tasks import TaskDataError, TaskSource


class CardGame(Aquawar):
    """Play Aquawar against a program."""

    name: ClassVar[str] = "card_game"
    summary: ClassVar[str] = "Battle with four fish against four, some of them hidden (AgentBench, Aquawar)"
    max_turns: ClassVar[int] = 2 * ((MOST_MOVES + 1) // 2)
    floors: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "takes_the_first_action": {
            "random": 0.26, "greedy": 0.19, "strong": 0.18, "guess_random": 0.27, "guess_greedy": 0.24,
            "guess_strong": 0.23, "agentbench": 0.59,
        },
        "plays_everything_at_once": {
            "random": 0.145, "greedy": 0.13, "strong": 0.13, "guess_random": 0.22, "guess_greedy": 0.215,
            "guess_strong": 0.21, "agentbench": 0.55,
        },
        "kills_its_own_team": {
            "random": 0.27, "greedy": 0.15, "strong": 0.09, "guess_random": 0.3, "guess_greedy": 0.2,
            "guess_strong": 0.18, "agentbench": 0.3,
        },
        "plays_the_gold_of_another_task": {
            "random": 0.05, "greedy": 0.05, "strong": 0.045, "guess_random": 0.013, "guess_greedy": 0.014,
            "guess_strong": 0.013, "agentbench": 0.2,
        },
        "guesses_and_forfeits": {
            "random": 0.018, "greedy": 0.019, "strong": 0.019, "guess_random": 0.0115, "guess_greedy": 0.0155,
            "guess_strong": 0.015, "agentbench": 0.0065,
        },
    }  # fmt: skip

    _task: Duel

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[Duel]:
        """Generated games; the benchmark has no files."""
        if data is not None:
            raise TaskDataError("card_game: AgentBench has no files of it; its teams are the level agentbench")
        return generated_tasks(cls.options.rules)

    @classmethod
    def import_data(cls, source: Path, target: Path) -> None:
        """There is nothing to import."""
        del target
        cls.task_source(source)

    def reset(self, task: Duel, seed: int) -> str:
        """Describe the teams. All draws depend only on the task; the seed changes nothing."""
        del seed
        self._task, self._failures = task, 0
        self._match = task.match(self.options.rules)
        if not task.begins:
            play_opponent(self._match, task.opponent)
        self.turn_limit = min(self._turns() * self.options.tries, self.max_turns)
        self.start_score = self._match.score(task.side)
        return f"{self._match.introduction(task.side, self.options.rules)}\n\n{self._match.told(task.side)}"

    def step(self, action: str) -> Outcome:
        """Play the agent's text, then the opponent's turn."""
        side = self._task.side
        if self._match.winner is not None:
            return self._outcome(self._match.told(side), action_valid=False)
        match = self._match.copy()
        try:
            match.play(action)
        except moves.Unplayable as fault:
            return self._failed(str(fault))
        self._failures = 0
        if match.winner is None and match.battle.mover != side:
            play_opponent(match, self._task.opponent)
        self._match = match
        return self._outcome(match.told(side))

    def expert(self) -> ExpertMove | None:
        """The choice of a player who thinks two moves ahead and knows no more about hidden fish than the agent."""
        match, side = self._match, self._task.side
        if match.winner is not None:
            return None
        if match.is_guess_due:
            guess = best_guess(match.battle, match.known)
            if guess is None:
                return None
            left = match.known[TEAM * (1 - side) + guess.target]
            names = " or ".join(sorted(NAMES[kind] for kind in left))
            return ExpertMove(thought=f"Position {guess.target} can be {names}.", action=moves.text_of_guess(guess))
        move = thoughtful(as_seen_by(side, match.battle, match.known), EXPERT_DEPTH)
        health = [match.battle.damage_taken(one) for one in (1 - side, side)]
        thought = (
            f"The enemy has lost {health[0]} health and I have lost {health[1]}; this attack leads best from here."
        )
        return ExpertMove(thought=thought, action=moves.text_of_move(match.battle, move))

    def _turns(self) -> int:
        """Return how many turns the agent can have."""
        own_moves = (MOST_MOVES + 1) // 2 if self._task.begins else MOST_MOVES // 2
        return own_moves * (2 if self._task.has_guesses else 1)

    def _failed(self, fault: str) -> Outcome:
        self._failures += 1
        if self._failures < self.options.tries:
            return self._outcome(f"This cannot be played: {fault}. {self._match.told(self._task.side)}",
                                 action_valid=False)  # fmt: skip
        match = self._match.copy()
        match.forfeited_by = self._task.side
        self._match = match
        return self._outcome(f"This cannot be played: {fault}. {match.told(self._task.side)}", action_valid=False)

    def _outcome(self, observation: str, *, action_valid: bool = True) -> Outcome:
        match, side = self._match, self._task.side
        over, score = match.winner is not None, match.score(side)
        return Outcome(
            observation,
            reward=score if over else 0.0,
            terminated=over,
            score=score,
            action_valid=action_valid,
            info={
                "rounds": match.battle.moves,
                "damage": match.battle.damage_taken(1 - side),
                "damage_taken": match.battle.damage_taken(side),
            },
        )


ENVIRONMENT: Final = CardGame
