"""Losses over packed tokens: pure functions; metrics are detached sums, so that micro-batches add up.

Every loss is a weighted sum over tokens. `token_weights` puts the aggregation into the weights, from counts of the
*global* batch: micro-batches and ranks then add up to exactly the loss of one large batch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

import torch
from torch import Tensor

LossAggregation = Literal[
    "token_mean", "sequence_mean_token_sum", "sequence_mean_token_mean", "sequence_mean_token_sum_norm"
]
ImportanceLevel = Literal["token", "sequence", "sequence_geometric"]
_MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class GlobalCounts:
    """Counts over all sequences of one optimiser update, in every micro-batch and rank."""

    tokens: int
    """Tokens with a loss."""
    sequences: int
    """Sequences with at least one such token."""
    units: int = 0
    """Units that such sequences name, such as pairs."""

    @classmethod
    def of(cls, num_trained: Iterable[int], units: Iterable[str | None] = ()) -> "GlobalCounts":
        """Count from each sequence's unit and its number of tokens with a loss, including those without a gradient."""
        numbers = list(num_trained)
        named = {unit for number, unit in zip(numbers, units, strict=False) if number > 0 and unit is not None}
        return cls(tokens=sum(numbers), sequences=sum(number > 0 for number in numbers), units=len(named))


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a micro-batch as a surrogate sees them: (T,) each, with harmless values where there is no loss."""

    logprobs: Tensor
    """Under the policy, with grad."""
    log_ratio: Tensor
    """Log-probability under the policy less that under the policy before the batch, with grad; 0 without a loss."""
    advantages: Tensor
    """No grad; 0 without a loss."""
    mask: Tensor
    """bool, tokens with a loss."""
    cu_seqlens: Tensor
    """(S + 1,) int, where sequences start. Sequences are never split."""
    fields: Mapping[str, Tensor] = field(default_factory=dict)
    """The fields that `prepare` put on the rows, by name."""

    @classmethod
    def of(
        cls,
        logprobs: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        mask: Tensor,
        cu_seqlens: Tensor,
        fields: Mapping[str, Tensor] | None = None,
    ) -> Self:
        """Mask before anything is exponentiated: positions without a loss hold arbitrary values, and inf * 0 is NaN."""
        return cls(
            torch.where(mask, logprobs, 0.0),
            torch.where(mask, logprobs - old_logprobs, 0.0),
            torch.where(mask, advantages, 0.0),
            mask,
            cu_seqlens,
            fields or {},
        )

    @property
    def ratio(self) -> Tensor:
        """Return pi / pi_old with grad; 1 without a loss."""
        return bounded_exp(self.log_ratio)


@dataclass(frozen=True, slots=True)
class Surrogate:
    """The loss of each token, and which tokens are held back."""

    losses: Tensor
    """(T,) float, with grad; before weights and corrections."""
    clipped: Tensor
    """(T,) bool, tokens whose ratio was clipped or masked."""
    dual_clipped: Tensor | None = None
    """(T,) bool, tokens with a negative advantage that the dual clip bounded; None where there is none."""


def token_weights(
    mask: Tensor,
    cu_seqlens: Tensor,
    aggregation: LossAggregation,
    counts: GlobalCounts,
    dtype: torch.dtype = torch.float32,
    *,
    norm_tokens: int = 1,
) -> Tensor:
    r"""Return the weight of each token's loss, (T,) float, 0 outside the mask.

    ============================ ========================================
    token_mean                   :math:`1 / N`, DAPO, arXiv:2503.14476
    sequence_mean_token_sum      :math:`1 / B`
    sequence_mean_token_mean     :math:`1 / (B n_i)`, GRPO, arXiv:2402.03300
    sequence_mean_token_sum_norm :math:`1 / (B L)`, Dr.GRPO, arXiv:2503.20783
    ============================ ========================================

    Args:
        mask: (T,) bool, tokens with a loss.
        cu_seqlens: (S + 1,) int, where sequences start.
        aggregation: which of the four.
        counts: N and B of the global batch; :math:`n_i` is counted here, since sequences are never split.
        dtype: of the weights.
        norm_tokens: L, a constant.
    """
    weights = mask.to(dtype)
    if aggregation == "token_mean":
        return weights / max(counts.tokens, 1)
    if aggregation == "sequence_mean_token_mean":
        starts = cu_seqlens.long()
        running = torch.cat([weights.new_zeros(1, dtype=torch.int64), mask.long().cumsum(0)])
        written = (running[starts[1:]] - running[starts[:-1]]).clamp(min=1)
        weights = weights / torch.repeat_interleave(written, starts.diff(), output_size=mask.numel())
    if aggregation == "sequence_mean_token_sum_norm":
        weights = weights / norm_tokens
    return weights / max(counts.sequences, 1)


def clipped_surrogate(
    tokens: Tokens, *, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Surrogate:
    r"""Return PPO's clipped surrogate with separate bounds and an optional dual clip.

    .. math::
        L_t = -\min\bigl(r_t A_t,\; \mathrm{clip}(r_t, 1-\epsilon_l, 1+\epsilon_h) A_t\bigr),
        \qquad r_t = \exp(\log\pi_\theta - \log\pi_{old})

    PPO, arXiv:1707.06347, eq. 7, with "clip-higher" of DAPO, arXiv:2503.14476. With `dual_clip` c, tokens with a
    negative advantage never count more than :math:`c\,|A_t|` (arXiv:1912.09729, eq. 5).

    Args:
        tokens: the tokens to train on.
        clip_low: the ratio's lower bound is `1 - clip_low`.
        clip_high: the ratio's upper bound is `1 + clip_high`.
        dual_clip: c > 1, or None.
    """
    ratio, advantages = tokens.ratio, tokens.advantages
    unclipped = -ratio * advantages
    clipped = -ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    losses = torch.maximum(unclipped, clipped)
    dual = torch.zeros_like(tokens.mask)
    if dual_clip is not None:
        bound = -dual_clip * advantages
        dual = (advantages < 0) & (losses > bound)
        losses = torch.where(advantages < 0, torch.minimum(losses, bound), losses)
    return Surrogate(losses, clipped > unclipped, dual_clipped=dual)


def importance_weight(
    old_logprobs: Tensor,
    behaviour_logprobs: Tensor,
    mask: Tensor,
    cu_seqlens: Tensor,
    *,
    level: ImportanceLevel = "token",
    cap: float = 2.0,
    masked: bool = False,
) -> Tensor:
    r"""Return the weight that corrects for a sampler :math:`\mu` that is not :math:`\pi_{old}`, (T,) float, no grad.

    With :math:`w = \pi_{old} / \mu`, of each token, or of its whole sequence as the product or the geometric mean over
    its tokens: :math:`\min(w, C)` (truncated importance sampling, arXiv:1802.01561, section 4), or, if `masked`,
    w within :math:`[1/C, C]` and 0 outside.

    Args:
        old_logprobs: (T,) float.
        behaviour_logprobs: (T,) float.
        mask: (T,) bool, tokens with a loss; others weigh 1.
        cu_seqlens: (S + 1,) int, where sequences start.
        level: what the ratio is taken over.
        cap: C, above 1.
        masked: leave out weights that are too far off instead of bounding them.
    """
    log_ratio = torch.where(mask, old_logprobs - behaviour_logprobs, 0.0).detach()
    if level != "token":
        log_ratio = over_sequences(log_ratio, mask, cu_seqlens, mean=level == "sequence_geometric")
        log_ratio = torch.where(mask, log_ratio, 0.0)
    weight = bounded_exp(log_ratio)
    if masked:
        return torch.where((weight <= cap) & (weight >= 1 / cap), weight, 0.0)
    return weight.clamp(max=cap)


def over_sequences(values: Tensor, mask: Tensor, cu_seqlens: Tensor, *, mean: bool) -> Tensor:
    """Return for each token the sum, or the mean, over the masked tokens of its sequence; (T,) float, with grad."""
    lengths = cu_seqlens.long().diff()
    places = torch.repeat_interleave(torch.arange(len(lengths), device=values.device), lengths, output_size=len(values))
    summed = values.new_zeros(len(lengths)).index_add(0, places, torch.where(mask, values, 0.0))
    if mean:
        counts = torch.zeros_like(summed).index_add(0, places, mask.to(values.dtype))
        summed = summed / counts.clamp(min=1)
    return summed[places]


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """Return `exp` of log-ratios within +-20, so that it stays finite; beyond, there is no gradient."""
    return log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()


def weighted_mean(per_token: Tensor, weight: Tensor) -> Tensor:
    """Aggregate any per-token term (entropy, KL) under `token_weights`; () float, with grad.

    Args:
        per_token: (T,) float; ignored where the weight is 0.
        weight: (T,) float.
    """
    return (torch.where(weight > 0, per_token, 0.0) * weight).sum()


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, weight: Tensor, *, clip: float) -> Tensor:
    r"""Compute the clipped squared error of the critic, () float with grad.

    .. math::
        L = \tfrac{1}{2} \sum_t w_t \max\bigl((V_t - R_t)^2,\; (\mathrm{clip}(V_t, V^{old}_t \pm c) - R_t)^2\bigr)

    Args:
        values: (T,) float, the critic's current values.
        old_values: (T,) float, the critic's values at the start of the batch; no grad.
        returns: (T,) float, no grad.
        weight: (T,) float from `token_weights`.
        clip: c, how far one batch may move a value.
    """
    clipped = torch.clamp(values, old_values - clip, old_values + clip)
    return 0.5 * weighted_mean(torch.maximum((values - returns).square(), (clipped - returns).square()), weight)


def sft_loss(logprobs: Tensor, weight: Tensor) -> Tensor:
    """Return the demonstrated tokens' negative log-likelihood, () float with grad; `weight` from `token_weights`."""
    return -weighted_mean(logprobs, weight)
