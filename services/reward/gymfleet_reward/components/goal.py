"""Whether the task was solved."""

from gymfleet_contracts.trajectory import Trajectory
from pydantic import StrictBool

from gymfleet_reward.component import Component, ComponentError, ComponentOptions, Number


class GoalOptions(ComponentOptions):
    """The values of success and failure."""

    success: Number = 1.0
    """Raw reward of a solved task."""
    failure: Number = -1.0
    """Raw reward of an unsolved one."""
    partial: StrictBool = False
    """Put the environment's score on the scale from `failure` to `success`."""


class Goal(Component[GoalOptions]):
    """Whether the task was solved; with `partial`, how far, on the scale from failure to success."""

    Options = GoalOptions
    version = "1"

    def score(self, episode: Trajectory) -> float:
        """See `Component`."""
        options = self.options
        if not options.partial:
            return options.success if episode.success else options.failure
        if not 0 <= episode.score <= 1:
            raise ComponentError(f"the environment's score {episode.score} is outside [0, 1]")
        return options.failure + episode.score * (options.success - options.failure)
