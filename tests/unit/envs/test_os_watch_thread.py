"""The thread that looks at what is watched."""

import threading
import time
import weakref

from gymfleet_envs.os.sandbox.watch_thread import WatchThread

EVERY_S = 0.01


class Thing:
    """What can be watched, and forgotten."""


class Counting(WatchThread[str, Thing]):
    """Counts its rounds; `seen` is what was watched in the last one."""

    def __init__(self) -> None:
        super().__init__("test-watch", weakref.WeakValueDictionary(), every_s=EVERY_S)
        self.rounds = 0
        self.seen: set[str] = set()
        self.looked = threading.Event()

    def add(self, name: str, thing: Thing) -> None:
        self._watch(name, thing)

    def next_round(self) -> set[str]:
        for _ in range(2):  # one may be under way already
            self.looked.clear()
            assert self.looked.wait(5)
        return self.seen

    def _round(self) -> None:
        self.rounds += 1
        self.seen = set(self._watched())
        self.looked.set()


def resting(watch: Counting) -> bool:
    time.sleep(5 * EVERY_S)
    before = watch.rounds
    time.sleep(5 * EVERY_S)
    return watch.rounds == before


def test_it_looks_while_there_is_something_to_look_at_and_rests_otherwise() -> None:
    watch, thing, other = Counting(), Thing(), Thing()
    assert resting(watch)

    watch.add("thing", thing)
    watch.add("other", other)
    assert watch.next_round() == {"thing", "other"}

    watch.remove("thing")
    assert watch.next_round() == {"other"}

    del other
    assert resting(watch), "what nobody else holds is watched no longer"

    watch.add("thing", thing)
    assert watch.next_round() == {"thing"}
    watch.remove("thing")
    watch.remove("thing")  # a second time does nothing
    assert resting(watch)
