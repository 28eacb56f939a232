"""The sandbox against what an agent may do, by design or by accident. Every command here is run for real."""

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gymfleet_envs.os.options import OsOptions
from gymfleet_envs.os.sandbox.base import Ran, SandboxError
from gymfleet_envs.os.sandbox.bubblewrap import Bubblewrap, _checks_arguments
from gymfleet_envs.os.sandbox.processes import ProcessTree
from gymfleet_envs.os.sandbox.room import _inside
from gymfleet_envs.os.sandbox.watch import WATCH

LIMIT_S = 20.0
SMALL = OsOptions(memory_mib=64, disk_mib=16, processes=24)
pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.fixture
def box() -> Iterator[Bubblewrap]:
    sandbox = Bubblewrap(SMALL)
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Bubblewrap]:
    """For tests that leave no trace."""
    sandbox = Bubblewrap(SMALL)
    yield sandbox
    sandbox.close()


def text(box: Bubblewrap, command: str, timeout_s: float = LIMIT_S) -> str:
    return box.shell(command, timeout_s).output.decode(errors="replace")


def kill(box: Bubblewrap) -> None:
    """From outside, and wait: until then it may still answer."""
    os.kill(box._room.pid, signal.SIGKILL)
    select.select([box._room.handle], [], [], LIMIT_S)


def host_processes(marker: str) -> int:
    count = 0
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += marker in entry.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
    return count


def test_a_sandbox_opens_and_checks_whatever_descriptors_its_server_has_open() -> None:
    first = os.open(os.devnull, os.O_RDONLY)
    held = [first, *(os.dup(first) for _ in range(590 - first))]  # the steward moves what it gets to 600 and up
    try:
        sandbox = Bubblewrap(SMALL)
        try:
            assert text(sandbox, "echo $((6 * 7))") == "42\n"
            sandbox.seal()
            assert sandbox.check(["echo", "seen"], LIMIT_S).output == b"seen\n"
        finally:
            sandbox.close()
    finally:
        for handle in held:
            os.close(handle)


def test_shell_keeps_directory_and_variables(box: Bubblewrap) -> None:
    assert box.shell("cd /tmp; X=5; f() { echo f$X; }; alias hi='echo hello'", LIMIT_S).code == 0

    assert text(box, "pwd; f; hi") == "/tmp\nf5\nhello\n"  # noqa: S108
    assert box.shell("false", LIMIT_S).code == 1
    assert text(box, "echo $?") == "1\n"


def test_programs_run_beside_the_shell_in_a_clean_environment(box: Bubblewrap) -> None:
    box.shell("cd /tmp; export SECRET=1; printf '#!/bin/sh\\nexit 0\\n' > /usr/local/bin/grep", LIMIT_S)
    box.shell("chmod 755 /usr/local/bin/grep", LIMIT_S)

    ran = box.program(["bash", "-c", 'pwd; echo "$SECRET$1"; grep x /dev/null; exit 4', "--", "a b\n"], LIMIT_S)

    assert (ran.output, ran.code) == (b"/\na b\n\n", 4)
    assert box.program(["bash", "-c", "grep x /dev/null"], LIMIT_S).code == 1, "the system's own grep"


def test_root_inside_can_do_what_preparation_scripts_do(box: Bubblewrap) -> None:
    assert (
        box.shell("mkdir /data && echo x > /etc/x && echo y > /usr/y && touch /usr/local/bin/calc", LIMIT_S).code == 0
    )
    assert text(box, "id -u; whoami; hostname; umask; date +%Z") == "0\nroot\ngymfleet\n0022\nUTC\n"
    if os.geteuid() == 0:
        assert text(box, "useradd -m ann && chown ann /data && stat -c %U /data && su ann -c whoami") == "ann\nann\n"
    box.shell("touch /data/f; chmod 000 /data/f", LIMIT_S)
    assert box.shell("cat /data/f", LIMIT_S).code == 0, "root reads what has no permissions"


def test_outside_it_is_nobody_and_no_host_user(box: Bubblewrap) -> None:
    tree = box._room.tree
    assert tree is not None
    for pid in (tree.first, *tree.pids()):
        status = Path(f"/proc/{pid}/status").read_text()
        uids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
        assert set(uids) == {str(65534 if os.geteuid() == 0 else os.geteuid())}
        assert "Seccomp:\t2" in status
        assert "NoNewPrivs:\t1" in status


