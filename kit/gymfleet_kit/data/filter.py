"""The interface of a filter, which decides which episodes and conversations are worth learning from.

The included filters are the modules of `gymfleet_kit.data.filters`.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

from gymfleet_contracts.conversation import Conversation, Record
from gymfleet_contracts.trajectory import ScoredTrajectory
from pydantic import BaseModel, ConfigDict

from gymfleet_kit.plugins import PluginError


class Refused(PluginError):
    """The records must not be learned from as they are. The message is one line that names them."""


class FilterOptions(BaseModel):
    """The options of a filter, in the recipe table that names it. A misspelt key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


OptionsT = TypeVar("OptionsT", bound=FilterOptions)


class Filter(ABC, Generic[OptionsT]):
    """Decides which records to keep. One object filters one list of records, and may remember those it was shown."""

    Options: ClassVar[type[Any]] = FilterOptions
    """The model of its options, a subclass of `FilterOptions`."""

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    def note(self, record: Record) -> None:
        """Look at a record. Every record is noted, in order, before `keep` is called for the first one.

        Only a filter that compares a record with later ones needs this.
        """

    @abstractmethod
    def keep(self, record: Record) -> bool:
        """Return whether to keep a record. It is called once for each, in order.

        Raises `Refused` if a record must not be in the data at all.
        """


def replies(record: Record) -> list[str]:
    """Return the texts learned from a record: an episode's replies, or a conversation's learned messages."""
    if isinstance(record, Conversation):
        return [message.text for message in record.messages if message.teaches]
    return [turn.text for turn in record.trajectory.turns]


def actions(episode: ScoredTrajectory) -> list[str]:
    """Return the actions of an episode; for a reply without an action, its text."""
    return [turn.text if turn.action is None else turn.action for turn in episode.trajectory.turns]


def dialogue(record: Record) -> list[tuple[str, str]]:
    """Return the whole dialogue of a record, as roles and texts; in an episode, observations are the user's."""
    if isinstance(record, Conversation):
        return [(message.role, message.text) for message in record.messages]
    return [part for turn in record.trajectory.turns for part in (("user", turn.observation), ("assistant", turn.text))]


def opening(record: Record) -> str:
    """Return the text that the first reply answers: an episode's first observation, or the user's last message."""
    if not isinstance(record, Conversation):
        return record.trajectory.turns[0].observation if record.trajectory.turns else ""
    first = next(place for place, message in enumerate(record.messages) if message.teaches)
    return next((message.content for message in reversed(record.messages[:first]) if message.role == "user"), "")


def task_of(record: Record) -> str:
    """Return a string that identifies the task, or an empty one for a conversation without a task."""
    if isinstance(record, Conversation):
        task = record.task
        return "" if task is None else f"{task.env}/{task.split}/{task.task_id}"
    played = record.trajectory.task
    return f"{played.env}/{played.level}/{played.split}/{played.task_id}/{played.seed}"


def named(record: Record) -> str:
    """Return the name of a record in messages to people."""
    if isinstance(record, Conversation):
        return record.source or "a conversation"
    return record.trajectory.trajectory_id
