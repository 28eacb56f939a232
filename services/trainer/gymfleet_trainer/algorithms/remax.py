"""ReMax: REINFORCE, with the return of a greedy episode as the baseline."""

from collections.abc import Sequence
from typing import ClassVar

from gymfleet_contracts.recipe_sections import AlgorithmFacts
from gymfleet_contracts.trajectory import ScoredTrajectory

from gymfleet_trainer.learning.algorithm import Models, Verdict
from gymfleet_trainer.learning.episodes import by_episode, discounted_returns
from gymfleet_trainer.learning.policy_gradient import ADVANTAGES, Clipped, ClippedOptions
from gymfleet_trainer.model.batching import TrainSequence


class Remax(Clipped[ClippedOptions]):
    r"""ReMax, arXiv:2310.10505, with the clipped surrogate for batches of several updates.

    .. math:: A_t = \sum_{k \ge t} r_k - R(\text{greedy})

    The strategy `greedy_baseline` plays the greedy episode; its reward is the value of the first state. A group that
    lacks this value, because a budget cut the episode, is dropped.
    """

    facts: ClassVar[AlgorithmFacts] = AlgorithmFacts(sums_rewards=True, values=True)

    def select(self, group: Sequence[ScoredTrajectory]) -> Verdict:
        """Drop a group whose first state has no value."""
        known = all(scored.trajectory.turns and scored.trajectory.turns[0].value is not None for scored in group)
        return Verdict.KEEP if known else Verdict.DROP

    def prepare(self, rows: list[TrainSequence], models: Models) -> list[TrainSequence]:
        """Put on each token the return from there on, less the greedy episode's return.

        Raises ValueError for an episode whose first state has no value.
        """
        returns = discounted_returns(rows, self.penalised_rewards(rows, models), 1.0, models.dtype)
        baselines = [0.0] * len(rows)
        for indices in by_episode(rows):
            for index in indices:
                baselines[index] = _baseline(rows[indices[0]])
        return [
            row.with_fields(**{ADVANTAGES: (gained - baseline) * row.mask()})
            for row, gained, baseline in zip(rows, returns, baselines, strict=True)
        ]


def _baseline(row: TrainSequence) -> float:
    if not row.turns or row.turns[0].value is None:
        raise ValueError(
            f"{row.trajectory_id}: its first state has no value, and remax compares with it: play with the strategy "
            "greedy_baseline"
        )
    return row.turns[0].value.mean
