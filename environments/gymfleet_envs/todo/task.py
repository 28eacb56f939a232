"""One task of todo."""

from dataclasses import dataclass

from gymfleet_envs.agentgym_tools.base import Move
from gymfleet_envs.todo.account import Account, Status


@dataclass(frozen=True, slots=True)
class TodoTask:
    """A goal, the account in which to reach it, and the required answer and final state."""

    goal: str
    date: str
    location: str
    account: Account
    answer: str
    """The required answer to `finish`, as JSON: `"done"` for a change."""
    status: Status
    """The required state of the account at the end; for questions, the state at the beginning."""
    plan: tuple[Move, ...]
