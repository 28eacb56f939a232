"""OPO: the baseline of least variance, in which long episodes weigh more."""

from typing import ClassVar

import torch
from gymfleet_contracts.recipe_sections import AlgorithmFacts

from gymfleet_trainer.learning.advantages import opo_advantages
from gymfleet_trainer.learning.algorithm import Models
from gymfleet_trainer.learning.episodes import on_written, summed
from gymfleet_trainer.learning.policy_gradient import ADVANTAGES, Clipped, ClippedOptions
from gymfleet_trainer.model.batching import TrainSequence


class Opo(Clipped[ClippedOptions]):
    """OPO, arXiv:2505.23585. The paper makes one update per batch, in which the surrogate's clip has no effect."""

    facts: ClassVar[AlgorithmFacts] = AlgorithmFacts(min_group_size=2, sums_rewards=True)

    def prepare(self, rows: list[TrainSequence], models: Models) -> list[TrainSequence]:
        """Put each episode's advantage on its tokens, unless all rows have theirs already. See `opo_advantages`."""
        if all(ADVANTAGES in row.fields for row in rows):
            return rows
        totals = summed(rows, [sum(rewards) for rewards in self.penalised_rewards(rows, models)])
        lengths = summed(rows, [row.num_trained for row in rows])
        groups = {row.trajectory_id: row.group_id for row in rows}
        returns = torch.tensor(list(totals.values()), dtype=models.dtype)
        advantages = opo_advantages(returns, torch.tensor(list(lengths.values())), [groups[name] for name in totals])
        found = on_written(rows, dict(zip(totals, advantages, strict=True)))
        return [row.with_fields(**{ADVANTAGES: values}) for row, values in zip(rows, found, strict=True)]
