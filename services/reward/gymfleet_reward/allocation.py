"""How a trajectory's total is spread over the tokens that the policy wrote.

A segment is one turn's response; empty responses get nothing and cost nothing.
Every function answers one tuple per segment, aligned with its tokens.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from gymfleet_contracts.reward import Allocation

TokenRewards: TypeAlias = tuple[tuple[float, ...], ...]


def allocate(name: Allocation, total: float, lengths: Sequence[int], gamma: float) -> TokenRewards:
    """Spread `total` over segments of `lengths` tokens.

    The sum over all tokens is `total`, but for `discounted`, and but for an
    episode without any token: there is nothing to put it on.
    """
    return _ALLOCATIONS[name](total, lengths, gamma)


def last_token(total: float, lengths: Sequence[int], gamma: float) -> TokenRewards:  # noqa: ARG001 - one signature
    """All of it on the episode's last token."""
    last = max((index for index, length in enumerate(lengths) if length), default=-1)
    return tuple(
        (0.0,) * (length - 1) + (total,) if index == last else (0.0,) * length for index, length in enumerate(lengths)
    )


def uniform_positive(total: float, lengths: Sequence[int], gamma: float) -> TokenRewards:
    """A gain in equal parts on every token, a loss on the last one."""
    if total <= 0:
        return last_token(total, lengths, gamma)
    num_tokens = sum(lengths)
    return tuple((total / num_tokens,) * length if length else () for length in lengths)


def discounted(total: float, lengths: Sequence[int], gamma: float) -> TokenRewards:
    """c_K = R and c_{s-1} = c_s * gamma^{L_s}, each spread evenly over its segment.

    Does not conserve R: with gamma 1 each of K turns gets all of it, K * R
    together. Feed it to estimators that look at single tokens' rewards (GAE),
    not to those that sum them.
    """
    return _spread([total * weight for weight in _weights(lengths, gamma)], lengths)


def discounted_normalised(total: float, lengths: Sequence[int], gamma: float) -> TokenRewards:
    """The same proportions as `discounted`, scaled to the sum R."""
    weights = _weights(lengths, gamma)
    norm = sum(weight for weight, length in zip(weights, lengths, strict=True) if length)
    return _spread(
        [total * weight / norm if length else 0.0 for weight, length in zip(weights, lengths, strict=True)], lengths
    )


def on_own_turns(token_rewards: TokenRewards, own: Sequence[float]) -> TokenRewards:
    """Add to each turn's last token what is that turn's own.

    An empty reply has no token: what it earned goes to the nearest one before it, and
    at the episode's begin to the first one there is, so that the sum is conserved.
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
    """Gamma to the number of tokens that follow each segment."""
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
