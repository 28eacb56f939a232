"""Real child processes: started, waited for, restarted, stopped, and none left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gymfleet_cli.supervisor.errors import Interrupted, ServiceFailed
from gymfleet_cli.supervisor.interrupts import Interrupts
from gymfleet_cli.supervisor.ports import free_ports
from gymfleet_cli.supervisor.process_groups import members, stop_groups
from gymfleet_cli.supervisor.service import Service
from gymfleet_cli.supervisor.state import read_state
from gymfleet_cli.supervisor.supervisor import Supervisor
from gymfleet_cli.supervisor.sweep import sweep

SERVER = """
import http.server, sys, pathlib
marks = pathlib.Path(sys.argv[2])
with marks.open("a") as file:
    file.write("started\\n")
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Ready).serve_forever()
"""
STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(600)"
)
WITH_CHILD = (
    "import subprocess, sys, time\nsubprocess.Popen(['sleep', '600'])\nprint('child', flush=True)\ntime.sleep(600)"
)
DEADLINE_S = 30.0


def python(name: str, program: str, *arguments: str, port: int = 0) -> Service:
    argv = (sys.executable, "-S", "-c", program, *arguments)
    return Service(name=name, argv=argv, port=port, probe="http" if port else "none")


def server(directory: Path) -> Service:
    (port,) = free_ports(1)
    return python("server", SERVER, str(port), str(directory / "marks"), port=port)


def pid_of(directory: Path, name: str) -> int:
    state = read_state(directory)
    assert state is not None
    return next(service.process.pid for service in state.services if service.name == name)


def wait_for_log(directory: Path, name: str) -> None:
    log = directory / "logs" / f"{name}.log"
    deadline = time.monotonic() + DEADLINE_S
    while not log.read_text():
        assert time.monotonic() < deadline, f"{name} said nothing"
        time.sleep(0.02)


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    with Interrupts() as entered:
        yield entered


@pytest.fixture
def supervisor(tmp_path: Path, interrupts: Interrupts) -> Iterator[Supervisor]:
    with Supervisor(tmp_path, interrupts=interrupts, tethered=True, stop_grace_s=3.0) as entered:
        yield entered


def test_service_becomes_ready_and_is_stopped(tmp_path: Path, supervisor: Supervisor) -> None:
    supervisor.start(server(tmp_path))

    supervisor.wait_ready(["server"])
    pid = pid_of(tmp_path, "server")
    assert members(pid) == [pid]
    supervisor.stop()

    assert members(pid) == []
    assert read_state(tmp_path) is None


def test_killed_service_is_started_again_on_its_port(tmp_path: Path, supervisor: Supervisor) -> None:
    service = server(tmp_path)
    supervisor.start(service)
    supervisor.wait_ready(["server"])
    first = pid_of(tmp_path, "server")

    os.kill(first, signal.SIGKILL)
    deadline = time.monotonic() + DEADLINE_S
    while pid_of(tmp_path, "server") == first:
        assert time.monotonic() < deadline
        supervisor.check()
        time.sleep(0.02)
    supervisor.wait_ready(["server"])

    assert (tmp_path / "marks").read_text() == "started\n" * 2
    assert "service.restarted" in (tmp_path / "logs" / "supervisor.log").read_text()


def test_service_that_always_dies_is_given_up(tmp_path: Path, interrupts: Interrupts) -> None:
    dies = python("dies", "import os, signal; print('no luck', flush=True); os.kill(os.getpid(), signal.SIGKILL)")
    with Supervisor(tmp_path, interrupts=interrupts, tethered=True, max_restarts=1) as supervisor:
        supervisor.start(dies)
        with pytest.raises(ServiceFailed, match="dies failed: killed by signal 9: no luck"):
            supervisor.watch_forever()

    assert (tmp_path / "logs" / "dies.log").read_text() == "no luck\n" * 2


def test_service_that_refuses_its_settings_is_not_started_again(tmp_path: Path, supervisor: Supervisor) -> None:
    supervisor.start(python("picky", "import sys; print('error: unknown settings GYMFLEET_X'); sys.exit(2)"))

    with pytest.raises(ServiceFailed, match="picky failed: unknown settings GYMFLEET_X") as failure:
        supervisor.watch_forever()

    assert failure.value.exit_code == 2
    assert failure.value.log == tmp_path / "logs" / "picky.log"


def test_task_ends_well_or_says_why_not(tmp_path: Path, supervisor: Supervisor) -> None:
    supervisor.run(python("fine", "print('done')"))

    with pytest.raises(ServiceFailed, match="poor failed: disk full"):
        supervisor.run(python("poor", "import sys; print('error: disk full'); sys.exit(5)"))


def test_killed_task_is_started_again(tmp_path: Path, supervisor: Supervisor) -> None:
    program = (
        "import os, pathlib, signal, sys\nmark = pathlib.Path(sys.argv[1])\n"
        "if not mark.exists():\n    mark.touch()\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    supervisor.run(python("task", program, str(tmp_path / "mark")))

    assert (tmp_path / "logs" / "supervisor.log").read_text().count("service.restarted") == 1


def test_task_that_fails_after_a_service_died_gets_another_start(tmp_path: Path, supervisor: Supervisor) -> None:
    supervisor.start(server(tmp_path))
    supervisor.wait_ready(["server"])
    program = (
        "import os, pathlib, sys, time\nmark = pathlib.Path(sys.argv[1])\nif mark.exists():\n    sys.exit(0)\n"
        "mark.touch()\nos.kill(int(sys.argv[2]), 9)\ntime.sleep(1)\nsys.exit(6)\n"
    )

    supervisor.run(python("task", program, str(tmp_path / "mark"), str(pid_of(tmp_path, "server"))))

    restarted = (tmp_path / "logs" / "supervisor.log").read_text()
    assert restarted.count('"service.restarted"') == 2


def test_deaf_process_is_killed_after_the_grace(tmp_path: Path, supervisor: Supervisor) -> None:
    supervisor.start(python("deaf", STUBBORN))
    wait_for_log(tmp_path, "deaf")
    pid = pid_of(tmp_path, "deaf")

    stop_groups([pid], grace_s=0.2)

    assert members(pid) == []


def test_children_of_a_killed_service_do_not_survive_it(tmp_path: Path, supervisor: Supervisor) -> None:
    supervisor.start(python("parent", WITH_CHILD))
    wait_for_log(tmp_path, "parent")
    parent = pid_of(tmp_path, "parent")
    assert len(members(parent)) == 2

    os.kill(parent, signal.SIGKILL)
    deadline = time.monotonic() + DEADLINE_S
    while pid_of(tmp_path, "parent") == parent:
        assert time.monotonic() < deadline
        supervisor.check()

    assert members(parent) == []


def test_interrupt_leaves_the_wait(tmp_path: Path, supervisor: Supervisor) -> None:
    supervisor.start(python("slow", "import time; time.sleep(600)", port=free_ports(1)[0]))
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(Interrupted) as stop:
        supervisor.wait_ready(["slow"])

    assert stop.value.exit_code == 130


def test_second_interrupt_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    with Interrupts() as interrupts:
        with Supervisor(tmp_path, interrupts=interrupts, tethered=True, stop_grace_s=600.0) as supervisor:
            supervisor.start(python("deaf", STUBBORN))
            wait_for_log(tmp_path, "deaf")
            pid = pid_of(tmp_path, "deaf")
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        assert members(pid) == []


def test_detached_start_that_fails_stops_what_it_started(tmp_path: Path, interrupts: Interrupts) -> None:
    with pytest.raises(ServiceFailed), Supervisor(tmp_path, interrupts=interrupts, tethered=False) as supervisor:  # noqa: PT012
        supervisor.start(server(tmp_path))
        pid = pid_of(tmp_path, "server")
        supervisor.run(python("poor", "raise SystemExit(1)"))

    assert members(pid) == []


OWNER = """
import sys, time
from pathlib import Path
from gymfleet_cli.supervisor.interrupts import Interrupts
from gymfleet_cli.supervisor.service import Service
from gymfleet_cli.supervisor.supervisor import Supervisor
program = sys.argv[2]
tethered = sys.argv[3] == "tethered"
with Interrupts() as interrupts, Supervisor(Path(sys.argv[1]), interrupts=interrupts, tethered=tethered) as supervisor:
    for name in ("one", "two"):
        supervisor.start(Service(name=name, argv=(sys.executable, "-S", "-c", program), port=0, probe="none"))
    if tethered:
        supervisor.watch_forever()
