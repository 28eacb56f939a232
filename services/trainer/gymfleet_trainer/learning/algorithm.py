"""The interface of an algorithm: rows of tokens from trajectories, the worth of each token, and the loss.

An algorithm sees rows and models, never services. The engine (`engine.py`) packs, differentiates, clips, shards and
saves, and knows no algorithm.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import torch
from gymfleet_contracts.recipe_sections import AlgorithmFacts
from gymfleet_contracts.trajectory import ScoredTrajectory
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from gymfleet_trainer.learning.losses import GlobalCounts, LossAggregation, token_weights
from gymfleet_trainer.model.batching import PackedBatch, TrainSequence, sequences_from_trajectory
from gymfleet_trainer.model.critic import ValueModel
from gymfleet_trainer.model.microbatches import Sums
from gymfleet_trainer.model.optimizer import OptimizerOptions
from gymfleet_trainer.model.policy_model import PolicyModel, Reference, TokenLogprobs

OLD_LOGPROBS = "old_logprobs"


class AlgorithmOptions(BaseModel):
    """Options of an algorithm, in the recipe's table that names it. A misspelt key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


OptionsT = TypeVar("OptionsT", bound=AlgorithmOptions)


class Need(StrEnum):
    """What the engine provides to an algorithm that asks for it."""

    OLD_LOGPROBS = "old_logprobs"
    """`TokenOutputs.old_logprobs`: those under the weights before the batch, for a batch of several updates."""
    REFERENCE = "reference"
    """A frozen copy of the policy as it was at the start of the stage."""
    CRITIC = "critic"
    """A value model, which the engine trains together with the policy."""
    ENTROPY = "entropy"
    """`TokenOutputs.entropy`."""


class Trained(StrEnum):
    """A model with an optimiser."""

    POLICY = "policy"
    CRITIC = "critic"


class Verdict(StrEnum):
    """What to do with a group that was played."""

    KEEP = "keep"
    """It is trained on."""
    DROP = "drop"
    """It is not trained on, and its step does without it."""
    ANOTHER = "another"
    """A group of another task replaces it, up to `max_redraws` times; after that it is trained on as it is."""


class Sample(NamedTuple):
    """One scored trajectory, and the number of weight changes since its oldest token was sampled."""

    scored: ScoredTrajectory
    staleness: int
    roles: tuple[str, ...] | None = None
    """Roles whose tokens are trained; None for all."""


class Models(Protocol):
    """The models as they are before the update: one (L,) row on the CPU for each sequence, without gradients."""

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the weights, and of everything that is computed for a loss."""

    def logprobs(self, rows: Sequence[TrainSequence]) -> list[Tensor]:
        """Return the policy's log-probabilities, 0 on tokens without a loss."""

    def reference_logprobs(self, rows: Sequence[TrainSequence]) -> list[Tensor]:
        """Return the reference's; only with `Need.REFERENCE`."""

    def values(self, rows: Sequence[TrainSequence]) -> list[Tensor]:
        """Return the critic's value of the state before each token, 0 without a loss; only with `Need.CRITIC`."""


@dataclass(frozen=True)
class Loss:
    """A micro-batch's share of the loss, and its contribution to the metrics; all metrics are detached."""

    value: Tensor
    """() float, with grad. The values of all micro-batches add up to the update's loss: see `TokenOutputs.weights`."""
    parts: Mapping[str, Tensor | float] = field(default_factory=dict)
    """Parts of the loss: added up over an update, and averaged over the updates."""
    means: Mapping[str, tuple[Tensor | float, Tensor | float]] = field(default_factory=dict)
    """A sum and the number of its terms: averaged over all tokens of a batch of trajectories."""
    maxima: Mapping[str, Tensor | float] = field(default_factory=dict)

    def sums(self) -> Sums:
        """Return the metrics as the engine adds them up."""
        flat: Sums = {f"part/{name}": value for name, value in self.parts.items()}
        for name, (total, count) in self.means.items():
            flat |= {f"sum/{name}": total, f"count/{name}": count}
        return flat | {f"max/{name}": value for name, value in self.maxima.items()}


