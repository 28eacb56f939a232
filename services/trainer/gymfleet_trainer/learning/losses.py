"""Losses over packed tokens: pure functions; metrics are detached sums, so that micro-batches add up.

Every loss is a weighted sum over tokens. `token_weights` puts the aggregation into the weights, from counts of the
*global* batch: micro-batches and ranks then add up to exactly the loss of one large batch.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

LossAggregation = Literal["token_mean", "sequence_mean_token_sum", "sequence_mean_token_mean"]
_MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class GlobalCounts:
    """Counts over all sequences of one optimiser update, in every micro-batch and rank."""

    tokens: int
    """Tokens with a loss."""
    sequences: int
    """Sequences with at least one such token."""

    @classmethod
    def of(cls, num_trained: Iterable[int]) -> "GlobalCounts":
        """Count from each sequence's number of tokens with a loss, those included that have no gradient."""
        numbers = list(num_trained)
        return cls(tokens=sum(numbers), sequences=sum(number > 0 for number in numbers))


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The loss, and sums over its tokens."""

    loss: Tensor
    """() float, with grad."""
    clipped: Tensor
    """() float, tokens whose ratio was clipped."""
    dual_clipped: Tensor
    """() float, tokens with a negative advantage that the dual clip bounded."""
    approx_kl: Tensor
    """() float, sum of `old - new` log-probabilities: an estimate of the distance moved."""
    ratio_max: Tensor
    """() float, the largest ratio."""


def token_weights(
    mask: Tensor,
    cu_seqlens: Tensor,
    aggregation: LossAggregation,
    counts: GlobalCounts,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    r"""Return the weight of each token's loss, (T,) float, 0 outside the mask.

    ========================== ========================================
    token_mean                 :math:`1 / N`, DAPO, arXiv:2503.14476
    sequence_mean_token_sum    :math:`1 / B`, as in Dr.GRPO, arXiv:2503.20783
    sequence_mean_token_mean   :math:`1 / (B n_i)`, GRPO, arXiv:2402.03300
    ========================== ========================================

    Args:
        mask: (T,) bool, tokens with a loss.
        cu_seqlens: (S + 1,) int, where sequences start.
        aggregation: which of the three.
        counts: N and B of the global batch; :math:`n_i` is counted here, since sequences are never split.
        dtype: of the weights.
    """
    weights = mask.to(dtype)
    if aggregation == "token_mean":
        return weights / max(counts.tokens, 1)
    if aggregation == "sequence_mean_token_mean":
        starts = cu_seqlens.long()
        running = torch.cat([weights.new_zeros(1, dtype=torch.int64), mask.long().cumsum(0)])
        written = (running[starts[1:]] - running[starts[:-1]]).clamp(min=1)
        weights = weights / torch.repeat_interleave(written, starts.diff(), output_size=mask.numel())
    return weights / max(counts.sequences, 1)


def clipped_policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantage: Tensor,
    weight: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = None,
    importance_weight: Tensor | None = None,
) -> PolicyLoss:
    r"""Compute PPO's clipped surrogate with separate bounds, an optional dual clip and off-policy correction.

    .. math::
        L = -\sum_t w_t\, \rho_t \min\bigl(r_t A_t,\; \mathrm{clip}(r_t, 1-\epsilon_l, 1+\epsilon_h) A_t\bigr),
        \qquad r_t = \exp(\log\pi_\theta - \log\pi_{old})

    PPO, arXiv:1707.06347, eq. 7, with "clip-higher" of DAPO, arXiv:2503.14476. With `dual_clip` c, tokens with a
    negative advantage never count more than :math:`c\,|A_t|` (arXiv:1912.09729, eq. 5).
    :math:`\rho_t = \min(\pi_{old}/\mu, C)` corrects for a sampler :math:`\mu` that is not :math:`\pi_{old}`.

    Args:
        logprobs: (T,) float, log-probability of each token under the policy.
        old_logprobs: (T,) float, the same under the policy at the start of the batch; no grad.
        advantage: (T,) float, no grad.
        weight: (T,) float from `token_weights`; 0 where the token is not trained, whatever other tensors hold there.
        clip_low: the ratio's lower bound is `1 - clip_low`.
        clip_high: the ratio's upper bound is `1 + clip_high`.
        dual_clip: c > 1, or None.
        importance_weight: (T,) float from `truncated_importance_weight`, no grad; None counts as 1.
    """
    mask = weight > 0
    # Mask before exp: untrained positions hold arbitrary values, and inf * 0 is NaN.
    log_ratio = torch.where(mask, logprobs - old_logprobs, 0.0)
    ratio = log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    advantage = torch.where(mask, advantage, 0.0)
    unclipped = -ratio * advantage
    clipped = -ratio.clamp(1 - clip_low, 1 + clip_high) * advantage
    per_token = torch.maximum(unclipped, clipped)
    dual = torch.zeros_like(mask)
    if dual_clip is not None:
        bound = -dual_clip * advantage
        dual = (advantage < 0) & (per_token > bound)
        per_token = torch.where(advantage < 0, torch.minimum(per_token, bound), per_token)
    if importance_weight is not None:
        per_token = per_token * torch.where(mask, importance_weight, 0.0)
    return PolicyLoss(
        loss=(per_token * weight).sum(),
        clipped=(clipped > unclipped).detach().sum().float(),
        dual_clipped=dual.detach().sum().float(),
        approx_kl=-log_ratio.detach().sum(),
        ratio_max=ratio.detach().amax() if ratio.numel() else ratio.new_ones(()),
    )


def truncated_importance_weight(old_logprobs: Tensor, behaviour_logprobs: Tensor, cap: float) -> Tensor:
    r""":math:`\min(\pi_{old} / \mu, C)` per token, no grad; (T,) float.

    Bounds the correction for a sampler with stale weights or other kernels (truncated importance sampling).
    """
    log_ratio = (old_logprobs - behaviour_logprobs).detach()
    return log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp().clamp(max=cap)


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
