"""Advantage estimators: pure functions over tensors."""

from collections import Counter
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

_STD_EPS = 1e-6
_WHITEN_EPS = 1e-8


def grpo_advantages(returns: Tensor, group_ids: Sequence[Hashable], normalise_by_std: bool) -> Tensor:
    r"""Compare each return with its group's mean, optionally in units of the group's standard deviation.

    .. math:: A_i = \frac{R_i - \mathrm{mean}(R)}{\mathrm{std}(R) + 10^{-6}}

    DeepSeekMath, arXiv:2402.03300, section 4.1.2; without the division Dr.GRPO, arXiv:2503.20783. The standard
    deviation is the unbiased one (ddof = 1).

    Args:
        returns: (N,) float, one per episode.
        group_ids: N labels; episodes of one task share one.
        normalise_by_std: divide by the group's standard deviation.

    Returns:
        (N,) float. Groups whose returns are all equal get exactly 0.

    Raises:
        ValueError: a group has only one member, and hence no baseline.
    """
    groups, counts, means = _group_means(returns, group_ids)
    centred = returns - means[groups]
    if not normalise_by_std:
        return centred
    squares = torch.zeros_like(means).index_add_(0, groups, centred.square())
    std = (squares / (counts - 1)).sqrt()
    return centred / (std[groups] + _STD_EPS)


def advantages_where_compared(
    returns: Tensor, group_ids: Sequence[Hashable], normalise_by_std: bool
) -> tuple[Tensor, list[bool]]:
    """Return `grpo_advantages`, 0 for the only member of a group, and whether each return has others in its group."""
    members = Counter(group_ids)
    compared = [members[group] > 1 for group in group_ids]
    places = [place for place, known in enumerate(compared) if known]
    advantages = torch.zeros_like(returns)
    advantages[places] = grpo_advantages(returns[places], [group_ids[place] for place in places], normalise_by_std)
    return advantages, compared


def rloo_advantages(returns: Tensor, group_ids: Sequence[Hashable]) -> Tensor:
    r"""Compare each return with the mean of the *others* in its group: :math:`\frac{n}{n-1}(R_i - \mathrm{mean}(R))`.

    RLOO, arXiv:2402.14740. Shapes and errors as in `grpo_advantages`.
    """
    groups, counts, means = _group_means(returns, group_ids)
    return (returns - means[groups]) * (counts / (counts - 1))[groups]


def opo_advantages(returns: Tensor, lengths: Tensor, group_ids: Sequence[Hashable]) -> Tensor:
    r"""Compare each return with the mean of its group, weighted by the lengths of the episodes.

    .. math:: A_i = R_i - \frac{\sum_j l_j R_j}{\sum_j l_j}

    OPO, arXiv:2505.23585: the baseline of least variance if the squared norm of a gradient grows with the
    number of its tokens. `lengths` are (N,) numbers of written tokens; a group without any tokens has the plain mean.
    The rest is as in `grpo_advantages`.
    """
    groups, counts, _ = _group_means(returns, group_ids)
    weights = lengths.to(returns.dtype)
    empty = torch.zeros_like(counts).index_add_(0, groups, weights)[groups] == 0
    weights = torch.where(empty, 1.0, weights)
    first = _firsts(returns, groups, len(counts))[groups]
    total = torch.zeros_like(counts).index_add_(0, groups, weights)
    shifted = torch.zeros_like(counts).index_add_(0, groups, weights * (returns - first))
    return returns - first - (shifted / total)[groups]


def gpg_advantages(returns: Tensor, group_ids: Sequence[Hashable], normalise_by_std: bool) -> Tensor:
    r"""Compare each return with its group's mean, and make up for the episodes whose group has no signal.

    .. math:: A_i = \alpha \frac{R_i - \mathrm{mean}(R)}{F}, \qquad \alpha = \frac{N}{N - M}

    GPG, arXiv:2504.02546: M of the N episodes are in groups whose returns are all equal; they add nothing to the
    gradient but count in its divisor. F is 1, or the group's standard deviation. Shapes and errors as in
    `grpo_advantages`.
    """
    advantages = grpo_advantages(returns, group_ids, normalise_by_std)
    speaking = {group for group, advantage in zip(group_ids, advantages.tolist(), strict=True) if advantage != 0}
    num_speaking = sum(group in speaking for group in group_ids)
    return advantages * (len(group_ids) / max(num_speaking, 1))


