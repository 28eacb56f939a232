"""Environments written with `async def`: their sessions wait in one event loop, and none occupies a thread.

The code around an environment (episodes, leases, counts) is made of plain functions. So each job runs on a stack of
its own, a greenlet, which is suspended in the middle of a call until the event loop has what the call waits for;
SQLAlchemy supports asyncio's database drivers in the same way.
"""

import asyncio
import contextvars
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final, Generic, TypeVar, cast

from greenlet import getcurrent, greenlet
from gymfleet_contracts.session import ExpertMove
from gymfleet_envs.environment import AsyncEnvironment, Outcome
from gymfleet_envs.model_calls import Answerer
from pydantic import JsonValue

_STARTING: Final = threading.Lock()
T = TypeVar("T")
Job = Callable[[], object]
"""A job as in `threads`: it runs with the lock held, and releases it while it waits."""


class CallCancelled(Exception):
    """A coroutine of an environment was cancelled: by this module when it took too long, or by itself."""


class Settled:
    """An `AsyncEnvironment` with the synchronous interface: each call returns when its coroutine has ended."""

    def __init__(self, inner: AsyncEnvironment[Any]) -> None:
        self._inner = inner

    @property
    def turn_limit(self) -> int | None:
        """As the environment's own."""
        return self._inner.turn_limit

    @property
    def start_info(self) -> Any:
        """As the environment's own."""
        return self._inner.start_info

    @property
    def start_parts(self) -> Any:
        """As the environment's own."""
        return self._inner.start_parts

    @property
    def start_private(self) -> Any:
        """As the environment's own."""
        return self._inner.start_private

    @property
    def start_score(self) -> float:
        """As the environment's own."""
        return self._inner.start_score

    def answered_by(self, answerer: Answerer) -> None:
        """As the environment's own, which is no coroutine."""
        self._inner.answered_by(answerer)

    def game(self) -> Any:
        """As the environment's own, which is no coroutine."""
        return self._inner.game()

    def reset(self, task: Any, seed: int) -> str:
        """As the environment's own."""
        return settle(self._inner.reset(task, seed))

    def step(self, action: str) -> Outcome:
        """As the environment's own."""
        return settle(self._inner.step(action))

    def expert(self) -> ExpertMove | None:
        """As the environment's own."""
        return settle(self._inner.expert())

    def state_digest(self) -> str | None:
        """As the environment's own."""
        return settle(self._inner.state_digest())

    def state_key(self) -> str | None:
        """As the environment's own."""
        return settle(self._inner.state_key())

    def admissible_actions(self) -> Sequence[str] | None:
        """As the environment's own."""
        return settle(self._inner.admissible_actions())

    def action_of(self, tool: str, arguments: Mapping[str, JsonValue]) -> str:
        """As the environment's own, which is no coroutine."""
        return self._inner.action_of(tool, arguments)

    def irreversible(self, action: str) -> bool:
        """As the environment's own, which is no coroutine."""
        return self._inner.irreversible(action)

    def snapshot(self) -> "Settled":
        """As the environment's own."""
        return Settled(settle(self._inner.snapshot()))

    def close(self) -> None:
        """As the environment's own."""
        settle(self._inner.close())


