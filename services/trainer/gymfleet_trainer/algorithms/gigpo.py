"""GiGPO: an episode is compared with the others of its task, and a turn with others played in the same state."""

from collections.abc import Sequence
from itertools import chain
from typing import Annotated, ClassVar, Final, Literal

import torch
from gymfleet_contracts.recipe_sections import AlgorithmFacts
from pydantic import Field
from torch import Tensor

from gymfleet_trainer.learning.advantages import advantages_where_compared, grpo_advantages
from gymfleet_trainer.learning.algorithm import Models
from gymfleet_trainer.learning.episodes import by_episode
from gymfleet_trainer.learning.policy_gradient import ADVANTAGES, Clipped, ClippedOptions
from gymfleet_trainer.learning.steps import Step, discounted, on_tokens, require_turns, steps_of
from gymfleet_trainer.model.batching import TrainSequence

_COMPARED: Final = "compared_turns"
"""The share of tokens whose turn had other turns to compare with."""


class GigpoOptions(ClippedOptions):
    """Options of GiGPO."""

    gamma: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Discount per turn of the return from a turn on."""
    step_weight: Annotated[float, Field(ge=0)] = 1.0
    """Omega, the weight of the comparison of turns relative to that of episodes."""
    mode: Literal["mean_norm", "mean_std_norm"] = "mean_norm"
    """mean_norm subtracts a group's mean; mean_std_norm also divides by its standard deviation. It applies to groups of
    episodes and to groups of turns."""


class Gigpo(Clipped[GigpoOptions]):
    r"""Group-in-group policy optimisation, arXiv:2505.10978, section 4.

    .. math::
        A_{i,t} = A^E_i + \omega A^S_{i,t}, \qquad
        A^E_i = \frac{R_i - \mathrm{mean}_g(R)}{F}, \qquad
        A^S_{i,t} = \frac{R_{i,t} - \mathrm{mean}_{s}(R)}{F}, \qquad
        R_{i,t} = \sum_{k \ge t} \gamma^{k-t} r_{i,k}

    The group s of a turn is all turns of the task's episodes that were played in the same (anchor) state, including
    those of its own episode; F is 1 or the group's standard deviation. A turn alone in its group has :math:`A^S = 0`.
    """

    Options: ClassVar[type[GigpoOptions]] = GigpoOptions
    facts: ClassVar[AlgorithmFacts] = AlgorithmFacts(min_group_size=2, sums_rewards=True, state_keys=True)
    reported: ClassVar[tuple[str, ...]] = (_COMPARED,)

    def prepare(self, rows: list[TrainSequence], models: Models) -> list[TrainSequence]:
        """Put on each token the sum of the advantages of its episode and of its turn.

        Raises ValueError for a group of one episode, and for trained tokens that belong to no turn.
        """
        require_turns(rows, "gigpo")
        rewards = self.penalised_rewards(rows, models)
        episodes = by_episode(rows)
        returns = torch.tensor([sum(sum(rewards[i]) for i in own) for own in episodes], dtype=models.dtype)
        of_episodes = self._compared(returns, [rows[own[0]].group_id for own in episodes]).tolist()
        steps = [steps_of(rows, own, rewards) for own in episodes]
        of_steps = self._of_steps(rows, steps, models.dtype)
        weight = self.options.step_weight
        credit = [
            (step, of_episode + weight * of_step)
            for of_episode, own, found in zip(of_episodes, steps, of_steps, strict=True)
            for step, (of_step, _) in zip(own, found, strict=True)
        ]
        compared = list(zip(chain(*steps), (float(known) for _, known in chain(*of_steps)), strict=True))
        return [
            row.with_fields(**{ADVANTAGES: advantages, _COMPARED: known})
            for row, advantages, known in zip(
                rows, on_tokens(rows, credit, models.dtype), on_tokens(rows, compared, models.dtype), strict=True
            )
        ]

    def _of_steps(
        self, rows: Sequence[TrainSequence], episodes: Sequence[Sequence[Step]], dtype: torch.dtype
    ) -> list[list[tuple[float, bool]]]:
        """Return each step's advantage in its state, and whether others were played there, for each episode."""
        states = [[(rows[step.row].group_id, step.span.anchor) for step in steps] for steps in episodes]
        returns = [discounted([step.reward for step in steps], self.options.gamma) for steps in episodes]
        found = advantages_where_compared(
            torch.tensor([*chain(*returns)], dtype=dtype), [*chain(*states)], self.options.mode == "mean_std_norm"
        )
        of_turns = zip(found[0].tolist(), found[1], strict=True)
        return [[next(of_turns) for _ in own] for own in states]

    def _compared(self, returns: Tensor, groups: Sequence[object]) -> Tensor:
        return grpo_advantages(returns, groups, self.options.mode == "mean_std_norm")
