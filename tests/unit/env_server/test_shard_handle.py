"""Where sessions are opened, and when a shard counts as hanging or as too large."""

import os
import subprocess
import sys
from typing import Any

import pytest
from gymfleet_env_server.shards.handle import Pending, ShardHandle, cheapest
from gymfleet_env_server.shards.memory import MIB, resident_bytes
from gymfleet_env_server.shards.process import Progress

LIMIT_S = 10.0


class Worker:
    """The face of a shard's process: what it says of its progress."""

    def __init__(self) -> None:
        self.now = Progress(0, 0, 0, 0)
        self.kills = 0

    def progress(self) -> Progress:
        return self.now

    def kill(self) -> None:
        self.kills += 1


def occupied(index: int = 0, *, sessions: int = 0, busy: float = 0.0) -> tuple[ShardHandle, Worker]:
    handle, worker = ShardHandle(index), Worker()
    process: Any = worker
    handle.occupy(process, 0.0)
    handle.slots, handle.busy = sessions, busy
    return handle, worker


def waiting(handle: ShardHandle) -> None:
    handle.pending[1] = Pending(lambda _: None, "", 0)


def test_session_goes_where_neighbours_are_few() -> None:
    few, many = occupied(0, sessions=3)[0], occupied(1, sessions=4)[0]

    assert cheapest([many, few]) is few
    few.reserved = 2
    assert cheapest([many, few]) is many, "those about to be opened count"
    many.alive = few.alive = False
    assert cheapest([many, few]) is None


def test_session_avoids_a_busy_shard_until_the_idle_ones_are_well_filled() -> None:
    busy, idle = occupied(0, sessions=1, busy=1.0)[0], occupied(1)[0]

    for _ in range(16):
        assert cheapest([busy, idle]) is idle
        idle.slots += 1
    idle.slots += 1
    assert cheapest([busy, idle]) is busy


def test_burst_is_spread_although_one_shard_is_a_little_busier() -> None:
    handles = [occupied(index, busy=busy)[0] for index, busy in enumerate((0.74, 0.76, 0.75))]

    for _ in range(300):
        handle = cheapest(handles)
        assert handle is not None
        handle.reserved += 1

    assert all(95 <= handle.load <= 105 for handle in handles)


def test_busyness_follows_the_shards_own_count() -> None:
    handle, worker = occupied()

    for second in range(1, 11):
        worker.now = Progress(0, second, 0, 500_000 * second)
        handle.look(float(second))
    assert handle.busy == pytest.approx(0.5, abs=0.01)
    for second in range(11, 21):
        handle.look(float(second))
    assert handle.busy == pytest.approx(0, abs=0.01)


def test_one_long_call_counts_as_busy_before_it_ends() -> None:
    handle, worker = occupied()
    worker.now = Progress(7, 3, 0, 0)

    for second in range(1, 8):
        handle.look(float(second))

    assert handle.busy > 0.9


def test_shard_hangs_when_one_call_makes_no_progress() -> None:
    handle, worker = occupied()
    waiting(handle)
    worker.now = Progress(1, 1, 0, 0)
    handle.look(1.0)
    assert not handle.hangs(1.0 + LIMIT_S, LIMIT_S)
    assert handle.hangs(1.1 + LIMIT_S, LIMIT_S)

    worker.now = Progress(1, 2, 0, 0)  # the same call, and another call into the environment: a fork by replay
    handle.look(10.0)
    assert not handle.hangs(15.0, LIMIT_S)

    handle.look(20.1)
    assert handle.hangs(20.1, LIMIT_S)
    handle.condemn("hung")
    assert (worker.kills, handle.hangs(99.0, LIMIT_S)) == (1, False), "it is killed once"


def test_idle_shard_does_not_hang() -> None:
    handle, _ = occupied()
    handle.look(1.0)

    assert not handle.hangs(1000.0, LIMIT_S)


def test_left_calls_are_handed_over_once() -> None:
    handle, _ = occupied(sessions=5)
    waiting(handle)
    handle.condemn("memory")

    assert list(handle.vacate()) == [1]
    assert (handle.pending, handle.load, handle.life, handle.alive, handle.condemned) == ({}, 0, 1, False, "")


def test_memory_of_a_shard_includes_what_it_started() -> None:
    ballast = "held = bytearray(b'x' * (32 << 20))"
    child = f"import sys; {ballast}; print('held', flush=True); sys.stdin.read()"
    parent = f"import subprocess, sys; {ballast}; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as leader:
        assert leader.stdout is not None
        assert leader.stdout.readline() == b"held\n"

        held = resident_bytes([leader.pid, os.getpid() + 1_000_000_000])

        assert 66 * MIB < held[leader.pid] < 160 * MIB
        assert held[os.getpid() + 1_000_000_000] == 0
        leader.communicate(b"")
    assert resident_bytes([leader.pid])[leader.pid] == 0


def test_process_that_ends_while_memory_is_counted_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    monkeypatch.setattr("psutil.pids", lambda: [ended.pid, os.getpid()])
    session = os.getsid(0)

    assert resident_bytes([session])[session] > MIB
    monkeypatch.setattr("os.getsid", lambda _: session)  # it ends after it was asked for its session
    assert resident_bytes([session])[session] > MIB
