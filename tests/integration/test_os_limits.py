"""What a sandbox may make the kernel hold for it. Every attack here is run for real."""

import os
import shutil
import time
from collections.abc import Iterator

import pytest
from gymfleet_envs.os.options import OsOptions
from gymfleet_envs.os.sandbox.bubblewrap import Bubblewrap
from gymfleet_envs.os.sandbox.kernel_memory import kernel_bytes
from gymfleet_envs.os.sandbox.watch import WATCH

LIMIT_S = 20.0
SMALL = OsOptions(memory_mib=64, disk_mib=16, processes=24)
pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.fixture(scope="module")
def shared() -> Iterator[Bubblewrap]:
    """For tests that leave no trace."""
    sandbox = Bubblewrap(SMALL)
    yield sandbox
    sandbox.close()


@pytest.fixture
def box() -> Iterator[Bubblewrap]:
    """Watched by the test alone, so that nothing depends on when the watch looks."""
    sandbox = Bubblewrap(SMALL)
    assert sandbox._room.tree is not None
    WATCH.remove(sandbox._room.tree)
    yield sandbox
    sandbox.close()


def python(box: Bubblewrap, program: str, mark: str = "") -> str:
    """What a program prints; with a mark it stays in the background once it has made that file."""
    if not mark:
        return box.shell(f"python3 - <<'END'\n{program}\nEND", LIMIT_S).output.decode()
    box.shell(f"python3 - <<'END' &\n{program}\nimport time\nopen({mark!r}, 'w')\ntime.sleep(60)\nEND", LIMIT_S)
    return box.shell(f"until [ -e {mark} ]; do sleep 0.02; done", LIMIT_S).output.decode()


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are x86-64's")
def test_memory_that_outlives_processes_cannot_be_had(shared: Bubblewrap) -> None:
    calls = "shmget 29 0 4096 896, semget 64 0 1000 896, msgget 68 0 896, mq_open 240 0 66 384, memfd_create 319 0 0"

    printed = python(
        shared,
        "import ctypes, errno, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"for call in {calls!r}.split(', '):\n"
        "    name, *numbers = call.split()\n"
        "    print(name, libc.syscall(*map(int, numbers)), errno.errorcode[ctypes.get_errno()])",
    )

    names = ("shmget", "semget", "msgget", "mq_open", "memfd_create")
    assert printed.splitlines() == [f"{name} -1 ENOSYS" for name in names]


def test_only_sockets_that_programs_need_can_be_had(shared: Bubblewrap) -> None:
    printed = python(
        shared,
        "import errno, socket\n"
        "asked = ((1, 0), (2, 0), (10, 0), (16, 0), (16, 9), (17, 0), (21, 0), (31, 0), (38, 0), (40, 0))\n"
        "for family, protocol in asked:\n"
        "    try:\n"
        "        socket.socket(family, socket.SOCK_DGRAM, protocol).close()\n"
        "        print(family, protocol)\n"
        "    except OSError as error:\n"
        "        print(family, protocol, errno.errorcode[error.errno])",
    )

    refused = [f"{family} 0 EAFNOSUPPORT" for family in (17, 21, 31, 38, 40)]  # AF_PACKET, RDS, Bluetooth, ALG, VSOCK
    assert printed.splitlines() == ["1 0", "2 0", "10 0", "16 0", "16 9 EAFNOSUPPORT", *refused]


def test_neither_attributes_nor_pipes_take_more_memory(shared: Bubblewrap) -> None:
    printed = python(
        shared,
        "import errno, fcntl, os\n"
        "attempts = (lambda: os.setxattr('/root', 'user.a', b'x'), lambda: fcntl.fcntl(os.pipe()[1], 1031, 1 << 20))\n"
        "for attempt in attempts:\n"
        "    try:\n"
        "        print(attempt())\n"
        "    except OSError as error:\n"
        "        print(errno.errorcode[error.errno])",
    )

    assert printed.splitlines() == ["ENOTSUP", "EPERM"]
    assert shared.shell("cp -a /etc/passwd /tmp/copy && tar cf - /etc/passwd | tar xpf - -C /tmp", LIMIT_S).code == 0


@pytest.mark.parametrize("place", ["/tmp", "/usr/bin", "/etc", "/root", "/dev/shm"])  # noqa: S108 - inside
def test_empty_files_are_bounded(shared: Bubblewrap, place: str) -> None:
    printed = python(
        shared,
        "import errno, os, shutil\n"
        f"folder = {place!r} + '/many'\n"
        "os.mkdir(folder)\n"
        "try:\n"
        "    for n in range(100_000): open(f'{folder}/{n}', 'w').close()\n"
        "except OSError as error:\n"
        "    print(errno.errorcode[error.errno], n < 16 * 256)\n"
        "shutil.rmtree(folder)",
    )

    assert printed == "ENOSPC True\n"


@pytest.mark.parametrize(
    ("program", "least"),
    [
        pytest.param("import socket; kept = [socket.socketpair() for _ in range(100)]", 200 * 400_000, id="sockets"),
        pytest.param(
            "import socket\na, b = socket.socketpair()\n"
            "for _ in range(100):\n"
            "    c, d = socket.socketpair()\n"
            "    socket.send_fds(a, [b'x'], [c.fileno(), d.fileno()]); c.close(); d.close()",
            200 * 400_000,
            id="sockets under way to another process",
        ),
        pytest.param(
            "import socket\ns = socket.create_server(('127.0.0.1', 0))\n"
            "kept = [socket.create_connection(s.getsockname()) for _ in range(20)]",
            20 * (1 << 20),
            id="TCP",
        ),
        pytest.param("import os; kept = [os.pipe() for _ in range(400)]", 400 * 65_536, id="pipes"),
    ],
)
def test_what_the_kernel_may_hold_is_counted(box: Bubblewrap, program: str, least: int) -> None:
    tree = box._room.tree
    assert tree is not None
    before = kernel_bytes(tree.first, tree.pids())  # some kernels' modules have a socket in each network namespace
    python(box, program, mark="/tmp/done")  # noqa: S108 - inside

    assert kernel_bytes(tree.first, tree.pids()) - before >= least
    WATCH.add(tree, memory_bytes=16 << 20, processes=1000)
    WATCH.look()

    assert box.shell("true", LIMIT_S).shell_ended
    until = time.monotonic() + LIMIT_S
    while kernel_bytes(tree.first, tree.pids()) and time.monotonic() < until:
        time.sleep(0.02)  # the kernel takes its time to let go of what a killed process held
    assert kernel_bytes(tree.first, tree.pids()) == 0
