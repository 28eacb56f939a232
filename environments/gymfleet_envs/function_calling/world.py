"""The world on which a dialogue's functions act."""

from abc import ABC, abstractmethod
from typing import Final, Self

from gymfleet_envs.function_calling.calls import Call

ERROR: Final = "Error during execution: "
_MAX_NAME: Final = 100


class World(ABC):
    """The state that only one session's calls change."""

    @abstractmethod
    def call(self, call: Call) -> str:
        """Make a call; return its result, or `Error during execution: ...`. Never raises because of a model's text."""

    @abstractmethod
    def is_like(self, other: Self) -> bool:
        """Return whether every public attribute of the state is equal."""

    @abstractmethod
    def key(self) -> str:
        """Return a text that is equal for equal states."""

    @abstractmethod
    def copy(self) -> Self:
        """Return an independent world in the same state."""

    @property
    @abstractmethod
    def is_too_large(self) -> bool:
        """Return whether the state is larger than a session may hold."""


def refusal(call: Call) -> str | None:
    """Return the answer to a call whose arguments were not read; None for any other call."""
    return f"{ERROR}{call.fault}" if call.fault else None


def undefined(call: Call) -> str:
    """Return the answer to a call of a function that does not exist."""
    return f"{ERROR}name '{call.name.partition('.')[0][:_MAX_NAME]}' is not defined"
