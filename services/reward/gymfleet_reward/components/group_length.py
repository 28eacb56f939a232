"""Length compared with that of the other episodes of the group."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from gymfleet_contracts.trajectory import Trajectory

from gymfleet_reward.component import Component, ComponentOptions, reply_tokens


class GroupLength(Component[ComponentOptions]):
    """From 0.5 for the shortest episode of a group to -0.5 for the longest; an unsolved one gains nothing.

    Length is the number of sampled tokens (Kimi k1.5, arXiv:2501.12599, section 2.3.3).
    """

    Options = ComponentOptions
    version = "1"
    per: ClassVar[Literal["episode", "group"]] = "group"

    def score_batch(self, episodes: Sequence[Trajectory]) -> list[float]:
        """See `Component`."""
        lengths = [sum(reply_tokens(episode)) for episode in episodes]
        shortest, longest = min(lengths), max(lengths)
        if shortest == longest:
            return [0.0] * len(episodes)
        shares = [0.5 - (length - shortest) / (longest - shortest) for length in lengths]
        return [share if episode.success else min(0.0, share) for episode, share in zip(episodes, shares, strict=True)]