"""


def start_by_another_process(directory: Path, kind: str) -> tuple["subprocess.Popen[bytes]", list[int]]:
    """The starter, and the pids of two services that have a child each."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(directory), WITH_CHILD, kind])
    deadline = time.monotonic() + DEADLINE_S
    logs = [directory / "logs" / f"{name}.log" for name in ("one", "two")]
    while not all(log.exists() and log.read_text() for log in logs):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pids = [pid_of(directory, name) for name in ("one", "two")]
    assert [len(members(pid)) for pid in pids] == [2, 2]
    return owner, pids


def test_detached_services_outlive_their_starter_until_swept(tmp_path: Path) -> None:
    owner, pids = start_by_another_process(tmp_path, "detached")
    assert owner.wait(DEADLINE_S) == 0
    assert [len(members(pid)) for pid in pids] == [2, 2]

    assert sweep(tmp_path) == 2

    assert [members(pid) for pid in pids] == [[], []]
    assert sweep(tmp_path) == 0


def test_sweep_ends_the_owner_first(tmp_path: Path) -> None:
    owner, pids = start_by_another_process(tmp_path, "tethered")

    assert sweep(tmp_path) == 2

    assert owner.wait(DEADLINE_S) != 0
    assert [members(pid) for pid in pids] == [[], []]


def test_kill_9_of_the_owner_leaves_no_process(tmp_path: Path) -> None:
    owner, pids = start_by_another_process(tmp_path, "tethered")

    owner.kill()
    owner.wait()

    deadline = time.monotonic() + DEADLINE_S
    while any(members(pid) for pid in pids):
        assert time.monotonic() < deadline, "somebody was left behind"
        time.sleep(0.02)
