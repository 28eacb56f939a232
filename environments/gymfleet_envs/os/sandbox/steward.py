"""One session's steward: holds its layer, starts programs over it, and answers requests about it. See `launcher`."""

import fcntl
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gymfleet_envs.os.sandbox import namespaces
from gymfleet_envs.os.sandbox.layer import Layer, Prepared, build_view
from gymfleet_envs.os.sandbox.rule import MAX_HIDDEN
from gymfleet_envs.os.sandbox.skeleton import MTIME

MAX_MESSAGE: Final = 1 << 16
MAX_HANDLES: Final = 16
PIDNS: Final = 500
AGENT_ROOT: Final = "/tmp/root"  # noqa: S108 - in mounts that only this process and what it starts see
CHECK_ROOT: Final = "/tmp/check/root"  # noqa: S108
AGENT_SHM: Final = "/tmp/shm"  # noqa: S108
CHECK_SHM: Final = "/tmp/check/shm"  # noqa: S108
"""The directories that the agent and the checks have as /dev/shm."""
_LAYER: Final = "/tmp/layer"  # noqa: S108
_SEEN: Final = "/tmp/seen"  # noqa: S108
_KEPT: Final = "/tmp/kept"  # noqa: S108
_MS_REMOUNT: Final = 32
_OUT_OF_THE_WAY: Final = 600


class Steward:
    """Answers one request after another; an answer has `error` if something failed."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._root = ""
        self._size = ""
        self._layer = Layer(_LAYER)
        self._prepared: Prepared | None = None
        self._hidden: list[str] | None = None
        self._last_digest = ""

    def serve(self) -> None:
        """Answer requests until the server disconnects."""
        while True:
            data, handles = namespaces.receive(self._server, MAX_MESSAGE, MAX_HANDLES)
            if not data:
                return
            request = json.loads(data)
            try:
                answer = getattr(self, f"_{request.pop('op')}")(handles, **request)
            except OSError as error:
                answer = {"error": f"{error.strerror or error}"}
            for handle in handles:
                os.close(handle)
            self._server.send(json.dumps(answer).encode())

    def _open(self, handles: Sequence[int], *, ranged: bool, size_bytes: int, inodes: int) -> Mapping[str, Any]:
        """Enter namespaces and mount the session's layer over the root that `handles` names."""
        os.fchdir(handles[0])  # of all that is open, the kernel moves only the working directory to the new mounts
        namespaces.enter_user_namespace(ranged=ranged)
        root = os.open(".", os.O_PATH | os.O_CLOEXEC)
        os.chdir("/")
        self._root, self._size = f"/proc/self/fd/{root}", f"size={size_bytes},nr_inodes={inodes}"
        namespaces.mount("tmpfs", "/tmp", "tmpfs", 0, f"mode=755,{self._size}")  # noqa: S108
        for folder in (_LAYER, "/tmp/work", AGENT_ROOT, AGENT_SHM, _SEEN, _KEPT, "/tmp/check"):  # noqa: S108
            os.mkdir(folder, 0o755)  # noqa: PTH102
        namespaces.mount("tmpfs", AGENT_SHM, "tmpfs", 0, f"mode=1777,{self._size}")
        _overlay(AGENT_ROOT, self._root, _LAYER, "/tmp/work")  # noqa: S108
        os.utime(_LAYER, (MTIME, MTIME))
        return {}

    def _start(
        self, handles: Sequence[int], *, argv: list[str], numbers: list[int], beside: int | None
    ) -> Mapping[str, Any]:
        """Start a program that has `handles` as descriptors `numbers`.

        With `beside`, it runs in the namespaces of that process, except for mounts; the namespace of process ids,
        which bubblewrap enters itself, is open as descriptor `PIDNS`.
        """
        pid = os.fork()
        if pid == 0:
            try:
                namespaces.die_with_parent()
                if beside is not None:
                    handles = [*handles, os.open(f"/proc/{beside}/ns/pid", os.O_RDONLY)]
                    numbers = [*numbers, PIDNS]
                    namespaces.join(beside, "net", "ipc", "uts")
                _execute(argv, handles, numbers)
            finally:
                os._exit(127)
        return {"pid": pid}

    def _seal(self, handles: Sequence[int]) -> Mapping[str, Any]:
        """End the preparation: existing changes are the task's, later ones the agent's."""
        del handles
        self._prepared = Prepared(self._layer, self._root, _KEPT)
        return {}

    def _digest(self, handles: Sequence[int]) -> Mapping[str, Any]:
        del handles
        return {"digest": self._last_digest or self._layer.digest()}

    def _view(self, handles: Sequence[int], *, size_bytes: int, inodes: int) -> Mapping[str, Any]:
        """Make the root in which checks run. The agent's processes are stopped."""
        del handles
        if self._hidden is None:
            self._last_digest = self._layer.digest()
            prepared = self._prepared or Prepared(self._layer, self._root, _KEPT)
            namespaces.mount("tmpfs", "/tmp", "tmpfs", _MS_REMOUNT, f"size={2 * size_bytes},nr_inodes={3 * inodes}")  # noqa: S108
            self._hidden = build_view(self._layer, prepared, self._root, _SEEN)
            namespaces.mount("tmpfs", "/tmp/check", "tmpfs", 0, f"mode=755,{self._size}")  # noqa: S108
            for folder in ("layer", "work", "root", "shm"):
                os.mkdir(f"/tmp/check/{folder}", 0o755)  # noqa: PTH102, S108
            os.chmod(CHECK_SHM, 0o1777)  # noqa: PTH101, S103
            _overlay(CHECK_ROOT, f"{_SEEN}:{self._root}", "/tmp/check/layer", "/tmp/check/work")  # noqa: S108
        return {"hidden": self._hidden[:MAX_HIDDEN]}


def _overlay(target: str, lower: str, upper: str, work: str) -> None:
    namespaces.mount("overlay", target, "overlay", 0, f"lowerdir={lower},upperdir={upper},workdir={work},userxattr")


def _execute(argv: list[str], handles: Sequence[int], numbers: Sequence[int]) -> None:
    raised = [fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY) for handle in handles]
    for handle, number in zip(raised, numbers, strict=True):
        os.dup2(handle, number)
    os.execve(argv[0], argv, {})  # noqa: S606 - no shell is meant
