"""Waiting for a write, and for what makes it durable."""

from threading import Event, Thread

import pytest
from gymfleet_trainer.learning.background_write import BackgroundWrite

LIMIT_S = 10.0


def test_what_changes_tensors_waits_for_the_write_and_not_for_the_disk() -> None:
    done: list[str] = []
    on_disk = Event()

    def sync() -> None:
        assert on_disk.wait(LIMIT_S)
        done.append("synced")

    write = BackgroundWrite(lambda: done.append("written"), sync)
    write.wait()
    assert done == ["written"]

    on_disk.set()
    assert write.result() >= 0
    assert done == ["written", "synced"]


def test_what_changes_tensors_waits_until_the_write_is_over() -> None:
    over = Event()
    write = BackgroundWrite(lambda: assert_set(over), lambda: None)
    waiting = Thread(target=write.wait)
    waiting.start()

    waiting.join(0.1)
    assert waiting.is_alive()
    over.set()
    waiting.join(LIMIT_S)
    assert not waiting.is_alive()


def assert_set(event: Event) -> None:
    assert event.wait(LIMIT_S)


@pytest.mark.parametrize("fails", ["write", "sync"])
def test_a_failure_is_said_by_the_result_alone(fails: str) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    write = BackgroundWrite(*(full if fails == name else lambda: None for name in ("write", "sync")))

    write.wait()
    with pytest.raises(OSError, match="No space left"):
        write.result()
