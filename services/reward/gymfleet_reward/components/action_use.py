"""Actions that were worth taking."""

from gymfleet_contracts.trajectory import Trajectory

from gymfleet_reward.component import Component, ComponentError, ComponentOptions


class ActionUse(Component[ComponentOptions]):
    """The share of replies whose action was understood and was not taken in vain before.

    An action is in vain where the same one was already taken upon the same observation: it can tell nothing new.
    """

    Options = ComponentOptions
    version = "1"

    def score(self, episode: Trajectory) -> float:
        """See `Component`."""
        if not episode.turns:
            raise ComponentError("the trajectory has no turns")
        taken: set[tuple[str, str]] = set()
        useful = 0
        for turn in episode.turns:
            if turn.action is None or not turn.action_valid:
                continue
            useful += (turn.observation, turn.action) not in taken
            taken.add((turn.observation, turn.action))
        return useful / len(episode.turns)