def settle(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return a coroutine's result. Meanwhile a session's job is suspended; the thread of any other caller waits.

    Raises what the coroutine raises, and `CallCancelled`.
    """
    current = getcurrent()
    if isinstance(current, _Stack):
        return current.leave(coroutine)
    return asyncio.run_coroutine_threadsafe(_uncancelled(coroutine), _loop()).result()


async def _uncancelled(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        return await coroutine
    except asyncio.CancelledError as error:
        raise CallCancelled(str(error) or "the call was cancelled") from error


def own_cpu_s() -> float:
    """Return the processor time in seconds of the calling thread, or of the session's job alone if it has a stack."""
    current = getcurrent()
    return time.thread_time() - (current.others_s if isinstance(current, _Stack) else 0.0)


def caller() -> int:
    """Return a number for the caller that is different for every existing thread and stack."""
    return id(getcurrent())


class SessionCoroutines:
    """Runs jobs of an environment in the event loop, each on a stack of its own.

    Its methods are called with `lock` held, as those of `threads.SessionThreads`.

    Args:
        at_once: number of jobs that may run at once; more wait in a queue.
        run: runs a job of a session, with the lock held.
    """

    def __init__(self, at_once: int, lock: threading.Lock, run: Callable[[str, Job], None]) -> None:
        self._room = at_once
        self._lock = lock
        self._run = run
        self._jobs: deque[tuple[str, Job]] = deque()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """Tasks by session, used only by the loop's thread."""

    def put(self, session_id: str, job: Job) -> None:
        """Run the job as soon as there is room."""
        self._jobs.append((session_id, job))
        self._begin_next()

    def add_room(self, number: int) -> None:
        """Allow `number` more jobs at once, or fewer if it is negative."""
        self._room += number
        self._begin_next()

    def give_up(self, session_id: str, heeded: Callable[[], None]) -> None:
        """Cancel the session's job; `heeded` is called in the loop's thread, and never if a call blocks that thread."""
        self.add_room(1)
        _loop().call_soon_threadsafe(self._cancel, session_id, heeded)

    def take_all(self) -> list[str]:
        """Drop the jobs that have not begun, and return their sessions."""
        taken = [session_id for session_id, _ in self._jobs]
        self._jobs.clear()
        return taken

    def _begin_next(self) -> None:
        while self._jobs and self._room > 0:
            self._room -= 1
            _loop().call_soon_threadsafe(self._begin, *self._jobs.popleft())

    def _begin(self, session_id: str, job: Job) -> None:
        task = self._tasks[session_id] = asyncio.get_running_loop().create_task(self._play(session_id, job))
        task.add_done_callback(partial(self._forget, session_id))

    def _forget(self, session_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(session_id) is task:
            del self._tasks[session_id]

    def _cancel(self, session_id: str, heeded: Callable[[], None]) -> None:
        if (task := self._tasks.get(session_id)) is not None:
            task.cancel("it took too long")
        heeded()

    async def _play(self, session_id: str, job: Job) -> None:
        stack = _Stack(partial(self._do, session_id, job))
        wanted = stack.switch()
        while not stack.dead:
            try:
                answer = await _Timed(wanted, stack)
            except asyncio.CancelledError as error:
                cast(asyncio.Task[None], asyncio.current_task()).uncancel()  # this task goes on: `close` may still wait
                wanted = stack.throw(CallCancelled(str(error) or "the call was cancelled"))
            except BaseException as error:  # noqa: BLE001 - the environment's, for whoever called it
                wanted = stack.throw(error)
            else:
                wanted = stack.switch(answer)

    def _do(self, session_id: str, job: Job) -> None:
        """Run the job, on its own stack."""
        with self._lock:
            self._run(session_id, job)
            self.add_room(1)


class _Stack(greenlet):
    """The stack that a job runs on. Its parent is the loop's thread, which waits for it."""

    def __init__(self, run: Callable[[], None]) -> None:
        super().__init__(run)
        self.gr_context = contextvars.copy_context()
        self.own_s = 0.0
        """Processor time of the coroutines that it waited for."""
        self.others_s = 0.0
        """Processor time that others have used on this thread while the stack was suspended."""

    def leave(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Suspend the stack until the coroutine has ended, and return its result. Raises what it raises."""
        left, own = time.thread_time(), self.own_s
        try:
            return cast(T, cast(greenlet, self.parent).switch(coroutine))
        finally:
            self.others_s += (time.thread_time() - left) - (self.own_s - own)


class _Timed(Generic[T]):
    """Awaits a coroutine and adds the processor time that it uses to that of its stack."""

    def __init__(self, awaited: Awaitable[T], stack: _Stack) -> None:
        self._awaited = awaited
        self._stack = stack

    def __await__(self) -> Generator[Any, Any, T]:
        inner = self._awaited.__await__()
        resume: Callable[[], Any] = partial(next, inner)
        while True:
            began = time.thread_time()
            try:
                wanted = resume()
            except StopIteration as end:
                return cast(T, end.value)
            finally:
                self._stack.own_s += time.thread_time() - began
            try:
                yield wanted
            except BaseException as error:  # noqa: BLE001 - asyncio's, such as a cancellation
                resume = partial(_throw, inner, error)
            else:
                resume = partial(next, inner)


def _throw(inner: Any, error: BaseException) -> Any:
    return inner.throw(error)


def _loop() -> asyncio.AbstractEventLoop:
    """Return this process's one loop, for all environments: what their sessions share may be bound to it."""
    with _STARTING:
        return _start_loop()


@cache
def _start_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="session-loop", daemon=True).start()
    return loop