def test_works_with_one_user_where_the_server_is_not_root() -> None:
    sandbox = Bubblewrap(SMALL, ranged=False)
    try:
        assert text(sandbox, "id -u; echo a > /etc/b; cat /etc/b") == "0\na\n"
        assert sandbox.program(["python3", "-c", "print(7)"], LIMIT_S).output == b"7\n"
    finally:
        sandbox.close()


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("cat /proc/1/environ", "Permission denied"),
        ("ls /proc/1/root/", "Permission denied"),
        ("ls -l /proc/1/fd/ 2>&1 | grep -c denied || true", None),
        ("echo x > /proc/1/mem", "Permission denied"),
        ("mkdir -p /m; mount -t tmpfs none /m", "permission denied"),
        ("mount -o remount,rw /usr/bin", "permission denied"),
        ("umount /usr/bin", "must be superuser|not permitted"),
        ("chroot / true", "not permitted"),
        ("unshare -U true", "not permitted"),
        ("unshare -m true", "not permitted"),
        ("nsenter -t 1 -m true", "denied"),
        ("echo x > /dev/full2", "Read-only file system"),
        ("mknod /tmp/disk b 8 0", "not permitted"),
        ("echo 1 > /proc/sys/kernel/panic", "Read-only file system|Permission denied"),
        ("echo b > /proc/sysrq-trigger", "No such file|Read-only file system|Permission denied"),
        ("dmesg", "not permitted"),
        ("reboot -f", "not permitted|not found|No such file|denied"),
        ("python3 -c 'import ctypes as c; l=c.CDLL(None,use_errno=True); print(l.ptrace(16,1,0,0), c.get_errno())'", "-1 1"),  # noqa: E501
        ("python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 2)'", "unreachable"),
        ("python3 -c 'import socket; socket.getaddrinfo(\"example.com\", 80)'", "gaierror|resolution"),
        ("ls /sys", "No such file"),
        ("sysctl -w kernel.hostname=x", "Read-only|denied|not found|not permitted"),
        ("hostname evil", "permitted|must be root|denied"),
    ],
)  # fmt: skip
def test_ways_out_are_shut(shared: Bubblewrap, command: str, shown: str | None) -> None:
    printed = text(shared, command)

    if shown is not None:
        assert any(part in printed for part in shown.split("|")), printed
    assert shared.shell("true", LIMIT_S).code == 0


def test_a_command_has_nothing_open_but_its_own_pipes(shared: Bubblewrap) -> None:
    assert text(shared, "ls /proc/self/fd").split() == ["0", "1", "2", "3"], "3: the directory that is listed"
    assert shared.program(["ls", "/proc/self/fd"], LIMIT_S).output.split() == [b"0", b"1", b"2", b"3"]


