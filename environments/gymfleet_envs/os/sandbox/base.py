"""The interface of a sandbox, whichever program isolates it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

HEAD_BYTES: Final = 16_384
"""Bytes of a command's output that are kept: AgentBench shows 800 characters. The rest is read and discarded."""
PROGRAM_HEAD_BYTES: Final = 1 << 20
ENVIRONMENT: Final = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "LOGNAME": "root",
    "PYTHONDONTWRITEBYTECODE": "1",
    "SHELL": "/bin/bash",
    "TERM": "dumb",
    "TZ": "UTC",
    "USER": "root",
}
CHECK_ENVIRONMENT: Final = {
    **ENVIRONMENT,
    "GIT_CONFIG_NOSYSTEM": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONSAFEPATH": "1",
}
"""Keeps a check from importing modules that the agent put into the check's directory or home."""
SHELL_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAM_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"
"""For the task's own scripts: a program that the agent put into /usr/local does not replace a system program."""


class SandboxError(Exception):
    """No sandbox could be made, or it is gone. The message is one line with the reason."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a command or program.

    `output` is the beginning of standard output and error, in the order of arrival;
    `cut` is set if there was more. `code` is None if the command was stopped at its
    time limit (`timed_out`), or if the shell ended with it (`shell_ended`).
    """

    output: bytes
    code: int | None
    cut: bool = False
    timed_out: bool = False
    shell_ended: bool = False


@dataclass(slots=True)
class Head:
    """The first `limit` bytes of a stream."""

    limit: int
    data: bytearray = field(default_factory=bytearray)
    cut: bool = False

    def add(self, chunk: bytes) -> None:
        """Keep as much of the chunk as still fits."""
        room = self.limit - len(self.data)
        self.data += chunk[:room]
        self.cut = self.cut or len(chunk) > room


class Sandbox(Protocol):
    """One session's machine: a shell that persists between commands, and programs outside that shell."""

    def shell(self, command: str, timeout_s: float) -> Ran:
        """Run in the session's shell, which keeps its directory and variables. Raises `SandboxError`."""

    def program(self, argv: Sequence[str], timeout_s: float) -> Ran:
        """Run a preparation program outside the shell, in `/`, with a clean environment. Raises `SandboxError`."""

    def seal(self) -> None:
        """End the preparation: from now on, changes are the agent's. Raises `SandboxError`."""

    def check(self, argv: Sequence[str], timeout_s: float) -> Ran:
        """Run a check that sees the agent's files, but never an agent's file in place of a system file.

        The first check stops the agent's processes for good. Raises `SandboxError`.
        """

    @property
    def unseen(self) -> tuple[str, ...]:
        """Some of the paths where checks do not see the agent's changes."""

    def digest(self) -> str:
        """A digest that is equal for equal files. Raises `SandboxError`."""

    def close(self) -> None:
        """End all processes and discard all files. May be called again."""
