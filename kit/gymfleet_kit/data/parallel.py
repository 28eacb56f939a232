"""Work in several processes: the result for each chunk, in the order of the chunks."""

import multiprocessing
import signal
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice

from gymfleet_kit.data.chunks import Chunk, DataError
from gymfleet_kit.data.work import Done, Work, calm_collector

_AHEAD = 2
"""Chunks waiting per process, so that it never idles and memory is bounded."""


def ordered(work: Work, chunks: Iterable[Chunk], workers: int) -> Iterator[tuple[Chunk, Done]]:
    """Yield each chunk with its result, worked on by this process alone if `workers` is 1.

    Raises the errors of the work and the chunks, each after the results before it, and `DataError` if a process was
    killed.
    """
    if workers == 1:
        for chunk in chunks:
            with calm_collector():
                done = work.done(chunk)
            yield chunk, done
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(work,))
    try:
        yield from _in_order(pool, _guarded(chunks), workers * _AHEAD)
    except BrokenProcessPool:
        raise DataError("a process was killed, perhaps for want of memory; the same command goes on") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _in_order(
    pool: ProcessPoolExecutor, chunks: Iterator[Chunk | DataError], ahead: int
) -> Iterator[tuple[Chunk, Done]]:
    waiting: deque[tuple[Chunk | DataError, Future[Done] | None]] = deque()
    while True:
        for chunk in islice(chunks, ahead - len(waiting)):
            waiting.append((chunk, None if isinstance(chunk, DataError) else pool.submit(_do, chunk)))
        if not waiting:
            return
        chunk, future = waiting.popleft()
        if isinstance(chunk, DataError) or future is None:
            raise chunk  # type: ignore[misc]
        yield chunk, future.result()


def _guarded(chunks: Iterable[Chunk]) -> Iterator[Chunk | DataError]:
    """Yield an error in its place, after chunks that are still being worked on."""
    try:
        yield from chunks
    except DataError as error:
        yield error


class _Process:
    """The work of a process of the pool."""

    work: Work


def _begin(work: Work) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one
    _Process.work = work


def _do(chunk: Chunk) -> Done:
    with calm_collector():
        return _Process.work.done(chunk)
