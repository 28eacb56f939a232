"""Components that do not come with gymfleet run here: away from the service's event loop, with a time limit."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Final, TypeVar

import structlog

from gymfleet_reward.component import ComponentError

log = structlog.get_logger()
T = TypeVar("T")
_GRACE_S: Final = 1.0
"""Time for a coroutine to end itself before its caller goes on without it."""
_MAX_THREADS: Final = 128
"""Functions under way at once. One that never returns keeps its thread: many of them must not fill the process."""

_MAX_BLOCKED: Final = 32
"""Maximum number of event loops that are given up; each keeps its thread."""


class Blocked(ComponentError):
    """The event loop did not get to the call."""


class UserCode:
    """Run functions in threads, and coroutines in one event loop with its own thread.

    Whatever they do, the caller, which must not be an event loop, goes on after about `timeout_s`.

    Args:
        on_blocked: called when something blocks the event loop: another one replaces it, and objects that belong to the
            old one are of no use.
    """

    def __init__(self, timeout_s: float, on_blocked: Callable[[], None]) -> None:
        self._timeout_s = timeout_s
        self._on_blocked = on_blocked
        self._num_blocked = 0
        self._free = threading.BoundedSemaphore(_MAX_THREADS)
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[Future[Any]] = set()
        self._closed = False

    def call(self, function: Callable[[], T]) -> T:
        """Return what a function returns, or raise what it raises. Raises `ComponentError` if it takes too long."""
        if not self._free.acquire(blocking=False):
            raise ComponentError(f"{_MAX_THREADS} calls of plug-ins are under way in this service, or hang")
        answer: Future[T] = Future()
        # Not a thread of a pool: the process would wait for that at its end.
        threading.Thread(target=self._run, args=(function, answer), daemon=True, name="component").start()
        try:
            return self._result(answer, self._timeout_s)
        except TimeoutError as error:
            if not answer.cancel():  # it was the function's own
                raise
            raise ComponentError(f"it did not return within {self._timeout_s:g} s") from error

    def gather(self, functions: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run coroutine functions at the same time, and return what each returns or raises, in their order."""
        loop = self._running_loop()
        answers = [asyncio.run_coroutine_threadsafe(self._limited(function), loop) for function in functions]
        deadline = time.monotonic() + self._timeout_s + _GRACE_S
        outcomes = [self._outcome(answer, max(deadline - time.monotonic(), 0.0)) for answer in answers]
        if any(isinstance(outcome, Blocked) for outcome in outcomes):
            self._replace(loop)
        return outcomes

    def close(self) -> None:
        """End the calls under way; those that cannot be ended are left behind."""
        self._closed = True
        for answer in list(self._waiting):
            answer.cancel()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # closed already
                self._loop.call_soon_threadsafe(self._loop.stop)

    def _outcome(self, answer: "Future[Any]", timeout_s: float) -> Any:
        try:
            return self._result(answer, timeout_s)
        except TimeoutError as error:
            if answer.cancel():  # the loop did not even notice: something blocks it
                return Blocked(f"no answer within {self._timeout_s:g} s: a component blocks the event loop")
            return error
        except Exception as error:  # noqa: BLE001 - it is the caller's answer
            return error

    def _result(self, answer: "Future[T]", timeout_s: float) -> T:
        self._waiting.add(answer)
        try:
            if self._closed:
                answer.cancel()
            return answer.result(timeout_s)
        except CancelledError:
            raise ComponentError("the service stops" if self._closed else "it was cancelled") from None
        finally:
            self._waiting.discard(answer)

    def _run(self, function: Callable[[], T], answer: "Future[T]") -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - a plug-in must not end the process
            _settle(answer.set_exception, _as_exception(error))
        else:
            _settle(answer.set_result, result)
        finally:
            self._free.release()

    async def _limited(self, function: Callable[[], Any]) -> Any:
        deadline = asyncio.timeout(self._timeout_s)
        try:
            async with deadline:
                return await function()
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise TimeoutError(f"no answer within {self._timeout_s:g} s") from error
        except (SystemExit, KeyboardInterrupt) as error:  # in a task it would end the loop
            raise _as_exception(error) from None

    def _replace(self, blocked: asyncio.AbstractEventLoop) -> None:
        with self._starting:
            if self._loop is not blocked or self._num_blocked == _MAX_BLOCKED:
                return
            self._num_blocked += 1
            self._loop = None
        log.error("component.blocks", num_loops=self._num_blocked)
        self._on_blocked()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                started: Future[asyncio.AbstractEventLoop] = Future()
                threading.Thread(target=_run_loop, args=(started,), daemon=True, name="components").start()
                self._loop = started.result()
        return self._loop


def _run_loop(started: "Future[asyncio.AbstractEventLoop]") -> None:
    with asyncio.Runner() as runner:  # cancels what is left at its end
        loop = runner.get_loop()
        loop.call_soon(started.set_result, loop)
        loop.run_forever()


def _settle(set_it: Callable[[Any], None], what: object) -> None:
    with contextlib.suppress(Exception):  # nobody waits any more
        set_it(what)


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else ComponentError(f"it raised {type(error).__name__}({error})")
