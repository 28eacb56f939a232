"""What a dialogue's functions act on."""

from abc import ABC, abstractmethod
from typing import Final, Self

from gymfleet_envs.function_calling.calls import Call

ERROR: Final = "Error during execution: "
_MAX_NAME: Final = 100


class World(ABC):
    """The state that one session's calls change, and nobody else's."""

    @abstractmethod
    def call(self, call: Call) -> str:
        """Make a call and return its result, or `Error during execution: ...`. Never raises for what a model wrote."""

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
        """Return whether the state has outgrown what a session may hold."""


def refusal(call: Call) -> str | None:
    """Return the answer to a call whose arguments were not read, if it is one."""
    return f"{ERROR}{call.fault}" if call.fault else None


def undefined(call: Call) -> str:
    """Return the answer to a call of what there is not."""
    return f"{ERROR}name '{call.name.partition('.')[0][:_MAX_NAME]}' is not defined"
