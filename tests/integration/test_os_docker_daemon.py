"""The Docker backend against a daemon, with the image that `image` names by default. Everything is run for real."""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import docker
import httpx
import pytest
from gymfleet_env_server.catalogue import load_entry
from gymfleet_envs.environment import EngineLost
from gymfleet_envs.os.environment import ENVIRONMENT
from gymfleet_envs.os.generate import LEVELS
from gymfleet_envs.os.options import OsOptions
from gymfleet_envs.os.sandbox.base import Ran, SandboxError
from gymfleet_envs.os.sandbox.docker_container import DockerContainer
from gymfleet_envs.os.sandbox.docker_watch import LABEL, SERVER, SERVER_LABEL, Watch

from tests.conformance.env_server import EnvServer

LIMIT_S = 20.0
SMALL = OsOptions(backend="docker", memory_mib=64, disk_mib=16, processes=24)


def available() -> bool:
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    path = host.removeprefix("unix://") if host.startswith("unix://") else None
    base = "http://docker" if path else host.replace("tcp://", "http://", 1)
    try:
        if path:
            with socket.socket(socket.AF_UNIX) as knock:  # httpx leaves its socket open where nobody answers
                knock.connect(path)
        with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url=base, timeout=5) as http:
            return http.get(f"/images/{SMALL.image}/json").status_code == 200
    except (OSError, httpx.HTTPError):
        return False


if not available():
    pytest.skip(f"no Docker daemon answers that has the image {SMALL.image}", allow_module_level=True)


@pytest.fixture
def box() -> Iterator[DockerContainer]:
    sandbox = DockerContainer(SMALL)
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[DockerContainer]:
    """For tests that leave no trace."""
    sandbox = DockerContainer(SMALL)
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="module")
def api() -> Iterator[Any]:
    client = docker.from_env(timeout=30)
    yield client.api
    client.close()


def text(box: DockerContainer, command: str, timeout_s: float = LIMIT_S) -> str:
    return box.shell(command, timeout_s).output.decode(errors="replace")


def containers(api: Any) -> dict[str, str]:
    """All of this environment's, and the server that each is of."""
    found = api.containers(all=True, filters={"label": f"{LABEL}=os"})
    return {entry["Id"]: entry["Labels"][SERVER_LABEL] for entry in found}


class Among:
    """A daemon that holds these containers alone: a sweep in a test must not take another test's, about to start."""

    def __init__(self, api: Any, *container_ids: str) -> None:
        self.api = self
        self._api = api
        self._ids = container_ids

    def containers(self, **asked: Any) -> list[dict[str, Any]]:
        return [entry for entry in self._api.containers(**asked) if entry["Id"] in self._ids]

    def remove_container(self, container_id: str, **how: Any) -> None:
        self._api.remove_container(container_id, **how)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("level", LEVELS)
def test_expert_solves(level: str) -> None:
    tasks = load_entry("os", {}, {"os": {"backend": "docker"}}).tasks
    try:
        environment = ENVIRONMENT()
        environment.reset(tasks.by_index("test", level, 0).data, 0)
        while (move := environment.expert()) is not None:
            outcome = environment.step(move.action)
        environment.close()
    finally:
        load_entry("os", {})

    assert (outcome.terminated, outcome.score) == (True, 1.0)


def test_shell_keeps_directory_and_variables(box: DockerContainer) -> None:
    assert text(box, "cd /tmp; X=5; f() { echo f$X; }; alias hi='echo hello'") == ""

    assert text(box, "pwd; f; hi") == "/tmp\nf5\nhello\n"  # noqa: S108
    assert box.shell("false", LIMIT_S).code == 1
    assert text(box, "echo $?; id -u; hostname; umask; date +%Z") == "1\n0\ngymfleet\n0022\nUTC\n"


def test_programs_run_beside_the_shell_in_a_clean_environment(box: DockerContainer) -> None:
    box.shell("cd /tmp; export SECRET=1", LIMIT_S)

    ran = box.program(["bash", "-c", 'pwd; echo "$SECRET$1"; echo b >&2; exit 137', "--", "a b\n"], LIMIT_S)

    assert ran == Ran(b"/\na b\n\nb\n", 137)
    assert box.program(["python3", "-c", "print('x' * 100_000)"], LIMIT_S).output == b"x" * 100_000 + b"\n"
    assert box.program(["bash", "-c", "yes & exit 4"], LIMIT_S).code == 4, "what it leaves behind holds nothing up"


