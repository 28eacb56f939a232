"""Recovery from mistakes."""

from typing import Annotated

from gymfleet_contracts.numbers import NUMBER
from gymfleet_contracts.trajectory import Trajectory
from gymfleet_kit.conduct import mistakes
from pydantic import Field

from gymfleet_reward.component import Component, ComponentOptions, turns_of


class RecoveryOptions(ComponentOptions):
    """How soon a mistake must be mended."""

    within: Annotated[int, Field(ge=1), NUMBER] = 1
    """Number of replies after a mistake, one of which must be understood."""


class Recovery(Component[RecoveryOptions]):
    """0 if no mistake was made or each was mended, down to -1 if none was mended.

    A mistake is a reply that asked for no action, or for one that the environment did not understand. Mending it gains
    nothing over making none: a mistake does not pay.
    """

    Options = RecoveryOptions
    version = "1"

    def score(self, episode: Trajectory) -> float:
        """See `Component`."""
        turns = turns_of(episode)
        made, mended = mistakes(turns, within=self.options.within)
        return mended / made - 1.0 if made else 0.0
