"""A real `gymfleet-env-server` on a free port, for tests of every kind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import psutil

from tests.fixtures import preloaded
from tests.fixtures.ports import free_port

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
COMMAND = str(Path(sys.executable).with_name("gymfleet-env-server"))


class EnvServer:
    """Start and stop one server. Keyword arguments are its settings: `step_timeout_s=1` and so on."""

    def __init__(self, directory: Path, *references: str, **settings: object) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = directory / f"env-server-{self.port}.log"
        self._command = [COMMAND, *references]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("GYMFLEET_ENV_")}
        given = {f"GYMFLEET_ENV_{key.upper()}": str(value) for key, value in settings.items()}
        self._environment = {**inherited, **given, "GYMFLEET_ENV_PORT": str(self.port)}
        self._process: preloaded.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def start(self) -> None:
        """Start and wait until it is ready."""
        with self._log.open("ab") as log:
            self._process = preloaded.start(self._command, self._environment, log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"the server did not start: {self.log[-2000:]}")
            time.sleep(0.05)

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> int:
        """End the process and wait for it: its exit code."""
        assert self._process is not None
        self._process.send_signal(sig)
        try:
            return self._process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # its log then says where each of its threads stands
            self._process.wait(timeout=STOP_TIMEOUT_S)
            raise RuntimeError(f"the server did not end: {self.log[-8000:]}") from None

    def signal(self, sig: signal.Signals) -> bool:
        """Send a signal; whether the process was there to get it."""
        assert self._process is not None
        self._process.send_signal(sig)
        return self._process.poll() is None

    def wait(self, timeout_s: float) -> int:
        """Wait for the process to end by itself: its exit code."""
        assert self._process is not None
        return self._process.wait(timeout=timeout_s)

    def children(self) -> list[int]:
        """Process ids of the shards."""
        return [child.pid for child in psutil.Process(self.pid).children()]

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=15).status_code == 200
        except httpx.TransportError:
            return False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.stop()


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(pids: list[int], timeout_s: float = 20.0) -> None:
    """Wait for processes to end; AssertionError with those that do not."""
    deadline = time.monotonic() + timeout_s
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.02)
