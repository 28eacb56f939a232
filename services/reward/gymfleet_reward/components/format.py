"""Replies in the format."""

from typing import Literal

from gymfleet_contracts.trajectory import Trajectory

from gymfleet_reward.component import Component, ComponentOptions, Number, turns_of


class FormatOptions(ComponentOptions):
    """The weight, and which replies count."""

    weight: Number = 0.2
    """Factor of the share of replies that follow the format and whose action was understood."""
    replies: Literal["all", "last"] = "all"
    """`last`: 1 or 0 for the last reply alone."""


class Format(Component[FormatOptions]):
    """The share of replies that follow the format and whose action the environment understood."""

    Options = FormatOptions
    version = "1"

    def score(self, episode: Trajectory) -> float:
        """See `Component`."""
        turns = turns_of(episode)[-1 if self.options.replies == "last" else 0 :]
        good = sum(turn.format_valid and turn.action_valid for turn in turns)
        return good / len(turns)
