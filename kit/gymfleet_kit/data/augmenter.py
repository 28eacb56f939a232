"""The interface of an augmenter, which turns an episode into others that are worth a try.

The included augmenters are the modules of `gymfleet_kit.data.augmenters`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from gymfleet_contracts.rollout import Move
from gymfleet_contracts.trajectory import Trajectory, Turn
from pydantic import BaseModel, ConfigDict


class AugmenterOptions(BaseModel):
    """The options of an augmenter, in the recipe table that names it. A misspelt key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


OptionsT = TypeVar("OptionsT", bound=AugmenterOptions)


class Augmenter(ABC, Generic[OptionsT]):
    """Turns an episode into others. One object serves a list of episodes, and remembers only what `note` is shown."""

    Options: ClassVar[type[Any]] = AugmenterOptions
    """The model of its options, a subclass of `AugmenterOptions`."""

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    def note(self, episode: Trajectory) -> None:
        """Look at an episode. Every episode is noted, in order, before `augment` is called for the first one.

        Only an augmenter that uses other episodes needs this.
        """

    @abstractmethod
    def augment(self, episode: Trajectory) -> Iterable[Sequence[Move]]:
        """Return the moves of changed episodes, each in order: none, one or several.

        They are only proposals: each is replayed in a new episode of the same task, and kept if it solves the task.
        """


def move_of(turn: Turn) -> Move | None:
    """Return the move of a turn, or None if the reply had no action."""
    return None if turn.action is None else Move(thought=turn.thought, action=turn.action, role=turn.role)
