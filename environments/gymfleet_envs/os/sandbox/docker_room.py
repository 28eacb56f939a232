"""One container, and the programs that the server runs in it.

The container's first process ends when its standard input closes, which the server
holds open. When the server is killed, the daemon closes the input, all processes
inside end with the first, and the daemon removes the container. Although the agent is
root, it can neither trace the first process nor open its files, so it cannot keep the
input open.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import docker
from docker.errors import DockerException, ImageNotFound
from requests.exceptions import RequestException

from gymfleet_envs.os.options import OsOptions
from gymfleet_envs.os.sandbox.base import (
    CHECK_ENVIRONMENT,
    ENVIRONMENT,
    PROGRAM_HEAD_BYTES,
    PROGRAM_PATH,
    SHELL_PATH,
    Head,
    Ran,
    SandboxError,
)
from gymfleet_envs.os.sandbox.docker_stream import Stream
from gymfleet_envs.os.sandbox.docker_watch import BESIDE_LABEL, LABEL, SERVER, SERVER_LABEL, WATCH
from gymfleet_envs.os.sandbox.skeleton import HOSTNAME

# Answers each byte of its input; on "k" it ends all other processes first. PR_SET_DUMPABLE 0 keeps root out of it.
_FIRST: Final = """
import ctypes, os, signal, sys, time
if ctypes.CDLL(None).prctl(4, 0, 0, 0, 0):
    sys.exit("the first process cannot be shut off")
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
said = b"r"
while said:
    if said == b"k":
        try:
            for _ in range(500):
                os.kill(-1, signal.SIGKILL)
                time.sleep(0.01)
        except ProcessLookupError:
            pass
    os.write(1, said)
    said = os.read(0, 1)
