"""Values that searches request at the same time share the calls of the reward service.

If no call for the same reward is under way, one leaves at once with everything that is requested in the same turn of
the event loop. Requests that come while a call is under way leave together when it is answered, when they are a full
batch, or after `window_s`: a slow judge delays nobody for longer than that.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, TypeAlias

from gymfleet_contracts.reward import RewardSpec, ScoreRequest

from gymfleet_rollout.errors import EvaluationFailed
from gymfleet_rollout.evaluator import Outcomes

MAX_AT_ONCE: Final = 256
"""Episodes in a call."""
WINDOW_S: Final = 0.02
"""The longest that a search waits for others; below the time of the policy's replies, for which it waits in turn."""


class Scores(Protocol):
    """A service that answers a batch."""

    async def scores(self, requests: Sequence[ScoreRequest], *, timeout_s: float) -> Outcomes:
        """Return the total reward of each, or why it has none. Raises EvaluationFailed if nothing was answered."""


@dataclass(slots=True, eq=False)
class _Call:
    """The request of one search. It is done as soon as the search is cancelled."""

    requests: Sequence[ScoreRequest]
    answered: "asyncio.Future[Outcomes]"

    @property
    def is_wanted(self) -> bool:
        """Return whether the search still waits."""
        return not self.answered.done()

    def answer(self, outcomes: Outcomes) -> None:
        if self.is_wanted:
            self.answered.set_result(outcomes)

    def fail(self, error: Exception) -> None:
        if self.is_wanted:
            self.answered.set_exception(error)


@dataclass(slots=True, eq=False)
class _Queue:
    """The calls for one reward."""

    timeout_s: float
    waiting: list[_Call] = field(default_factory=list)
    num_under_way: int = 0
    timer: asyncio.TimerHandle | None = None


_Key: TypeAlias = tuple[float, frozenset[RewardSpec]]


class EvaluationBatches:
    """An `Evaluator` in front of the reward service, shared by all searches of a process."""

    def __init__(self, service: Scores, *, window_s: float = WINDOW_S) -> None:
        self._service = service
        self._window_s = window_s
        self._queues: dict[_Key, _Queue] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def totals(self, requests: Sequence[ScoreRequest], *, timeout_s: float) -> list[float]:
        """Return the total reward of each. Raises EvaluationFailed if one of them has none."""
        values: list[float] = []
        for first in range(0, len(requests), MAX_AT_ONCE):
            for outcome in await self._asked(requests[first : first + MAX_AT_ONCE], timeout_s):
                if isinstance(outcome, EvaluationFailed):
                    raise outcome
                values.append(outcome)
        return values

    async def aclose(self) -> None:
        """End the calls that are under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _asked(self, requests: Sequence[ScoreRequest], timeout_s: float) -> Outcomes:
        loop = asyncio.get_running_loop()
        key = timeout_s, frozenset(request.reward for request in requests)
        call = _Call(requests, loop.create_future())
        queue = self._queues.setdefault(key, _Queue(timeout_s))
        queue.waiting.append(call)
        if sum(len(one.requests) for one in queue.waiting) >= MAX_AT_ONCE:
            self._send(key)
        elif queue.timer is None:
            queue.timer = loop.call_later(self._window_s if queue.num_under_way else 0, self._send, key)
        return await call.answered

    def _send(self, key: _Key) -> None:
        queue = self._queues[key]
        if queue.timer is not None:
            queue.timer.cancel()
            queue.timer = None
        waiting, queue.waiting = [call for call in queue.waiting if call.is_wanted], []
        for calls in _batches(waiting):
            queue.num_under_way += 1
            task = asyncio.create_task(self._answer(calls, queue.timeout_s))
            self._tasks.add(task)
            task.add_done_callback(partial(self._returned, key))
            for call in calls:
                call.answered.add_done_callback(partial(_end_unwanted, calls, task))
        self._forget_idle(key)

    def _returned(self, key: _Key, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        queue = self._queues[key]
        queue.num_under_way -= 1
        if queue.waiting:
            self._send(key)
        self._forget_idle(key)

    def _forget_idle(self, key: _Key) -> None:
        queue = self._queues.get(key)
        if queue is not None and not queue.waiting and not queue.num_under_way:
            del self._queues[key]

    async def _answer(self, calls: Sequence[_Call], timeout_s: float) -> None:
        """Answer calls with one call to the service. If it fails, repeat it per search: one alone may be at fault."""
        requests = [request for call in calls for request in call.requests]
        try:
            outcomes = iter(await self._service.scores(requests, timeout_s=timeout_s))
            for call in calls:
                call.answer([next(outcomes) for _ in call.requests])
        except EvaluationFailed as error:
            if len(calls) > 1:
                await asyncio.gather(*(self._answer([call], timeout_s) for call in calls if call.is_wanted))
            for call in calls:
                call.fail(error)
        except Exception as error:  # noqa: BLE001 - a bug, of which those who asked must hear
            for call in calls:
                call.fail(error)
        finally:  # at the end of the process
            for call in calls:
                call.answered.cancel()


def _batches(calls: Sequence[_Call]) -> Iterator[list[_Call]]:
    """Yield lists of calls that fit into one."""
    batch: list[_Call] = []
    size = 0
    for call in calls:
        if batch and size + len(call.requests) > MAX_AT_ONCE:
            yield batch
            batch, size = [], 0
        batch.append(call)
        size += len(call.requests)
    if batch:
        yield batch


def _end_unwanted(calls: Sequence[_Call], task: "asyncio.Task[None]", _answered: "asyncio.Future[Outcomes]") -> None:
    """End a call that no search waits for any more."""
    if not any(call.is_wanted for call in calls):
        task.cancel()
