"""A watch over what Docker does not bound or remove itself: containers' files, and containers never started."""

import contextlib
import secrets
import time
import weakref
from typing import Any, Final, Protocol

import docker
from docker.errors import DockerException
from requests.exceptions import RequestException

from gymfleet_envs.os.sandbox.watch_thread import WatchThread

LABEL: Final = "gymfleet"
SERVER_LABEL: Final = "gymfleet.server"
BESIDE_LABEL: Final = "gymfleet.beside"
"""Marks a container for checks; its value is the agent's container, which is frozen meanwhile."""
SERVER: Final = secrets.token_hex(8)
"""Marks this process's containers."""
_SWEEP_EVERY_S: Final = 60.0
_STALE: Final = ("created", "exited", "dead", "paused")


class Watched(Protocol):
    """A container as the watch sees it."""

    @property
    def container_id(self) -> str:
        """Docker's id."""

    @property
    def disk_bytes(self) -> int:
        """Limit of its files' total size."""

    def overflow(self) -> None:
        """Remove the container because its files exceed the limit. May be called from any thread."""


class Watch(WatchThread[str, Watched]):
    """The containers under watch, by their ids."""

    def __init__(self) -> None:
        super().__init__("os-docker-watch", weakref.WeakValueDictionary(), every_s=0.5)
        self._client: Any = None
        self._swept_at = -_SWEEP_EVERY_S
        self._stale: set[str] = set()

    def add(self, container: Watched) -> None:
        """Begin to watch."""
        self._watch(container.container_id, container)

    def look(self, client: Any) -> None:
        """Do one round: call `overflow` of each container that holds too much. Raises Docker's errors."""
        found = client.api.containers(size=True, filters={"label": f"{SERVER_LABEL}={SERVER}"})
        watched = self._watched()
        for entry in found:
            container = watched.get(entry["Id"])
            if container is not None and int(entry.get("SizeRw") or 0) > container.disk_bytes:
                container.overflow()

    def sweep(self, client: Any) -> None:
        """Remove containers that neither run nor ran at the last sweep: their server was killed.

        Running containers end with their server. A frozen one cannot, but its container for checks does. Raises
        Docker's errors.
        """
        entries = client.api.containers(all=True, filters={"label": f"{LABEL}=os"})
        beside = {entry["Labels"].get(BESIDE_LABEL) for entry in entries if entry["State"] == "running"}
        found = {entry["Id"] for entry in entries if entry["State"] in _STALE and entry["Id"] not in beside}
        for container_id in found & self._stale:
            with contextlib.suppress(DockerException):  # another server may be doing the same
                client.api.remove_container(container_id, v=True, force=True)
        self._stale = found

    def _round(self) -> None:
        try:
            self._client = self._client or docker.from_env(timeout=60)
            self.look(self._client)
            if time.monotonic() - self._swept_at >= _SWEEP_EVERY_S:
                self._swept_at = time.monotonic()
                self.sweep(self._client)
        except (DockerException, RequestException, OSError):
            self._client = None  # sessions say what is wrong with the daemon


WATCH: Final = Watch()
