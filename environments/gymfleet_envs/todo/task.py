"""One task of todo."""

from dataclasses import dataclass

from gymfleet_envs.agentgym_tools.base import Move
from gymfleet_envs.todo.account import Account, Status


@dataclass(frozen=True, slots=True)
class TodoTask:
    """A goal, the account in which it is to be reached, and what must be so at the end."""

    goal: str
    date: str
    location: str
    account: Account
    answer: str
    """What `finish` must be called with, as JSON: `"done"` for a change."""
    status: Status
    """What the account must be like at the end, in questions as in the beginning."""
    plan: tuple[Move, ...]
