"""A write in a separate thread while the weights stand still."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait


class BackgroundWrite:
    """One write of this process, straight from the live tensors: code that changes them waits for it first."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write
        executor = ThreadPoolExecutor(1, "checkpoint")
        self._seconds = executor.submit(self._timed)
        executor.shutdown(wait=False)

    def wait(self) -> None:
        """Wait until the write is over, whether or not it failed."""
        wait([self._seconds])

    def result(self) -> float:
        """Wait until the write is over and return its duration in seconds. Raises what the write raised."""
        return self._seconds.result()

    def _timed(self) -> float:
        started = time.monotonic()
        self._write()
        return time.monotonic() - started
