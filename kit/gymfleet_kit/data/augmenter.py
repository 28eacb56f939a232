"""What an augmenter is: how an episode becomes others that are worth a try.

Those that come with gymfleet are the modules of `gymfleet_kit.data.augmenters`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from gymfleet_contracts.rollout import Move
from gymfleet_contracts.trajectory import Trajectory, Turn
from pydantic import BaseModel, ConfigDict


class AugmenterOptions(BaseModel):
    """What an augmenter can be told, in the table of a recipe that names it. A misspelt key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


OptionsT = TypeVar("OptionsT", bound=AugmenterOptions)


class Augmenter(ABC, Generic[OptionsT]):
    """How an episode becomes others. One object serves a list of episodes, and remembers only what `note` was shown."""

    Options: ClassVar[type[Any]] = AugmenterOptions
    """The model of its options, a subclass of `AugmenterOptions`."""

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    def note(self, episode: Trajectory) -> None:
        """Look at an episode. Every episode is noted, in order, before `augment` is asked for the first one.

        Only an augmenter that takes something from other episodes needs this.
        """

    @abstractmethod
    def augment(self, episode: Trajectory) -> Iterable[Sequence[Move]]:
        """Return the moves of changed episodes, each in order: none, one or several.

        They are only proposals: each is replayed in a new episode of the same task, and kept if it solves that.
        """


def move_of(turn: Turn) -> Move | None:
    """Return what was done in a turn, or None where the reply had no action."""
    return None if turn.action is None else Move(thought=turn.thought, action=turn.action, role=turn.role)