"""
# Docker's package loses output that arrives together with the answer to its request, so programs begin when told to;
# "b" distinguishes them from Docker's own complaints. When memory runs out, they are killed before the first process.
BEGIN: Final = "read -r _; echo 500 2>/dev/null >/proc/self/oom_score_adj; printf b; read -r _\n"
_PROGRAM: Final = f'{BEGIN}exec "$@" 2>&1 </dev/null'
_HELPER: Final = f'{BEGIN}exec "$@" 2>&1'
_CAPABILITIES: Final = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETUID", "SETGID"]
_FIRST_PROCESSES: Final = 2  # the first process, and the task's own program
START_TIMEOUT_S: Final = 30.0
_ANSWER_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.01
_MIB: Final = 1 << 20


def container_arguments(options: OsOptions, beside: str = "") -> dict[str, Any]:
    """Arguments for `containers.create`. With `beside`, the processes of that container are visible too."""
    size = options.disk_mib * _MIB
    arguments: dict[str, Any] = {
        "image": options.image,
        "entrypoint": [],
        "command": ["python3", "-I", "-S", "-B", "-c", _FIRST],
        "stdin_open": True,
        "user": "0:0",
        "working_dir": "/",
        "hostname": HOSTNAME,
        "environment": {**ENVIRONMENT, "PATH": SHELL_PATH},
        "network_mode": "none",
        "mem_limit": options.memory_mib * _MIB,
        "memswap_limit": options.memory_mib * _MIB,
        "pids_limit": options.processes + _FIRST_PROCESSES,
        "nano_cpus": int(options.cpus * 1e9),
        "cap_drop": ["ALL"],
        "cap_add": _CAPABILITIES,
        "security_opt": ["no-new-privileges"],
        "shm_size": min(size, 16 * _MIB),
        "ulimits": [
            docker.types.Ulimit(name="core", soft=0, hard=0),
            docker.types.Ulimit(name="fsize", soft=size, hard=size),
            docker.types.Ulimit(name="nofile", soft=1024, hard=1024),
        ],
        "log_config": docker.types.LogConfig(type="none"),
        "labels": {LABEL: "os", SERVER_LABEL: SERVER},
        "auto_remove": True,
    }
    if beside:
        arguments["pid_mode"] = f"container:{beside}"
        arguments["labels"] |= {BESIDE_LABEL: beside}
    return arguments


class BrokenInside(Exception):
    """The container could start programs before and no longer can: the agent has removed bash."""


class Room:
    """One container. Calls come from one thread at a time, `overflow` from any.

    Args:
        disk_bytes: limit of its files' total size.
        beside: another container whose processes are visible in this one. To spare
            them, a program in this one is ended only together with this container.
    """

    def __init__(self, client: Any, options: OsOptions, disk_bytes: int, beside: str = "") -> None:
        self.container_id = ""
        self.disk_bytes = disk_bytes
        self.overfull = False
        self._client = client
        self._options = options
        self._beside = beside
        self._environment = CHECK_ENVIRONMENT if beside else ENVIRONMENT
        self._first: Stream | None = None
        self._sound = False

    def start(self) -> None:
        """Make the container and wait for its first process. Raises `SandboxError` and Docker's errors."""
        container = self._client.containers.create(**container_arguments(self._options, self._beside))
        self.container_id = container.id
        parameters = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        self._first = Stream(container.attach_socket(params=parameters), lambda: True)
        container.start()
        self._await(b"r", START_TIMEOUT_S)
        WATCH.add(self)

    def program(self, argv: Sequence[str], timeout_s: float) -> Ran:
        """Run a program to its end. Raises `SandboxError`, `BrokenInside` and Docker's errors."""
        words = ["bash", "-c", _PROGRAM, "bash", *(word.replace("\0", "") for word in argv)]
        exec_id, stream = self.execute(words, PROGRAM_PATH)
        head, until = Head(PROGRAM_HEAD_BYTES), time.monotonic() + timeout_s
        try:
            while time.monotonic() < until:
                if stream.read(head, until) is None:
                    return Ran(bytes(head.data), self._exit_code(exec_id), head.cut)
        finally:
            stream.close()
        self.end_others()
        return Ran(bytes(head.data), None, head.cut, timed_out=True)

    def helper(self, script: str) -> Stream:
        """Start a Python script of the server and return its streams. Raises the same errors as `program`."""
        return self.execute(["bash", "-c", _HELPER, "bash", "python3", "-I", "-S", "-B", "-c", script], PROGRAM_PATH)[1]

    def execute(self, argv: list[str], path: str) -> tuple[str, Stream]:
        """Start a program whose bash begins with `BEGIN`. If other processes leave no room for it, end them."""
        head = Head(500)
        for kill in (False,) if self._beside else (False, True):
            if kill:
                self.tell(b"k")
            exec_id, stream = self._execute_once(argv, path)
            with contextlib.suppress(OSError):
                stream.send(b"\n")
                if stream.says(b"b", head, time.monotonic() + START_TIMEOUT_S):
                    stream.send(b"\n")
                    self._sound = True
                    return exec_id, stream
            stream.close()
        raise (BrokenInside if self._sound else SandboxError)(f"the sandbox starts no program: {_printed(head)}")

    def end_others(self) -> None:
        """End all but the first process; with `beside`, remove the whole container."""
        if self._beside:
            self.remove()
        else:
            self.tell(b"k")

    def tell(self, what: bytes) -> None:
        """Send a command to the first process and await its answer; raises `SandboxError` if it is gone."""
        if self._first is None:
            raise SandboxError("the sandbox is closed")
        with contextlib.suppress(OSError):
            self._first.send(what)
        self._await(what, _ANSWER_TIMEOUT_S)

    def overflow(self) -> None:
        """Remove the container because its files exceed `disk_bytes`."""
        self.overfull = True
        self.remove()

    def remove(self) -> None:
        """Have the daemon remove the container, whatever runs in it."""
        with contextlib.suppress(DockerException, RequestException, OSError):
            self._client.api.remove_container(self.container_id, v=True, force=True)

    def close(self) -> None:
        """Remove the container. May be called again."""
        if self._first is not None:
            self._first.close()
        self._first = None
        if self.container_id:
            WATCH.remove(self.container_id)
            self.remove()
            self.container_id = ""

    def _execute_once(self, argv: list[str], path: str) -> tuple[str, Stream]:
        if not self.container_id:
            raise SandboxError("the sandbox is closed")
        api = self._client.api
        environment = {**self._environment, "PATH": path}
        created = api.exec_create(self.container_id, argv, stdin=True, environment=environment, workdir="/")
        exec_id = str(created["Id"])
        return exec_id, Stream(api.exec_start(exec_id, socket=True), lambda: bool(api.exec_inspect(exec_id)["Running"]))

    def _exit_code(self, exec_id: str) -> int:
        until = time.monotonic() + _ANSWER_TIMEOUT_S
        while time.monotonic() < until:
            state = self._client.api.exec_inspect(exec_id)
            if not state["Running"] and state["ExitCode"] is not None:
                return int(state["ExitCode"])
            time.sleep(_POLL_S)  # the stream's end comes before the daemon knows of the program's
        raise SandboxError("Docker does not say how a program ended")

    def _await(self, answer: bytes, timeout_s: float) -> None:
        head = Head(500)
        if self._first is None or not self._first.says(answer, head, time.monotonic() + timeout_s):
            raise SandboxError(f"the sandbox ended{_printed(head) and ': '}{_printed(head)}")


def connect() -> Any:
    """Return a new Docker client. Raises `SandboxError`."""
    try:
        return docker.from_env(timeout=60)
    except DockerException as error:
        raise SandboxError(f"no Docker daemon answers; start one or set DOCKER_HOST ({_one_line(error)})") from None


@contextlib.contextmanager
def docker_errors(image: str) -> Iterator[None]:
    """Turn Docker's failures into `SandboxError`."""
    try:
        yield
    except ImageNotFound:
        raise SandboxError(f"Docker has no image {image}; build or pull it, or name another") from None
    except (DockerException, RequestException, OSError) as error:
        raise SandboxError(f"Docker: {_one_line(error)}") from None


def _printed(head: Head) -> str:
    return " ".join(bytes(head.data).decode(errors="replace").split())


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
