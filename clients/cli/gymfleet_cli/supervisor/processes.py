"""Start a child in its own process session, which dies with this process or outlives it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from gymfleet_cli.supervisor import process_groups
from gymfleet_cli.supervisor.service import Service

_PR_SET_PDEATHSIG: Final = 1


def _die_with(parent: int) -> Callable[[], None]:
    import ctypes  # noqa: PLC0415 - most commands start nothing, and it takes as long as the rest of this package

    libc = ctypes.CDLL(None, use_errno=True)  # loaded before the fork, because nothing is imported or loaded after it

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent died between the fork and the line above
            os._exit(1)

    return prepare


def spawn(service: Service, log: Path, *, tethered: bool) -> "subprocess.Popen[bytes]":
    """Start a service; its output is appended to `log`. A tethered one gets SIGTERM when this process dies."""
    with log.open("ab") as output:
        return subprocess.Popen(
            service.argv,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **service.env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with(os.getpid()) if tethered else None,  # noqa: PLW1509 - one thread starts all
        )


class Guard:
    """A small process that ends the registered sessions when this process dies, for whatever reason."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", process_groups.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, leader: int) -> None:
        """Register a session to be ended when this process dies."""
        self._tell(f"+{leader}\n")

    def forget(self, leader: int) -> None:
        """Unregister a session that is gone, because its number may be given to another."""
        self._tell(f"-{leader}\n")

    def dismiss(self) -> None:
        """End the guard; the sessions that it still watches end with it."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        if self._process.stdin is None:
            return
        with suppress(BrokenPipeError):  # the guard was killed; the tether still works
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
