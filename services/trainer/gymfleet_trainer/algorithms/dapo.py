"""DAPO: GRPO that clips higher, samples until there is a signal, averages over tokens and shapes overlong episodes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from gymfleet_trainer.learning.algorithm import AlgorithmOptions, Sample
from gymfleet_trainer.learning.episodes import by_episode
from gymfleet_trainer.learning.group_relative import GroupRelative, GroupRelativeOptions
from gymfleet_trainer.learning.losses import LossAggregation
from gymfleet_trainer.learning.policy_gradient import Clipped, ClippedOptions
from gymfleet_trainer.model.batching import TrainSequence


class OverlongOptions(AlgorithmOptions):
    """The penalty on an episode's reward for its length. The defaults are the paper's; few agents come near them."""

    max_tokens: PositiveInt = 20480
    """Number of response tokens from which on an episode loses all of `factor`."""
    buffer_tokens: PositiveInt = 4096
    """The penalty grows linearly over this many tokens before `max_tokens`."""
    factor: Annotated[float, Field(ge=0)] = 1.0
    """The penalty of an episode that is too long; 0 is off."""

    @model_validator(mode="after")
    def buffer_is_within(self) -> Self:
        """Require that the penalty begins at no negative length."""
        if self.buffer_tokens > self.max_tokens:
            raise ValueError(f"buffer_tokens must not exceed max_tokens = {self.max_tokens}")
        return self

    def penalty(self, num_tokens: int) -> float:
        r"""Return the penalty of an episode with `num_tokens` response tokens.

        .. math:: f \min\Bigl(1, \max\Bigl(0, \frac{n - (L_{max} - L_{buffer})}{L_{buffer}}\Bigr)\Bigr)
        """
        excess = num_tokens - (self.max_tokens - self.buffer_tokens)
        return self.factor * min(1.0, max(0.0, excess / self.buffer_tokens))


class DapoOptions(GroupRelativeOptions, ClippedOptions):
    """Options of DAPO."""

    clip_high: PositiveFloat = 0.28
    """The ratio is clipped at `1 + clip_high`."""
    aggregation: LossAggregation = "token_mean"
    """token_mean, sequence_mean_token_sum, sequence_mean_token_mean or sequence_mean_token_sum_norm, which divides the
    sums by `norm_tokens`."""
    dynamic_sampling: bool = True
    """Ask for another group to replace one whose episodes all have the same reward, and which therefore has no
    gradient; up to `max_redraws` times."""
    overlong: OverlongOptions = OverlongOptions()
    filter_truncated: bool = False
    """Train on no token of an episode that the recipe cut off; its reward still counts for its group. In the paper this
    is the step before `overlong`, which would then have no effect on episodes that are cut off."""


class Dapo(GroupRelative[DapoOptions], Clipped[DapoOptions]):
    """DAPO, arXiv:2503.14476, section 3: clip-higher, dynamic sampling, token mean, overlong shaping; no KL."""

    Options: ClassVar[type[DapoOptions]] = DapoOptions

    def rows(self, group: Sequence[Sample]) -> list[TrainSequence]:
        """Return the rows with the penalties of their episodes, and without a loss on filtered episodes."""
        rows = super().rows(group)
        for indices in by_episode(rows):
            penalty = self.options.overlong.penalty(sum(sum(rows[index].loss_mask) for index in indices))
            last = rows[indices[-1]]
            if penalty:
                rewards = [*last.token_rewards[:-1], last.token_rewards[-1] - penalty]
                rows[indices[-1]] = replace(last, token_rewards=rewards)
            if self.options.filter_truncated and last.final_prompt_token_ids is not None:
                for index in indices:
                    rows[index] = replace(rows[index], loss_mask=[False] * len(rows[index].token_ids))
        return rows