def test_output_that_comes_at_once_is_not_lost(box: DockerContainer) -> None:
    assert [box.program(["echo", "7"], LIMIT_S).output for _ in range(20)] == [b"7\n"] * 20


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 2)'", "unreachable"),
        ("python3 -c 'import socket; socket.getaddrinfo(\"example.com\", 80)'", "gaierror"),
        ("grep -c : /proc/net/dev", "1"),
        ("cat /proc/1/environ", "Permission denied"),
        ("exec 7>/proc/1/fd/0", "Permission denied"),
        ("echo x > /proc/1/mem", "Permission denied"),
        ("kill -STOP 1; kill -KILL 1; echo lives", "lives"),
        ("mkdir -p /m; mount -t tmpfs none /m", "permission denied"),
        ("unshare -m true", "not permitted"),
        ("mknod /tmp/disk b 8 0", "not permitted"),
        ("hostname evil", "must be root"),
        ("echo 1 > /proc/sys/kernel/panic", "Read-only file system"),
        ("grep CapBnd /proc/self/status", "00000000000000fb"),
        ("grep NoNewPrivs /proc/self/status", "1"),
        ("ls /var/run/docker.sock", "No such file"),
    ],
)
def test_ways_out_are_shut(shared: DockerContainer, command: str, shown: str) -> None:
    assert shown in text(shared, command)
    assert text(shared, "echo ok") == "ok\n"


@pytest.mark.parametrize("command", ["exit", "kill -9 $$", "exec cat", "sleep 1000 & exit"])
def test_killed_shell_is_replaced_in_the_same_container(box: DockerContainer, command: str) -> None:
    box.shell("echo kept > /root/file; export LOST=1; cd /tmp", LIMIT_S)

    ran = box.shell(command, LIMIT_S)

    assert (ran.shell_ended, ran.timed_out) == (True, False)
    assert text(box, "cat /root/file; echo $LOST; pwd") == "kept\n\n/\n"


def test_shell_that_ends_between_commands_is_said_and_replaced(box: DockerContainer) -> None:
    box.shell("(while [ ! -e /go ]; do sleep 0.01; done; kill -9 $$) &", LIMIT_S)
    box.program(["touch", "/go"], LIMIT_S)
    wait_for(lambda: box.program(["pgrep", "bash"], LIMIT_S).code == 1)

    assert box.shell("touch /root/late", LIMIT_S) == Ran(b"", None, shell_ended=True)
    assert text(box, "ls /root") == ""


@pytest.mark.parametrize("command", ["cat", "read x", "continue", "wait", "'", "(", "exec 2>&-; echo \udcff"])
def test_odd_commands_return_and_the_shell_lives(box: DockerContainer, command: str) -> None:
    ran = box.shell(f"X=5; {command}", LIMIT_S)

    assert (ran.timed_out, ran.shell_ended) == (False, False)
    assert text(box, "echo ok") == "ok\n"


@pytest.mark.parametrize("command", ["sleep 1000", "while :; do :; done", "trap '' TERM; kill -STOP $$"])
def test_command_that_takes_too_long_is_stopped_with_all_else(box: DockerContainer, command: str) -> None:
    ran = box.shell(f"sleep 1000 & echo begun; {command}", 0.5)

    assert ran == Ran(b"begun\n", None, timed_out=True, shell_ended=True)
    assert text(box, "pgrep -c sleep") == "0\n"
    assert box.program(["bash", "-c", "echo a; sleep 1000"], 0.5) == Ran(b"a\n", None, timed_out=True)


def test_fork_bomb_stays_inside(box: DockerContainer, shared: DockerContainer) -> None:
    ran = box.shell(":(){ :|:& };: ; sleep 5", 1.0)

    assert b"Resource temporarily unavailable" in ran.output or ran.timed_out
    assert text(shared, "(true; echo ok)") == "ok\n"
    assert text(box, "ls / | wc -l; echo ok").endswith("ok\n"), "the bomb is gone"


def test_shell_and_program_start_when_all_processes_are_used_up(box: DockerContainer) -> None:
    fork = "while 1:\n  try:\n    if os.fork() == 0: time.sleep(1000)\n  except OSError: break"
    box.shell(f"setsid python3 -c 'import os, time\n{fork}'; exit", LIMIT_S)

    assert text(box, "echo ok") == "ok\n"
    assert box.program(["echo", "7"], LIMIT_S) == Ran(b"7\n", 0)


def test_memory_bomb_ends_what_holds_it(box: DockerContainer) -> None:
    bomb = "python3 -c 'import time; x = bytearray(40 << 20); time.sleep(60)'"

    assert "Killed" in text(box, "python3 -c 'x = bytearray(10 ** 9)'")
    assert not box.shell(f"for i in 1 2 3 4; do {bomb} & done; wait -n; kill $(jobs -p)", LIMIT_S).timed_out
    assert text(box, "ls / | wc -l; echo ok").endswith("ok\n")


def test_memory_held_by_many_small_processes_does_not_cost_the_container(box: DockerContainer) -> None:
    small = "(x=$(printf '%4000000s'); sleep 2)"

    assert not box.shell(f"for i in $(seq 16); do {small} & done; wait; true", LIMIT_S).timed_out
    assert text(box, "echo ok") == "ok\n"


def test_endless_output_is_cut_and_not_kept(box: DockerContainer) -> None:
    ran = box.shell("yes", 0.5)

    assert (ran.timed_out, ran.cut, len(ran.output)) == (True, True, 16_384)
    assert text(box, "echo ok") == "ok\n"
    assert not box.shell("yes & true", LIMIT_S).timed_out
    assert not box.shell("kill %1; wait", LIMIT_S).timed_out
    assert text(box, "echo ok") == "ok\n"


