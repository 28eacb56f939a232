"""Actions that were worth taking."""

from gymfleet_contracts.trajectory import Trajectory
from gymfleet_kit.conduct import num_useful

from gymfleet_reward.component import Component, ComponentOptions, turns_of


class ActionUse(Component[ComponentOptions]):
    """The share of replies whose action was understood and had not been taken before on the same observation."""

    Options = ComponentOptions
    version = "1"

    def score(self, episode: Trajectory) -> float:
        """See `Component`."""
        turns = turns_of(episode)
        return num_useful(turns) / len(turns)
