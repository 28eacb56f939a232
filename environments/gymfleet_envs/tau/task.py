"""The data of a tau-bench task."""

import json
from dataclasses import dataclass, field
from typing import Any, Final

from gymfleet_envs.tau.database import World

RESPOND: Final = "respond"
TRANSFER: Final = "transfer_to_human_agents"
"""The tool that ends an episode."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool; `arguments` is a JSON object as text, so that a call is a constant."""

    name: str
    arguments: str

    @classmethod
    def of(cls, name: str, /, **arguments: Any) -> "Call":
        """Make a call."""
        return cls(name, json.dumps(arguments, ensure_ascii=False))

    def values(self) -> dict[str, Any]:
        """Return the arguments as a new object, which the caller may change."""
        values: dict[str, Any] = json.loads(self.arguments)
        return values

    @property
    def text(self) -> str:
        """The call as an action."""
        return f"{self.name} {self.arguments}"


@dataclass(frozen=True, slots=True)
class TauTask:
    """A customer with a wish, and the conditions that must hold in the end."""

    user_id: str
    instruction: str
    """What the customer knows and wants, in the second person."""
    actions: tuple[Call, ...]
    """The gold calls: reads, changes and possibly the transfer, in order."""
    outputs: tuple[str, ...]
    """Texts that the agent must say."""
    world: World = field(repr=False)
    refusal: str = ""
    """A clerk's answer to a wish that the policy forbids; for the expert alone."""