def test_one_file_is_bounded(box: DockerContainer) -> None:
    ran = box.shell("head -c 40M /dev/zero > /x; stat -c %s /x; rm /x; echo ok", LIMIT_S)

    assert ran.output.endswith(b"16777216\nok\n")
    assert box.shell("head -c 40M /dev/zero > /dev/shm/x", LIMIT_S).code != 0


def test_container_whose_files_add_up_to_too_much_goes(box: DockerContainer, api: Any) -> None:
    identity = box.container_id

    ran = box.shell("for i in 1 2 3 4; do head -c 10M /dev/zero > /x$i; done; sleep 1000", LIMIT_S)

    assert ran == Ran(b"No space left on device: the sandbox was stopped\n", 1)
    assert box.shell("echo ok", LIMIT_S) == box.program(["true"], LIMIT_S) == ran
    wait_for(lambda: identity not in containers(api))


def test_agent_that_takes_bash_away_loses_by_it(box: DockerContainer) -> None:
    box.shell("rm -f /bin/bash /usr/bin/bash; exit", LIMIT_S)

    ran = box.shell("echo ok", LIMIT_S)

    assert ran.code == 127
    assert b"the sandbox starts no program" in ran.output
    assert box.program(["bash", "-c", "true"], LIMIT_S).code == 127


def test_container_gone_is_an_engine_lost_and_its_neighbour_lives(shared: DockerContainer, api: Any) -> None:
    tasks = load_entry("os", {}, {"os": {"backend": "docker"}}).tasks
    environment = ENVIRONMENT()
    try:
        environment.reset(tasks.by_index("test", "count", 0).data, 0)
        box = environment._sandbox
        assert isinstance(box, DockerContainer)
        assert environment.step("bash echo ok").observation.endswith("ok")
        with ThreadPoolExecutor(1) as threads:
            slow = threads.submit(environment.step, "bash sleep 8")
            wait_for(lambda: "sleep 8" in str(api.top(box.container_id)))
            api.kill(box.container_id)

            with pytest.raises(EngineLost, match="the sandbox ended"):
                slow.result()
        with pytest.raises(EngineLost):
            environment.step("bash echo ok")
    finally:
        environment.close()
        load_entry("os", {})
    assert text(shared, "echo ok") == "ok\n"


def test_nothing_is_left_after_close(api: Any) -> None:
    before, handles = containers(api), len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        sandbox = DockerContainer(SMALL)
        sandbox.shell("sleep 1000 & exit", LIMIT_S)
        sandbox.close()
        sandbox.close()

    wait_for(lambda: SERVER not in {server for key, server in containers(api).items() if key not in before})
    assert len(list(Path("/proc/self/fd").iterdir())) <= handles + 2, "the watch's connection alone stays open"
    with pytest.raises(SandboxError, match="closed"):
        sandbox.shell("true", LIMIT_S)


def test_nothing_is_left_after_a_killed_shard(api: Any, tmp_path: Path) -> None:
    others = set(containers(api).values())
    hold = "sleep 1000 & (trap '' HUP TERM; setsid sleep 1000 &); exec 7>/proc/1/fd/0"
    options = json.dumps({"os": {"backend": "docker"}})
    with EnvServer(tmp_path, "os", shards=1, options=options) as server, httpx.Client(base_url=server.url) as http:
        for _ in range(3):
            opened = http.post("/v1/sessions", json={"env": "os", "task_index": 0}, timeout=60).json()
            step = {"index": 0, "action": f"bash {hold}"}
            http.post(f"/v1/sessions/{opened['session_id']}/steps", json=step, timeout=60).raise_for_status()
        [killed] = set(containers(api).values()) - others
        [shard] = server.children()
        os.kill(shard, signal.SIGKILL)

        wait_for(lambda: killed not in containers(api).values())


def test_container_that_nobody_closed_goes(api: Any) -> None:
    sandbox = DockerContainer(SMALL)
    sandbox.shell("sleep 1000 &", LIMIT_S)
    identity = sandbox.container_id

    del sandbox
    gc.collect()

    wait_for(lambda: identity not in containers(api))


def test_container_that_a_killed_server_never_started_is_swept(api: Any) -> None:
    code = (
        "import os, docker; from gymfleet_envs.os.options import OsOptions\n"
        "from gymfleet_envs.os.sandbox.docker_room import container_arguments\n"
        "print(docker.from_env().containers.create(**container_arguments(OsOptions())).id, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    left = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False).stdout.strip()
    box, watch = DockerContainer(SMALL), Watch()
    seen = Among(api, left, box.container_id)

    watch.sweep(seen)
    assert left in containers(api), "it may be about to be started"
    watch.sweep(seen)

    assert left not in containers(api)
    assert text(box, "echo ok") == "ok\n", "what runs is left alone"
    box.close()


def test_image_that_is_not_there_is_one_clear_line() -> None:
    with pytest.raises(SandboxError, match="Docker has no image nowhere:1; build or pull it, or name another"):
        DockerContainer(SMALL.model_copy(update={"image": "nowhere:1"}))
