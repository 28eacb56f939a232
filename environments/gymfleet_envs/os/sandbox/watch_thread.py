"""A thread that looks at its entries at regular intervals, as long as there are any."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class WatchThread(ABC, Generic[K, V]):
    """The watched entries and the thread, which starts with the first entry and ends with the process.

    Safe to use from any thread.
    """

    def __init__(self, name: str, watched: MutableMapping[K, V], *, every_s: float) -> None:
        self._name = name
        self._every_s = every_s
        self._lock = threading.Lock()
        self._entries = watched
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def remove(self, key: K) -> None:
        """Stop watching an entry."""
        with self._lock:
            self._entries.pop(key, None)

    def _watch(self, key: K, value: V) -> None:
        with self._lock:
            self._entries[key] = value
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        self._wake.set()

    def _watched(self) -> dict[K, V]:
        with self._lock:
            return dict(self._entries)

    @abstractmethod
    def _round(self) -> None:
        """Look once."""

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._round()
            with self._lock:
                if not self._entries:
                    self._wake.clear()
            time.sleep(self._every_s)
