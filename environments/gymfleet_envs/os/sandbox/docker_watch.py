"""What Docker does not bound or clear away by itself: the files of all containers, and containers never started."""

import contextlib
import secrets
import threading
import time
import weakref
from typing import Any, Final, Protocol

import docker
from docker.errors import DockerException
from requests.exceptions import RequestException

LABEL: Final = "gymfleet"
SERVER_LABEL: Final = "gymfleet.server"
BESIDE_LABEL: Final = "gymfleet.beside"
"""Marks a container for checks; names the agent's container, which stands still meanwhile."""
SERVER: Final = secrets.token_hex(8)
"""Marks this process's containers."""
_EVERY_S: Final = 0.5
_SWEEP_EVERY_S: Final = 60.0
_STALE: Final = ("created", "exited", "dead", "paused")


class Watched(Protocol):
    """A container as the watch sees it."""

    @property
    def container_id(self) -> str:
        """Docker's id."""

    @property
    def disk_bytes(self) -> int:
        """What its files may add up to."""

    def overflow(self) -> None:
        """They add up to more: the container has to go. May be called from any thread."""


class Watch:
    """The containers under watch. Safe to use from any thread; its own one ends with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: weakref.WeakValueDictionary[str, Watched] = weakref.WeakValueDictionary()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._stale: set[str] = set()

    def add(self, container: Watched) -> None:
        """Begin to watch."""
        with self._lock:
            self._watched[container.container_id] = container
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="os-docker-watch", daemon=True)
                self._thread.start()
        self._wake.set()

    def remove(self, container_id: str) -> None:
        """Watch it no longer."""
        with self._lock:
            self._watched.pop(container_id, None)

    def look(self, client: Any) -> None:
        """One round: what holds too much is told. Raises Docker's errors."""
        found = client.api.containers(size=True, filters={"label": f"{SERVER_LABEL}={SERVER}"})
        with self._lock:
            watched = dict(self._watched)
        for entry in found:
            container = watched.get(entry["Id"])
            if container is not None and int(entry.get("SizeRw") or 0) > container.disk_bytes:
                container.overflow()

    def sweep(self, client: Any) -> None:
        """Remove what neither runs nor ran the last time: its server was killed.

        Running ones end with their server. A frozen one cannot, but the container for checks beside it does. Raises
        Docker's errors.
        """
        entries = client.api.containers(all=True, filters={"label": f"{LABEL}=os"})
        beside = {entry["Labels"].get(BESIDE_LABEL) for entry in entries if entry["State"] == "running"}
        found = {entry["Id"] for entry in entries if entry["State"] in _STALE and entry["Id"] not in beside}
        for container_id in found & self._stale:
            with contextlib.suppress(DockerException):  # another server may be doing the same
                client.api.remove_container(container_id, v=True, force=True)
        self._stale = found

    def _run(self) -> None:
        client: Any = None
        swept_at = -_SWEEP_EVERY_S
        while True:
            self._wake.wait()
            try:
                client = client or docker.from_env(timeout=60)
                self.look(client)
                if time.monotonic() - swept_at >= _SWEEP_EVERY_S:
                    swept_at = time.monotonic()
                    self.sweep(client)
            except (DockerException, RequestException, OSError):
                client = None  # sessions say what is wrong with the daemon
            with self._lock:
                if not self._watched:
                    self._wake.clear()
            time.sleep(_EVERY_S)


WATCH: Final = Watch()
