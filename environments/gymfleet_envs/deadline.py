"""A deadline for foreign code that runs on a thread which other calls wait for."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


class Overdue(BaseException):
    """Raised inside code that is past its deadline; as a `BaseException`, it escapes any `except Exception` there."""


def within(seconds: float, call: Callable[[], T]) -> T:
    """Make a call and interrupt it in its Python code when the time is up. Raises `Overdue`.

    A long call into C is interrupted when it returns. Only the main thread can be interrupted this way:
    on other threads, where nothing waits for the call, it runs without a limit.
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
