"""The base of algorithms that learn from preferences: examples, sums over both sides of a pair, one loss for each."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, ClassVar, NamedTuple, TypeVar

import torch
from gymfleet_contracts.recipe_sections import AlgorithmFacts
from gymfleet_contracts.trajectory import ScoredTrajectory
from pydantic import Field
from torch import Tensor

from gymfleet_trainer.learning.algorithm import Algorithm, AlgorithmOptions, Loss, Sample, TokenOutputs, Verdict
from gymfleet_trainer.learning.pairs import PREFERRED, LeftOut, Pair, PairOptions, find_pairs
from gymfleet_trainer.model.batching import PackedBatch, TrainSequence

Example = list[TrainSequence]
"""The rows of a pair or an episode that has one loss: they share one `unit`, and have the field `PREFERRED`."""


@dataclass
class Examples:
    """The examples to learn from, and how much was left out, by reason."""

    examples: list[Example] = field(default_factory=list)
    left_out: Counter[LeftOut] = field(default_factory=Counter)


class PreferenceOptions(AlgorithmOptions):
    """Options of every algorithm that learns from preferences."""

    dynamic_sampling: bool = False
    """Ask for another group to replace one that nothing can be learned from; up to `max_redraws` times. If false, the
    step does without the group."""


PreferenceT = TypeVar("PreferenceT", bound=PreferenceOptions)


class Preference(Algorithm[PreferenceT]):
    """Learn which episodes are better than others, in groups as they are played or from data."""

    Options: ClassVar[type[PreferenceOptions]] = PreferenceOptions

    @abstractmethod
    def examples(self, samples: Sequence[Sample]) -> Examples:
        """Return the examples to learn from in some episodes."""

    @abstractmethod
    def of_pair(self, pair: Pair) -> list[Example]:
        """Return the examples to learn from in a pair from a file."""

    def select(self, group: Sequence[ScoredTrajectory]) -> Verdict:
        """Drop a group that nothing can be learned from, or ask for another."""
        if self.examples([Sample(scored, 0, self.roles) for scored in group]).examples:
            return Verdict.KEEP
        return Verdict.ANOTHER if self.options.dynamic_sampling else Verdict.DROP

    def rows(self, group: Sequence[Sample]) -> list[TrainSequence]:
        """Return the rows of a group's examples."""
        return [row for example in self.examples(group).examples for row in example]


class Sides:
    """Values of the two sides of each of a micro-batch's U units: (U, 2), the chosen or good side first.

    A unit with only one side has 0 for the other.
    """

    def __init__(self, outputs: TokenOutputs, batch: PackedBatch) -> None:
        self._outputs = outputs
        self._batch = batch
        units = {place: number for number, of in enumerate(batch.places_by_unit.values()) for place in of}
        if len(units) != len(batch.lengths):
            raise ValueError("a row without a unit is no part of an example")
        self._num_units = len(batch.places_by_unit)
        device = batch.tokens.device
        lengths = torch.tensor(batch.lengths, device=device)
        number = torch.tensor([units[place] for place in range(len(units))], device=device)
        slots = 2 * number + (batch.fields[PREFERRED][batch.cu_seqlens[:-1].long()] == 0).long()
        self._slots = torch.repeat_interleave(slots, lengths, output_size=batch.num_tokens)

    def summed(self, values: Tensor) -> Tensor:
        """Return the sums of (T,) values over the trained tokens of each side."""
        trained = torch.where(self._batch.loss_mask, values, 0.0)
        return values.new_zeros(2 * self._num_units).index_add(0, self._slots, trained).view(-1, 2)

    @cached_property
    def num_tokens(self) -> Tensor:
        """Return the number of trained tokens."""
        return self.summed(torch.ones_like(self._outputs.logprobs.detach()))

    @cached_property
    def logprobs(self) -> Tensor:
        """Return the log-probabilities under the policy, with grad."""
        return self.summed(self._outputs.logprobs)

    @cached_property
    def mean_logprobs(self) -> Tensor:
        """Return the mean log-probability of a token under the policy, with grad."""
        return self.logprobs / self.num_tokens.clamp(min=1)

    @cached_property
    def gains(self) -> Tensor:
        """Return the log-probabilities under the policy less those under the reference, with grad."""
        return self.summed(self._outputs.logprobs - self._outputs.reference_logprobs)

    @cached_property
    def mean_gains(self) -> Tensor:
        """Return the mean gain of a token, with grad."""
        return self.gains / self.num_tokens.clamp(min=1)


class Judged(NamedTuple):
    """The loss of each of P pairs, (P,) with grad, and by how much its chosen side is preferred, (P,)."""

    losses: Tensor
    margins: Tensor


class PairedOptions(PreferenceOptions):
    """Options of every algorithm that learns from pairs."""

    pairs: PairOptions = PairOptions()
    nll_coefficient: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the chosen side's mean negative log-likelihood, an addition to the loss that keeps the side's
    probability from falling together with the rejected side's, as in RPO (arXiv:2404.19733)."""


PairedT = TypeVar("PairedT", bound=PairedOptions)


class Paired(Preference[PairedT]):
    """Prefer the better of two sides."""

    Options: ClassVar[type[PairedOptions]] = PairedOptions
    facts: ClassVar[AlgorithmFacts] = AlgorithmFacts(min_group_size=2)

    @abstractmethod
    def judge(self, sides: Sides) -> Judged:
        """Return the loss of each pair. It may be called from several threads."""

    def examples(self, samples: Sequence[Sample]) -> Examples:
        """Return the pairs; see `find_pairs`."""
        found = find_pairs(samples, self.options.pairs)
        return Examples([pair.rows() for pair in found.pairs], found.left_out)

    def of_pair(self, pair: Pair) -> list[Example]:
        """Return the pair."""
        return [pair.rows()]

    def loss(self, outputs: TokenOutputs, batch: PackedBatch) -> Loss:
        """Return this micro-batch's share of the mean over all pairs of the update."""
        sides, num_pairs = Sides(outputs, batch), max(outputs.counts.units, 1)
        losses, margins = self.judge(sides)
        preferred = losses.sum() / num_pairs
        nll = -sides.mean_logprobs[:, 0].sum() / num_pairs
        value = preferred + self.options.nll_coefficient * nll if self.options.nll_coefficient else preferred
        told, here = margins.detach(), len(margins)
        chosen, rejected = sides.logprobs.detach().unbind(1)
        return Loss(
            value,
            parts={"loss": value.detach(), "preference_loss": preferred.detach(), "nll": nll.detach()},
            means={
                "preference_margin": (told.sum(), here),
                "preference_accuracy": ((told > 0).sum().float(), here),
                "chosen_logprobs": (chosen.sum(), here),
                "rejected_logprobs": (rejected.sum(), here),
            },
        )