class TokenOutputs:
    """The models' outputs for one micro-batch, (T,) each: computed when first asked for, and only once."""

    def __init__(
        self,
        batch: PackedBatch,
        counts: GlobalCounts,
        *,
        policy: PolicyModel,
        reference: Reference | None,
        critic: ValueModel | None,
        trained: frozenset[Trained],
        temperature: float,
        entropy: bool = False,
        batch_number: int = 0,
    ) -> None:
        self.trained = trained
        """The models that this update trains."""
        self._batch = batch
        self.counts = counts
        """Counts of the whole update: means divide by them, so that micro-batches add up."""
        self._policy = policy
        self._reference = reference
        self._critic = critic
        self._temperature = temperature
        self._with_entropy = entropy
        self.batch_number = batch_number
        """How many batches of trajectories the stage has trained on before this one."""

    @cached_property
    def _of_policy(self) -> TokenLogprobs:
        return self._policy.token_logprobs(self._batch, temperature=self._temperature, with_entropy=self._with_entropy)

    @property
    def logprobs(self) -> Tensor:
        """Return the policy's log-probabilities, with grad; 0 without a loss."""
        return self._of_policy.logprobs

    @property
    def entropy(self) -> Tensor:
        """Return the entropy of the policy's distribution at each token, with grad; 0 without a loss.

        Only with `Need.ENTROPY`.
        """
        if (entropy := self._of_policy.entropy) is None:
            raise RuntimeError("the algorithm did not ask for entropies")
        return entropy

    @property
    def old_logprobs(self) -> Tensor:
        """Return the log-probabilities under the weights before the batch, without grad.

        For the first update of a batch, these are the policy's own.
        """
        return self._batch.fields.get(OLD_LOGPROBS, self.logprobs.detach())

    @cached_property
    def reference_logprobs(self) -> Tensor:
        """Return the reference's log-probabilities, without grad; only with `Need.REFERENCE`."""
        if self._reference is None:
            raise RuntimeError("the algorithm did not ask for a reference policy")
        with torch.no_grad():
            return self._reference.token_logprobs(self._batch, temperature=self._temperature).logprobs

    @cached_property
    def values(self) -> Tensor:
        """Return the critic's values, with grad; only with `Need.CRITIC`."""
        if self._critic is None:
            raise RuntimeError("the algorithm did not ask for a critic")
        return self._critic.values(self._batch)

    def weights(self, aggregation: LossAggregation, norm_tokens: int = 1) -> Tensor:
        """Return the weight of each token in a mean over the whole update, 0 without a loss."""
        batch, dtype = self._batch, self._policy.dtype
        return token_weights(
            batch.loss_mask, batch.cu_seqlens, aggregation, self.counts, dtype, norm_tokens=norm_tokens
        )


class Algorithm(ABC, Generic[OptionsT]):
    """How a policy learns from scored trajectories.

    While a batch is collected, `select` is called for each group. The engine then calls, for each batch: `rows` for
    each group, `prepare` once for all rows, `loss` for each micro-batch of each update, and `after_batch`.
    """

    Options: ClassVar[type[AlgorithmOptions]] = AlgorithmOptions
    facts: ClassVar[AlgorithmFacts] = AlgorithmFacts()
    """What it requires of the rest of a recipe."""
    roles: tuple[str, ...] | None = None
    """Roles whose tokens the stage trains, the same as in its samples; None for all."""

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    @property
    def needs(self) -> frozenset[Need]:
        """Return what the engine must provide; it may depend on the options, but not change."""
        return frozenset()

    @property
    def gamma(self) -> float:
        """Return the discount per token for spreading rewards, unless the recipe gives one."""
        return 1.0

    @property
    def critic_optimizer(self) -> OptimizerOptions:
        """Return the options of the critic's optimiser; only with `Need.CRITIC`."""
        return OptimizerOptions(learning_rate=1e-5)

    def trains(self, batch: int) -> frozenset[Trained]:  # noqa: ARG002 - for subclasses with a warm-up
        """Return which models are trained on batch number `batch`, from 0."""
        return frozenset({Trained.POLICY} | ({Trained.CRITIC} if Need.CRITIC in self.needs else set()))

    def select(self, group: Sequence[ScoredTrajectory]) -> Verdict:  # noqa: ARG002 - for subclasses
        """Return whether to train on a group. All its trajectories have rewards.

        The verdict depends on the group and the options alone: a resumed run asks again, before any batch, and must
        get the same answer.
        """
        return Verdict.KEEP

    def rows(self, group: Sequence[Sample]) -> list[TrainSequence]:
        """Return the token sequences of a group's trajectories: one each, or more where the context was replaced."""
        return [
            row
            for sample in group
            for row in sequences_from_trajectory(sample.scored, staleness=sample.staleness, roles=sample.roles)
        ]

    def prepare(self, rows: list[TrainSequence], models: Models) -> list[TrainSequence]:  # noqa: ARG002 - an option
        """Return the rows, in the same order, with the fields that `loss` needs, such as advantages."""
        return rows

    def has_gradient(self, row: TrainSequence) -> bool:
        """Return whether a prepared row can change the weights; those that cannot are counted but not computed."""
        return row.num_trained > 0

    @abstractmethod
    def loss(self, outputs: TokenOutputs, batch: PackedBatch) -> Loss:
        """Return a micro-batch's share of the loss. It may be called from several threads."""

    def after_batch(self, batch: int, models: Models, reported: Mapping[str, float]) -> None:
        """Do what is due after batch number `batch`, such as moving a controller.

        `reported` holds what the losses of the batch reported; it is equal in all processes.
        """

    def refreshes_reference(self, num_batches: int) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether the policy becomes its own reference after its first `num_batches` batches."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the algorithm must keep across a restart."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
