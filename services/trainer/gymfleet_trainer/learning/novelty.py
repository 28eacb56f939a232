"""A bonus for states that few episodes of the run reached, added to rewards before advantages are computed.

Count-based exploration: beta / sqrt(n(s)) (MBIE-EB, Strehl and Littman 2008; Bellemare et al. 2016, arXiv:1606.01868).
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Final

from gymfleet_contracts.trajectory import ScoredTrajectory, Trajectory
from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt

_DIGEST_BYTES: Final = 12


class NoveltyOptions(BaseModel):
    """Options of the bonus for new states."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weight: PositiveFloat = 0.1
    """Bonus of a state that no other episode reached; for a state that n episodes reached, those of the batch included,
    it is divided by the square root of n."""
    max_states: PositiveInt = 1_000_000
    """Number of states that are counted; states beyond it get no bonus."""


class Novelty:
    """Count the episodes that reached each state: the observation after an action, in one task.

    A state pays once in an episode, so that going in circles gains nothing.
    """

    def __init__(self, options: NoveltyOptions) -> None:
        self._options = options
        self._counts: dict[str, int] = {}

    def rewarded(
        self, groups: Sequence[Sequence[ScoredTrajectory]]
    ) -> tuple[list[list[ScoredTrajectory]], dict[str, float]]:
        """Count a batch, and return it with the bonuses on the last tokens of replies, plus metrics of the bonuses."""
        episodes = [scored for group in groups for scored in group]
        reached = [_first_visits(scored.trajectory) for scored in episodes]
        for visits in reached:
            for state in visits.values():
                if state in self._counts or len(self._counts) < self._options.max_states:
                    self._counts[state] = self._counts.get(state, 0) + 1
        bonuses = [{place: self._bonus(state) for place, state in visits.items()} for visits in reached]
        given = iter([_with(scored, bonus) for scored, bonus in zip(episodes, bonuses, strict=True)])
        total = math.fsum(value for bonus in bonuses for value in bonus.values())
        metrics = {"novelty_mean": total / max(len(episodes), 1), "novelty_states": len(self._counts)}
        return [[next(given) for _ in group] for group in groups], metrics

    def state_dict(self) -> dict[str, int]:
        """Return the counts."""
        return dict(self._counts)

    def load_state_dict(self, counts: Mapping[str, int]) -> None:
        """Continue from counts that `state_dict` returned."""
        self._counts = dict(counts)

    def _bonus(self, state: str) -> float:
        count = self._counts.get(state, 0)
        return self._options.weight / math.sqrt(count) if count else 0.0


def _first_visits(episode: Trajectory) -> dict[int, str]:
    """Return the states that an episode reached, each under the turn whose action first led there."""
    task = episode.task
    seen = {_state(f"{task.env}/{task.task_id}/{task.seed}", turn.observation) for turn in episode.turns[:1]}
    after = [*(turn.observation for turn in episode.turns[1:]), episode.final_observation]
    visits: dict[int, str] = {}
    for place, (turn, observation) in enumerate(zip(episode.turns, after, strict=False)):
        state = _state(f"{task.env}/{task.task_id}/{task.seed}", observation)
        if turn.action is not None and turn.response_token_ids and state not in seen:
            visits[place] = state
            seen.add(state)
    return visits


def _state(task: str, observation: str) -> str:
    return hashlib.blake2b(f"{task}\n{observation}".encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _with(scored: ScoredTrajectory, bonuses: Mapping[int, float]) -> ScoredTrajectory:
    reward = scored.reward
    if reward is None or not bonuses:
        return scored
    rows = tuple(
        (*row[:-1], row[-1] + bonuses[place]) if place in bonuses else row
        for place, row in enumerate(reward.token_rewards)
    )
    total = reward.total + math.fsum(bonuses.values())
    return scored.model_copy(update={"reward": reward.model_copy(update={"token_rewards": rows, "total": total})})
