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
    """What an episode's reward loses by its length. The defaults are the paper's, which few agents come near."""

    max_tokens: PositiveInt = 20480
    """Response tokens of an episode from which on it loses all of `factor`."""
    buffer_tokens: PositiveInt = 4096
    """The loss grows in a straight line over so many tokens before that."""
    factor: Annotated[float, Field(ge=0)] = 1.0
    """The loss of an episode that is too long; 0 is off."""

    @model_validator(mode="after")
    def buffer_is_within(self) -> Self:
        """The loss begins at no negative length."""
        if self.buffer_tokens > self.max_tokens:
            raise ValueError(f"buffer_tokens must not exceed max_tokens = {self.max_tokens}")
        return self

    def penalty(self, num_tokens: int) -> float:
        r"""Return what an episode with so many response tokens loses.

        .. math:: f \min\Bigl(1, \max\Bigl(0, \frac{n - (L_{max} - L_{buffer})}{L_{buffer}}\Bigr)\Bigr)
        """
        excess = num_tokens - (self.max_tokens - self.buffer_tokens)
        return self.factor * min(1.0, max(0.0, excess / self.buffer_tokens))


class DapoOptions(GroupRelativeOptions, ClippedOptions):
    """DAPO's own."""

    clip_high: PositiveFloat = 0.28
    """The ratio is clipped at `1 + clip_high`."""
    aggregation: LossAggregation = "token_mean"
    """token_mean, sequence_mean_token_sum, sequence_mean_token_mean or sequence_mean_token_sum_norm, which divides the
    sums by `norm_tokens`."""
    dynamic_sampling: bool = True
    """Ask for another group in the place of one whose episodes all have the same reward, and which therefore has no
    gradient; up to `max_redraws` times."""
    overlong: OverlongOptions = OverlongOptions()
    filter_truncated: bool = False
    """Train on no token of an episode that the recipe cut off; its reward still counts for its group. The paper has it
    as the step before `overlong`, which it would leave without effect on what is cut off."""


class Dapo(GroupRelative[DapoOptions], Clipped[DapoOptions]):
    """DAPO, arXiv:2503.14476, section 3: clip-higher, dynamic sampling, token mean, overlong shaping; no KL."""

    Options: ClassVar[type[DapoOptions]] = DapoOptions

    def rows(self, group: Sequence[Sample]) -> list[TrainSequence]:
        """Return the rows with what their episodes lose by their length, and without what is filtered."""
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
