"""The allocation of a trajectory's total reward to the tokens that the policy sampled.

A segment is one turn's response; empty responses get nothing and cost nothing.
Every function returns one tuple per segment, aligned with its tokens.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from gymfleet_contracts.reward import Allocation

TokenRewards: TypeAlias = tuple[tuple[float, ...], ...]


def allocate(name: Allocation, total: float, lengths: Sequence[int], gamma: float) -> TokenRewards:
    """Spread `total` over segments of `lengths` tokens.

    The sum over all tokens is `total`, except for `discounted` and for an episode
    without any token, which has nothing to put it on.
    """
    return _ALLOCATIONS[name](total, lengths, gamma)


def last_token(total: float, lengths: Sequence[int], gamma: float) -> TokenRewards:  # noqa: ARG001 - one signature
    """Put the whole total on the episode's last token."""
    rows = [(0.0,) * length for length in lengths]
    for index in reversed(range(len(rows))):
        if rows[index]:
            rows[index] = (*rows[index][:-1], total)
            break
    return tuple(rows)


def uniform_positive(total: float, lengths: Sequence[int], gamma: float) -> TokenRewards:
    """Spread a gain equally over all tokens, but put a loss on the last one."""
    if total <= 0:
        return last_token(total, lengths, gamma)
    num_tokens = sum(lengths)
    return tuple((total / num_tokens,) * length if length else () for length in lengths)


def discounted(total: float, lengths: Sequence[int], gamma: float) -> TokenRewards:
    """Spread c_K = R and c_{s-1} = c_s * gamma^{L_s}, each evenly over its segment.

    This does not conserve R: with gamma 1 each of K turns gets all of it, K * R
    together. Use it with estimators that look at the rewards of single tokens
    (GAE), not with those that sum them.
    """
    return _spread([total * weight for weight in _weights(lengths, gamma)], lengths)


def discounted_normalised(total: float, lengths: Sequence[int], gamma: float) -> TokenRewards:
    """Spread in the same proportions as `discounted`, scaled to the sum R."""
    weights = _weights(lengths, gamma)
    norm = sum(weight for weight, length in zip(weights, lengths, strict=True) if length)
    return _spread(
        [total * weight / norm if length else 0.0 for weight, length in zip(weights, lengths, strict=True)], lengths
    )


def on_own_turns(token_rewards: TokenRewards, own: Sequence[float]) -> TokenRewards:
    """Add each turn's own reward to the turn's last token.

    An empty reply has no token: its reward goes to the nearest token before it, and at
    the beginning of the episode to the first token there is, so that the sum is conserved.
    """
    added = [0.0] * len(token_rewards)
    place = next((index for index, tokens in enumerate(token_rewards) if tokens), None)
    if place is None:
        return token_rewards
    for index, reward in enumerate(own):
        place = index if token_rewards[index] else place
        added[place] += reward
    return tuple(
        (*tokens[:-1], tokens[-1] + more) if tokens else () for tokens, more in zip(token_rewards, added, strict=True)
    )


def _weights(lengths: Sequence[int], gamma: float) -> list[float]:
    """Return, for each segment, gamma to the power of the number of tokens that follow it."""
    weights: list[float] = []
    following = 0
    for length in reversed(lengths):
        weights.append(gamma**following)
        following += length
    return weights[::-1]


def _spread(shares: Sequence[float], lengths: Sequence[int]) -> TokenRewards:
    return tuple((share / length,) * length if length else () for share, length in zip(shares, lengths, strict=True))


_ALLOCATIONS: Final[dict[Allocation, Callable[[float, Sequence[int], float], TokenRewards]]] = {
    "last_token": last_token,
    "uniform_positive": uniform_positive,
    "discounted": discounted,
    "discounted_normalised": discounted_normalised,
}