def _group_means(returns: Tensor, group_ids: Sequence[Hashable]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the (N,) group index of each episode, the (G,) sizes and the (G,) means."""
    if len(group_ids) != len(returns):
        raise ValueError(f"{len(returns)} returns need as many group ids, not {len(group_ids)}")
    order: dict[Hashable, int] = {}
    groups = torch.tensor([order.setdefault(group, len(order)) for group in group_ids], dtype=torch.int64)
    counts = torch.bincount(groups, minlength=len(order)).to(returns.dtype)
    if (counts < 2).any():
        alone = [group for group, index in order.items() if counts[index] < 2]
        raise ValueError(f"groups of one have no baseline, give each at least two episodes: {alone[:5]}")
    # Shift by the first member, so that equal returns give a mean of exactly their value, and advantages of exactly 0.
    first = _firsts(returns, groups, len(order))
    shifted = torch.zeros_like(first).index_add_(0, groups, returns - first[groups])
    return groups, counts, first + shifted / counts


def _firsts(returns: Tensor, groups: Tensor, num_groups: int) -> Tensor:
    """Return the (G,) return of each group's first member."""
    first = torch.zeros(num_groups, dtype=returns.dtype)
    first[groups.flip(0)] = returns.flip(0)
    return first


def gae(
    rewards: Tensor, values: Tensor, final_values: Tensor, mask: Tensor, gamma: float, lam: float | Tensor
) -> tuple[Tensor, Tensor]:
    r"""Compute generalised advantage estimates over the tokens that the model wrote.

    .. math::
        \delta_t = r_t + \gamma V_{next} - V_t, \qquad
        A_t = \delta_t + \gamma\lambda A_{next}

    arXiv:1506.02438, eq. 16. `next` is the next *written* token: an observation's tokens have no value of their own,
    and bootstrapping from them would mix the environment's text into the estimate. After the last written token V is
    the final value: 0 if the environment ended the episode, and the critic's estimate if it was merely cut off.

    Args:
        rewards: (B, T) float.
        values: (B, T) float, the value before each token is written; no grad.
        final_values: (B,) float, the value of the state after the last token; no grad.
        mask: (B, T) bool, True on tokens that the model wrote.
        gamma: discount per written token.
        lam: trade-off between bias (0) and variance (1); one value, or (B,) values.

    Returns:
        Advantages and returns (`advantages + values`), both (B, T) and 0 outside the mask.
    """
    next_value = final_values
    next_advantage = rewards.new_zeros(rewards.shape[0])
    columns = []
    for t in range(rewards.shape[1] - 1, -1, -1):
        written = mask[:, t]
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        next_advantage = torch.where(written, delta + gamma * lam * next_advantage, next_advantage)
        next_value = torch.where(written, values[:, t], next_value)
        columns.append(torch.where(written, next_advantage, 0.0))
    advantages = torch.stack(columns[::-1], dim=1) if columns else rewards.clone()
    return advantages, torch.where(mask, advantages + values, 0.0)


def masked_whiten(values: Tensor, mask: Tensor) -> Tensor:
    """Normalise to mean 0 and (unbiased) variance 1 over the masked entries; 0 elsewhere. Any shape (...).

    Entries that are all equal become exactly 0. Raises ValueError if the mask selects fewer than two entries, which
    have no variance.
    """
    chosen = values[mask]
    if chosen.numel() < 2:
        raise ValueError(f"whitening needs at least two values, not {chosen.numel()}")
    # Shift by the first entry, as in `_group_means`: the mean of equal values may differ from them by rounding, and the
    # scale of values without variance would make advantages of that.
    shifted = values - chosen[0]
    scale = (chosen.var(correction=1) + _WHITEN_EPS).rsqrt()
    return torch.where(mask, (shifted - shifted[mask].mean()) * scale, 0.0)
