"""A write in a separate thread while the weights stand still."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event


class BackgroundWrite:
    """One write of this process, straight from the live tensors: code that changes them waits for it first.

    Args:
        write: hands everything to the operating system; the tensors must stand still meanwhile.
        sync: makes what was written durable, and reads no tensor.
    """

    def __init__(self, write: Callable[[], None], sync: Callable[[], None]) -> None:
        self._write = write
        self._sync = sync
        self._written = Event()
        executor = ThreadPoolExecutor(1, "checkpoint")
        self._seconds = executor.submit(self._timed)
        executor.shutdown(wait=False)

    def wait(self) -> None:
        """Wait until the tensors may change: the write, not the sync, is over, whether or not it failed."""
        self._written.wait()

    def result(self) -> float:
        """Wait until all is durable and return the duration in seconds. Raises what the write or the sync raised."""
        return self._seconds.result()

    def _timed(self) -> float:
        started = time.monotonic()
        try:
            self._write()
        finally:
            self._written.set()
        self._sync()
        return time.monotonic() - started
