"""Episodes with turns that lead nowhere."""

from gymfleet_contracts.rollout import Move

from gymfleet_kit.data.augmenters._pool import Inserting, InsertOptions


class DistractorOptions(InsertOptions):
    """The actions to insert; `actions = ["look", "inventory"]` suits environments that have them."""

    thought: str = "I take a look at where I am."
    """The thought for an inserted action."""


class Distractor(Inserting[DistractorOptions]):
    """Insert actions that the environment understood elsewhere, then go on; the replay shows whether they spoil it."""

    Options = DistractorOptions

    def instead(self, move: Move, other: str) -> list[Move]:
        """See `Inserting`."""
        return [Move(thought=self.options.thought, action=other), move]
