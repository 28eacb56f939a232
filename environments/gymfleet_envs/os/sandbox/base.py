"""What a sandbox is, whichever program keeps it shut."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

HEAD_BYTES: Final = 16_384
"""Of a command's output this much is kept: AgentBench shows 800 characters. The rest is read and thrown away."""
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
"""A check imports no module that the agent laid into its directory or home."""
SHELL_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAM_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"
"""For the task's own scripts: what the agent put into /usr/local does not stand in for a system program."""


class SandboxError(Exception):
    """No sandbox could be made, or it is gone. One line that says why."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command or program did.

    `output` is the beginning of standard output and error, as they came; `cut` says
    that there was more. `code` is None when it was stopped at its time limit, or
    when the shell ended with it: `timed_out` and `shell_ended` say which.
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
        """Keep what still has room."""
        room = self.limit - len(self.data)
        self.data += chunk[:room]
        self.cut = self.cut or len(chunk) > room


class Sandbox(Protocol):
    """One session's machine: a shell that lives on between commands, and programs beside it."""

    def shell(self, command: str, timeout_s: float) -> Ran:
        """Run in the session's shell, which keeps its directory and variables. Raises `SandboxError`."""

    def program(self, argv: Sequence[str], timeout_s: float) -> Ran:
        """Prepare: run beside the shell, in /root, with a clean environment. Raises `SandboxError`."""

    def seal(self) -> None:
        """The preparation is over; from now on changes are the agent's. Raises `SandboxError`."""

    def check(self, argv: Sequence[str], timeout_s: float) -> Ran:
        """Run where the agent's files are seen and nothing of its own stands in for the system's.

        With the first check the agent's processes stand still for good. Raises `SandboxError`.
        """

    @property
    def unseen(self) -> tuple[str, ...]:
        """Paths, a few of them, that the agent changed and checks do not see so."""

    def digest(self) -> str:
        """Equal for equal files. Raises `SandboxError`."""

    def close(self) -> None:
        """End all processes and forget all files. May be called again."""
