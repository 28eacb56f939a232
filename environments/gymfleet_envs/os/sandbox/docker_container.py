"""A sandbox kept shut by Docker: one container per session, without network, bounded, gone with the server.

The container's first process ends with its standard input, which this process holds
open: when the server is killed, the daemon closes it, all processes inside end with
the first, and the daemon removes the container. The agent, root as it is, can neither
trace that process nor open its files, so it cannot keep the input open.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import docker
from docker.errors import DockerException, ImageNotFound
from requests.exceptions import RequestException

from gymfleet_envs.os.options import OsOptions
from gymfleet_envs.os.sandbox.base import (
    ENVIRONMENT,
    HEAD_BYTES,
    PROGRAM_HEAD_BYTES,
    PROGRAM_PATH,
    SHELL_PATH,
    Head,
    Ran,
    SandboxError,
)
from gymfleet_envs.os.sandbox.docker_layer import ContainerLayer
from gymfleet_envs.os.sandbox.docker_stream import Stream
from gymfleet_envs.os.sandbox.docker_watch import LABEL, SERVER, SERVER_LABEL, WATCH
from gymfleet_envs.os.sandbox.skeleton import HOSTNAME
from gymfleet_envs.os.sandbox.supervisor import SHELL

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
# Docker's package loses what comes together with the answer to its request, so programs begin when told to; "b" tells
# them from Docker's own complaints. When memory runs out, they go before the first process.
_BEGIN: Final = "read -r _; echo 500 2>/dev/null >/proc/self/oom_score_adj; printf b; read -r _\n"
_SHELL: Final = f"{_BEGIN}exec 9<&0 8>&1 2>&1 </dev/null\n{SHELL}"
_PROGRAM: Final = f'{_BEGIN}exec "$@" 2>&1 </dev/null'
_CAPABILITIES: Final = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETUID", "SETGID"]
_FIRST_PROCESSES: Final = 2  # the first process, and the task's own program
_START_TIMEOUT_S: Final = 30.0
_ANSWER_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.01
_MIB: Final = 1 << 20
_OVERFULL: Final = b"No space left on device: the sandbox was stopped\n"


def container_arguments(options: OsOptions) -> dict[str, Any]:
    """For `containers.create`."""
    size = options.disk_mib * _MIB
    return {
        "image": options.image,
        "entrypoint": [],
        "command": ["python3", "-I", "-S", "-c", _FIRST],
        "stdin_open": True,
        "user": "0:0",
        "working_dir": "/root",
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


class _BrokenInside(Exception):
    """What could start programs before no longer can: the agent has taken bash away."""


class DockerContainer:
    """One sandbox. Calls come from one thread at a time; each container has its own connections."""

    def __init__(self, options: OsOptions) -> None:
        self.disk_bytes = options.disk_mib * _MIB
        self.container_id = ""
        self._options = options
        self._first: Stream | None = None
        self._shell: Stream | None = None
        self._sound = False
        self._overfull = False
        self._client = _client()
        try:
            with _errors(options.image):
                self._start()
        except BaseException:
            self.close()
            raise

    def shell(self, command: str, timeout_s: float) -> Ran:
        """Run in the session's shell. Raises `SandboxError`."""
        return self._guarded(lambda: self._run_in_shell(command, timeout_s))

    def program(self, argv: Sequence[str], timeout_s: float) -> Ran:
        """Run beside the shell. Raises `SandboxError`."""
        return self._guarded(lambda: self._run_beside(argv, timeout_s))

    def overflow(self) -> None:
        """Its files add up to more than `disk_bytes`: it goes, and every command says why."""
        self._overfull = True
        self._remove()

    def seal(self) -> None:
        """Nothing to do: checks run in the agent's own container."""

    def check(self, argv: Sequence[str], timeout_s: float) -> Ran:
        """Run beside the shell. Raises `SandboxError`."""
        return self.program(argv, timeout_s)

    @property
    def unseen(self) -> tuple[str, ...]:
        """None: a check sees all that the agent did, also to the system's programs."""
        return ()

    def digest(self) -> str:
        """Of what differs from the image. Raises `SandboxError`."""
        if not self.container_id:
            raise SandboxError("the sandbox is closed")
        with _errors(self._options.image):
            return self._layer.digest()

    def close(self) -> None:
        """Remove the container. May be called again."""
        for stream in (self._shell, self._first):
            if stream is not None:
                stream.close()
        self._shell = self._first = None
        if self.container_id:
            WATCH.remove(self.container_id)
            self._remove()
            self.container_id = ""
        self._client.close()

    def __del__(self) -> None:
        """Of a sandbox that nobody closed, nothing may stay."""
        if hasattr(self, "_client"):
            self.close()

    def _start(self) -> None:
        container = self._client.containers.create(**container_arguments(self._options))
        self.container_id = container.id
        self._layer = ContainerLayer(self._client.api, self.container_id)
        parameters = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        self._first = Stream(container.attach_socket(params=parameters), lambda: True)
        container.start()
        self._await(b"r", _START_TIMEOUT_S)
        WATCH.add(self)

    def _run_in_shell(self, command: str, timeout_s: float) -> Ran:
        if self._shell is None:
            _, self._shell = self._exec(["bash", "-c", _SHELL, "bash"], SHELL_PATH)
            if self._shell.until_marked("0", Head(HEAD_BYTES), time.monotonic() + _START_TIMEOUT_S) is None:
                self._tell(b"p")
                raise SandboxError("the shell did not start")
        token, until = secrets.token_hex(16), time.monotonic() + timeout_s
        head = Head(HEAD_BYTES + 64)
        words = (token, command.replace("\0", ""))
        with contextlib.suppress(OSError):  # the shell ended meanwhile: so does its output
            self._shell.send(b"".join(word.encode(errors="replace") + b"\0" for word in words))
        code = self._shell.until_marked(token, head, until)
        timed_out = code is None and time.monotonic() >= until
        if code is None:  # stopped, or gone: the next command gets a new shell
            self._shell.close()
            self._shell = None
            self._tell(b"k" if timed_out else b"p")
        return Ran(bytes(head.data[:HEAD_BYTES]), code, head.cut, timed_out, code is None)

    def _run_beside(self, argv: Sequence[str], timeout_s: float) -> Ran:
        words = ["bash", "-c", _PROGRAM, "bash", *(word.replace("\0", "") for word in argv)]
        exec_id, stream = self._exec(words, PROGRAM_PATH)
        head, until = Head(PROGRAM_HEAD_BYTES), time.monotonic() + timeout_s
        try:
            while time.monotonic() < until:
                if stream.read(head, until) is None:
                    return Ran(bytes(head.data), self._exit_code(exec_id), head.cut)
        finally:
            stream.close()
        self._tell(b"k")
        return Ran(bytes(head.data), None, head.cut, timed_out=True)

    def _exec(self, argv: list[str], path: str) -> tuple[str, Stream]:
        """Start a program. When the others leave no room for it, they end."""
        head = Head(500)
        for kill in (False, True):
            if kill:
                self._tell(b"k")
            exec_id, stream = self._exec_once(argv, path)
            with contextlib.suppress(OSError):
                stream.send(b"\n")
                if stream.says(b"b", head, time.monotonic() + _START_TIMEOUT_S):
                    stream.send(b"\n")
                    self._sound = True
                    return exec_id, stream
            stream.close()
        raise (_BrokenInside if self._sound else SandboxError)(f"the sandbox starts no program: {_printed(head)}")

    def _exec_once(self, argv: list[str], path: str) -> tuple[str, Stream]:
        if not self.container_id:
            raise SandboxError("the sandbox is closed")
        api = self._client.api
        environment = {**ENVIRONMENT, "PATH": path}
        created = api.exec_create(self.container_id, argv, stdin=True, environment=environment, workdir="/root")
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

    def _tell(self, what: bytes) -> None:
        """Have the first process do it; raises `SandboxError` when it is gone."""
        if self._first is None:
            raise SandboxError("the sandbox is closed")
        with contextlib.suppress(OSError):
            self._first.send(what)
        self._await(what, _ANSWER_TIMEOUT_S)

    def _await(self, answer: bytes, timeout_s: float) -> None:
        head = Head(500)
        if self._first is None or not self._first.says(answer, head, time.monotonic() + timeout_s):
            raise SandboxError(f"the sandbox ended{_printed(head) and ': '}{_printed(head)}")

    def _remove(self) -> None:
        with contextlib.suppress(DockerException, RequestException, OSError):
            self._client.api.remove_container(self.container_id, v=True, force=True)

    def _guarded(self, run: Callable[[], Ran]) -> Ran:
        try:
            with _errors(self._options.image):
                return run()
        except _BrokenInside as error:
            return Ran(f"{error}\n".encode(), 127)
        except SandboxError:
            if not self._overfull:
                raise
        return Ran(_OVERFULL, 1)


def _client() -> Any:
    try:
        return docker.from_env(timeout=60)
    except DockerException as error:
        raise SandboxError(f"no Docker daemon answers; start one or set DOCKER_HOST ({_one_line(error)})") from None


@contextlib.contextmanager
def _errors(image: str) -> Iterator[None]:
    """Docker's failures as `SandboxError`."""
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