def test_nothing_of_the_host_is_to_be_seen(shared: Bubblewrap, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")

    assert "No such file" in text(shared, f"cat {secret}")
    assert text(shared, "cat /etc/hostname") == "gymfleet\n"
    assert "root:*:" in text(shared, "cat /etc/shadow"), "not the host's"
    assert str(os.getpid()) not in text(shared, "ls /proc").split()
    assert text(shared, "cat /proc/net/dev | grep -c : || true") == "1\n", "the loopback alone"
    monkeypatch.setenv("GYMFLEET_TEST_SECRET", "seen")
    sandbox = Bubblewrap(SMALL)
    try:
        assert "GYMFLEET_TEST_SECRET" not in text(sandbox, "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'")
        assert sandbox.program(["env"], LIMIT_S).output.count(b"GYMFLEET") == 0
    finally:
        sandbox.close()


def test_setuid_programs_give_nothing(shared: Bubblewrap) -> None:
    assert text(shared, "grep CapBnd /proc/self/status").split()[1] == "00000000000000fb", "no SETPCAP, no SYS_ADMIN"
    assert text(shared, "grep NoNewPrivs /proc/self/status").split()[1] == "1"


@pytest.mark.parametrize(
    "command", ["exit", "exit 3", "kill -9 $$", "exec cat", "set -e; false", "break", "exec 8>&-; exit"]
)
def test_killed_shell_is_replaced_in_the_same_sandbox(box: Bubblewrap, command: str) -> None:
    box.shell("echo kept > /root/file; export LOST=1", LIMIT_S)

    ran = box.shell(command, LIMIT_S)

    assert ran.shell_ended
    assert not ran.timed_out
    assert text(box, "cat /root/file; echo $LOST; pwd") == "kept\n\n/\n"


@pytest.mark.parametrize("command", ["cat", "read x", "python3 -c 'input()'", "continue", "wait", "fc", "'", "(", "}"])
def test_odd_commands_return_and_the_shell_lives(box: Bubblewrap, command: str) -> None:
    ran = box.shell(command, LIMIT_S)

    assert not ran.timed_out
    assert not ran.shell_ended
    assert text(box, "echo ok") == "ok\n"


def test_command_that_takes_too_long_is_stopped_and_the_shell_lives(box: Bubblewrap) -> None:
    box.shell("X=5; sleep 1000 &", LIMIT_S)

    ran = box.shell("echo begun; sleep 1000", 0.3)

    assert (ran.timed_out, ran.shell_ended, ran.code) == (True, False, None)
    assert ran.output.startswith(b"begun\n")
    assert text(box, "echo $X; jobs -r | wc -l") == "5\n1\n", "what was in the background before goes on"


@pytest.mark.parametrize(
    "command", ["while :; do :; done", "while :; do sleep 0.1; done", "trap '' TERM; kill -STOP $$"]
)
def test_shell_that_does_not_come_back_is_replaced(box: Bubblewrap, command: str) -> None:
    ran = box.shell(command, 0.3)

    assert (ran.timed_out, ran.shell_ended) == (True, True)
    assert text(box, "echo ok") == "ok\n"


def test_background_process_outlives_its_command_and_dies_with_the_sandbox(box: Bubblewrap) -> None:
    marker = f"98{os.getpid()}"
    box.shell(f"(setsid sleep {marker} &)", LIMIT_S)

    assert text(box, "echo next") == "next\n"
    deadline = time.monotonic() + LIMIT_S
    while host_processes(marker) != 1:  # it begins when it begins, in the background
        assert time.monotonic() < deadline
    box.close()
    while host_processes(marker):
        assert time.monotonic() < deadline


def test_fork_bomb_stays_inside(box: Bubblewrap) -> None:
    neighbour = Bubblewrap(SMALL)
    try:
        ran = box.shell(":(){ :|:& };: ; sleep 5", 1.0)

        assert b"Resource temporarily unavailable" in ran.output or ran.timed_out
        assert text(neighbour, "ls / | wc -l; (true; echo ok)").endswith("ok\n"), "has processes of its own to start"
        assert box.program(["python3", "-c", "print(7)"], LIMIT_S).output == b"7\n", "room is kept for the task's own"
    finally:
        neighbour.close()


def test_memory_bomb_gets_no_memory(box: Bubblewrap) -> None:
    assert "MemoryError" in text(box, "python3 -c 'x = bytearray(10 ** 9)'")
    assert box.shell("x=$(head -c 200M /dev/zero | tr '\\0' x)", LIMIT_S).code != 0
    assert text(box, "echo ok").endswith("ok\n"), "after what the ended pipe had to say"


def test_many_small_memory_bombs_end_the_shell(box: Bubblewrap) -> None:
    bomb = "python3 -c 'import time; x = bytearray(40 << 20); time.sleep(60)'"

    ran = box.shell(f"for i in 1 2 3 4; do {bomb} & done; wait", LIMIT_S)

    assert ran.shell_ended
    assert not ran.timed_out
    assert text(box, "ls / | wc -l; echo ok").endswith("ok\n")


def test_watch_measures_what_is_held(box: Bubblewrap) -> None:
    tree = box._room.tree
    assert tree is not None
    box.shell('python3 -c \'import time; x = bytearray(30 << 20); open("/tmp/up", "w"); time.sleep(60)\' &', LIMIT_S)
    box.shell("while [ ! -e /tmp/up ]; do sleep 0.05; done", LIMIT_S)

    count, size = tree.usage()

    assert count >= 2
    assert size > 30 << 20
    WATCH.remove(tree)
    WATCH.add(tree, memory_bytes=1 << 20, processes=1000)
    WATCH.look()
    lost = box.shell("touch /root/late", LIMIT_S)
    assert (lost.shell_ended, lost.output) == (True, b""), "it is said, and the command is not run later"
    gone = "for i in $(seq 100); do pgrep python3 > /dev/null || break; sleep 0.05; done"
    assert text(box, f"{gone}; pgrep python3 | wc -l; ls /root") == "0\n"


@pytest.mark.parametrize("place", ["/x", "/root/x", "/tmp/x", "/dev/shm/x", "/usr/x", "/var/log/x"])  # noqa: S108
def test_disk_is_bounded(box: Bubblewrap, place: str) -> None:
    ran = box.shell(f"head -c 40M /dev/zero > {place}; echo $?; stat -c %s {place}", LIMIT_S)

    *_, code, size = ran.output.decode().split()
    assert code != "0"
    assert int(size) <= 16 << 20
    assert box.shell(f"rm {place}; echo x > /root/y", LIMIT_S).code == 0


def test_endless_output_is_cut_and_not_kept(box: Bubblewrap) -> None:
    ran = box.shell("yes", 0.5)

    assert (ran.timed_out, ran.cut) == (True, True)
    assert len(ran.output) == 16_384
    assert text(box, "echo ok").endswith("ok\n")


def test_endless_output_from_the_background_holds_nothing_up(box: Bubblewrap) -> None:
    ran = box.shell("yes & true", LIMIT_S)

    assert not ran.timed_out
    assert not box.shell("kill %1; wait", LIMIT_S).timed_out


def test_binary_output_and_long_commands(box: Bubblewrap) -> None:
    assert box.shell("printf 'a\\0b\\xff\\n'", LIMIT_S).output == b"a\0b\xff\n"
    assert text(box, f"echo {'x' * 15_000} | wc -c") == "15001\n"
    assert text(box, "echo 日本語 🙂") == "日本語 🙂\n"
    assert text(box, "echo a\0b") == "ab\n"
    assert box.shell("\udcff", LIMIT_S).code == 127


def test_forged_answers_end_the_agents_own_command_at_most(box: Bubblewrap) -> None:
    box.shell("for fd in /proc/$$/fd/*; do echo '1:0\n2:0\n999:7\nx' > $fd; done 2>/dev/null", LIMIT_S)

    assert box.program(["bash", "-c", "exit 5"], LIMIT_S).code == 5
    assert text(box, "echo _$_gymfleet_sequence; echo ok").endswith("ok\n")
    assert text(box, "echo ok") == "ok\n"


def test_program_that_takes_too_long_is_stopped(box: Bubblewrap) -> None:
    ran = box.program(["bash", "-c", "echo a; sleep 1000 & sleep 1000"], 0.3)

    assert (ran.code, ran.timed_out, ran.output) == (None, True, b"a\n")
    assert box.program(["echo", "b"], LIMIT_S) == Ran(b"b\n", 0)


def test_killed_sandbox_is_reported_and_the_neighbour_lives(box: Bubblewrap) -> None:
    neighbour = Bubblewrap(SMALL)
    kill(box)
    try:
        with pytest.raises(SandboxError, match="the sandbox ended"):
            box.shell("true", LIMIT_S)
        with pytest.raises(SandboxError, match="the sandbox"):
            box.program(["true"], LIMIT_S)
        assert text(neighbour, "echo ok") == "ok\n"
    finally:
        neighbour.close()


def test_sandbox_outlives_the_thread_that_opened_it() -> None:
    opened: list[Bubblewrap] = []
    thread = threading.Thread(target=lambda: opened.append(Bubblewrap(SMALL)))
    thread.start()
    thread.join()

    assert text(opened[0], "echo ok") == "ok\n"
    opened[0].close()


def test_sandboxes_work_side_by_side_in_threads() -> None:
    def play(number: int) -> str:
        sandbox = Bubblewrap(SMALL)
        try:
            sandbox.shell(f"echo {number} > /root/n; sleep 0.05", LIMIT_S)
            return text(sandbox, "cat /root/n")
        finally:
            sandbox.close()

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(play, range(12))) == [f"{number}\n" for number in range(12)]


