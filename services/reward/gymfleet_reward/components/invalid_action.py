"""A cost for each action that was not understood."""

from gymfleet_contracts.trajectory import Trajectory
from gymfleet_kit.conduct import is_understood

from gymfleet_reward.component import Answer, Component, ComponentOptions, Number, turns_of


class InvalidActionOptions(ComponentOptions):
    """The cost of an action that was not understood."""

    weight: Number = -0.1
    """Cost of each reply whose action was not understood."""


class InvalidAction(Component[InvalidActionOptions]):
    """1 for each reply without an action or with one that was not understood, on the last token of that reply.

    With the weight of -0.1 it is the penalty of verl-agent (GiGPO, arXiv:2505.10978).
    """

    Options = InvalidActionOptions
    version = "1"

    def score(self, episode: Trajectory) -> Answer:
        """See `Component`."""
        turns = turns_of(episode)
        return [float(not is_understood(turn)) for turn in turns]
