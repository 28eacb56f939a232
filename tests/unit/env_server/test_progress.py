"""What the front is told of calls in threads, and what it makes of them."""

import mmap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from gymfleet_env_server.shards import progress as progress_module
from gymfleet_env_server.shards.handle import Pending, ShardHandle
from gymfleet_env_server.shards.process import Progress
from gymfleet_env_server.shards.progress import PROGRESS, ShardProgress, ThreadedProgress

WAIT_S = 20.0


def seen(shared: mmap.mmap) -> Progress:
    return Progress(*PROGRESS.unpack_from(shared, 0))


def in_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    monotonic = __call__
    thread_time = time.thread_time

    def advance(self, seconds: float) -> None:
        self.now += seconds


def test_front_is_told_of_the_oldest_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(progress_module, "time", clock)
    shared = mmap.mmap(-1, PROGRESS.size)
    progress = ThreadedProgress(shared, ("first", "second"))

    with ThreadPoolExecutor(1) as old, ThreadPoolExecutor(1) as young:
        old.submit(progress.working_on, 7).result()
        assert seen(shared)[:3] == (0, 0, 0), "it has called no environment yet"
        old.submit(progress.beat, "second").result()
        clock.advance(1)
        young.submit(progress.working_on, 8).result()
        young.submit(progress.beat, "first").result()
        assert seen(shared)[:3] == (7, 2, 1)
        assert seen(shared).since_us == 100_000_000
        clock.advance(1)
        old.submit(progress.beat, "second").result()
        assert seen(shared)[:3] == (8, 3, 0), "each call of an environment counts by itself"
        assert seen(shared).since_us == 101_000_000
        old.submit(progress.returned).result()
        young.submit(progress.returned).result()
        assert (seen(shared).number, seen(shared).since_us) == (0, 0)


def test_processor_time_of_threads_makes_a_shard_busy_and_waiting_does_not() -> None:
    shared = mmap.mmap(-1, PROGRESS.size)
    progress = ThreadedProgress(shared, ("env",))

    def work(seconds: float, wait: Callable[[float], None]) -> None:
        progress.beat("env")
        wait(seconds)
        progress.returned()

    def burn(seconds: float) -> None:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass

    in_thread(lambda: work(0.05, time.sleep))
    assert seen(shared).busy_us < 30_000
    in_thread(lambda: work(0.05, burn))
    assert seen(shared).busy_us >= 50_000


def test_call_that_was_given_up_is_told_no_more() -> None:
    shared = mmap.mmap(-1, PROGRESS.size)
    progress = ThreadedProgress(shared, ("env",))
    with ThreadPoolExecutor(1) as stuck, ThreadPoolExecutor(1) as other:
        for pool, number in ((stuck, 1), (other, 2)):
            pool.submit(progress.working_on, number).result()
            pool.submit(progress.beat, "env").result()
        assert seen(shared).number == 1

        progress.abandon(1)
        assert seen(shared).number == 2
        stuck.submit(progress.beat, "env").result()
        other.submit(progress.working_on, 0).result()
        assert (seen(shared).number, seen(shared).since_us) == (0, 0)
        stuck.submit(progress.working_on, 0).result()
        stuck.submit(progress.working_on, 3).result()
        stuck.submit(progress.beat, "env").result()
        assert seen(shared).number == 3, "its thread works for others again"


def test_shard_without_threads_tells_no_moment() -> None:
    shared = mmap.mmap(-1, PROGRESS.size)
    progress = ShardProgress(shared, ("env",))
    progress.working_on(3)
    progress.beat("env")
    progress.worked(0.5)

    assert seen(shared) == Progress(3, 1, 0, 500_000, 0)


class Worker:
    """The face of a shard's process."""

    now = Progress(0, 0, 0, 0)

    def progress(self) -> Progress:
        return self.now

    def kill(self) -> None:
        raise AssertionError


def test_old_call_hangs_although_its_neighbours_make_progress() -> None:
    handle, worker = ShardHandle(0), Worker()
    process: Any = worker
    handle.occupy(process, 0.0)
    handle.pending[7] = Pending(lambda _: None, "", 0)
    for second in range(1, 11):
        worker.now = Progress(7, second, 0, 0, 1_000_000)
        handle.look(float(second))
        handle.progress_at = float(second)  # as after each report
        assert not handle.hangs(float(second), 10.0)
    assert handle.busy < 0.1, "to wait is not to be busy"

    worker.now = Progress(7, 99, 0, 0, 1_000_000)
    handle.look(11.1)
    assert handle.hangs(11.1, 10.0)
    handle.pending.clear()
    assert not handle.hangs(11.1, 10.0), "nobody waits for it"


def test_call_in_a_thread_is_given_up_and_the_shard_has_to_heed_it() -> None:
    handle, worker = ShardHandle(0), Worker()
    process: Any = worker
    handle.occupy(process, 0.0)
    for number in (7, 8):
        handle.pending[number] = Pending(lambda _: None, f"session {number}", 0)
    worker.now = Progress(7, 1, 0, 0, 1_000_000)
    handle.look(12.0)

    call = handle.give_up(12.0, 2, 5.0)
    assert call is not None
    assert call.session_id == "session 7"
    assert list(handle.pending) == [8]
    assert handle.heeds(16.9)
    assert not handle.heeds(17.1), "it is still told as the oldest: the shard itself hangs"
    worker.now = Progress(8, 2, 0, 0, 2_000_000)
    handle.look(13.0)
    assert not handle.heeds(13.0)
    handle.stuck = 2
    assert handle.give_up(13.0, 2, 5.0) is None, "too many threads are stuck"
    handle.stuck = 0
    worker.now = Progress(8, 2, 0, 0, 0)
    handle.look(14.0)
    assert handle.give_up(14.0, 2, 5.0) is None, "it is no call of a thread"