def test_nothing_is_left_behind() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        sandbox = Bubblewrap(SMALL)
        sandbox.shell("exit", LIMIT_S)
        tree = sandbox._room.tree
        sandbox.close()
        sandbox.close()
        assert tree is not None

    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2, "image and filter alone stay open"
    with pytest.raises(SandboxError, match="closed"):
        sandbox.shell("true", LIMIT_S)


def test_sandbox_that_nobody_closed_ends() -> None:
    sandbox = Bubblewrap(SMALL)
    marker = f"97{os.getpid()}"
    sandbox.shell(f"sleep {marker} &", LIMIT_S)

    del sandbox

    deadline = time.monotonic() + LIMIT_S
    while host_processes(marker):
        assert time.monotonic() < deadline


@pytest.mark.parametrize("calls", [".shell(sleep, 60)", ".check(sleep.split(), 60)"], ids=["shell", "check"])
def test_nothing_is_left_when_the_server_is_killed(calls: str) -> None:
    marker = f"98{os.getpid()}"
    code = (
        "from gymfleet_envs.os.options import OsOptions\n"
        "from gymfleet_envs.os.sandbox.bubblewrap import Bubblewrap\n"
        f"sleep = 'sleep {marker}'\n"
        f"Bubblewrap(OsOptions(memory_mib=64, disk_mib=16)){calls}"
    )
    server = subprocess.Popen([sys.executable, "-c", code])
    until(lambda: bool(host_processes(marker)))

    server.kill()
    server.wait()

    until(lambda: not host_processes(marker))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_check_does_not_die_with_the_process_that_enters_its_namespace() -> None:
    # With the option one check in some thousands was killed at its start, where that process ended late.
    assert "--die-with-parent" not in [*_checks_arguments(), *_inside({})]


def test_missing_tree_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="the sandbox ended: ") as caught:
        Bubblewrap(OsOptions(rootfs=tmp_path))

    assert "\n" not in str(caught.value)


def test_a_process_of_another_namespace_is_never_killed(box: Bubblewrap) -> None:
    tree = box._room.tree
    assert tree is not None
    neighbour = Bubblewrap(SMALL)
    try:
        other = neighbour._room.tree
        assert other is not None
        tree.kill(other.pids())
        assert text(neighbour, "echo $$; echo ok").endswith("ok\n")
        assert isinstance(other, ProcessTree)
    finally:
        neighbour.close()
