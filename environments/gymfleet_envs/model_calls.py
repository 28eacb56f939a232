"""The interface that an environment's `ask` needs from the runtime that hosts it."""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

Messages: TypeAlias = Sequence[Mapping[str, str]]
"""A conversation as chat models take it: `{"role": "system" | "user" | "assistant", "content": "..."}`, in order."""


class Answerer(Protocol):
    """Answers what an environment asks: it bounds the calls, records the replies and repeats them in a replay."""

    async def ask(self, role: str, messages: Messages, max_tokens: int) -> str:
        """Return the reply. Raises `ModelFailed`."""

    def ask_blocking(self, role: str, messages: Messages, max_tokens: int) -> str:
        """Do the same and block the thread meanwhile."""


class Nobody:
    """Answers in an environment that no runtime hosts, such as in its author's test."""

    async def ask(self, role: str, messages: Messages, max_tokens: int) -> str:
        """Raise RuntimeError."""
        return self.ask_blocking(role, messages, max_tokens)

    def ask_blocking(self, role: str, messages: Messages, max_tokens: int) -> str:  # noqa: ARG002
        """Raise RuntimeError."""
        raise RuntimeError(f"nobody answers as {role!r} here: serve the environment, or replace its `ask` in a test")
