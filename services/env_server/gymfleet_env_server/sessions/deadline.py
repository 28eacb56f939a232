"""A deadline for foreign code on a thread that others wait for."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


class Overdue(BaseException):
    """Raised in the midst of code that is past its deadline; no `except Exception` there takes it for its own."""


def within(seconds: float, call: Callable[[], T]) -> T:
    """Make a call and cut it off in its Python code when the time is up. Raises `Overdue`.

    A long call into C is cut off when it comes back. Only the main thread can be interrupted so:
    in others, where nobody waits for the call, it takes as long as it takes.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    handler = signal.signal(signal.SIGALRM, _cut_off)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def _cut_off(_number: int, _frame: FrameType | None) -> None:
    raise Overdue
