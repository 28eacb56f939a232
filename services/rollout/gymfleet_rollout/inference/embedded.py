"""vLLM's engine inside this process, stepped by a dedicated thread.

On one machine without a GPU this is several times faster than a server: no
second process competes with the first by spinning, and nothing is serialised.
The event loop passes requests in a queue and gets finished ones back in one
callback per engine step.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import structlog
from gymfleet_contracts.weights import WeightsOnGpu

from gymfleet_rollout.inference.base import (
    REPLY_ENDS,
    Continuation,
    Engine,
    EngineConfig,
    EngineDied,
    FinishReason,
    GenerationRequest,
    InferenceError,
    OnTokens,
    WeightsRejected,
)
from gymfleet_rollout.inference.engine import Core, build_core

log = structlog.get_logger()

T = TypeVar("T")
_CLOSE_TIMEOUT_S = 30.0


@dataclass(slots=True)
class _Active:
    """A request in the engine. Only the engine's thread accesses the lists."""

    request: GenerationRequest
    future: "asyncio.Future[Continuation]"
    on_tokens: OnTokens | None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    num_cached_tokens: int = 0

    def continuation(self, reason: FinishReason | None) -> Continuation:
        return Continuation(self.token_ids, self.logprobs, reason, self.num_cached_tokens)


_Finished = list[tuple["asyncio.Future[Any]", Any, BaseException | None]]


class EmbeddedEngine(Engine):
    """An engine in a thread. Construct it and use it on one event loop."""

    name = "embedded"

    def __init__(self, config: EngineConfig, *, build: Callable[[EngineConfig], Core] = build_core) -> None:
        self.max_model_len = config.max_model_len
        self._config = config
        self._build = build
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._inbox: deque[_Active | tuple[Callable[[Core], Any], asyncio.Future[Any]]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._failure: EngineDied | None = None
        self._active: dict[str, _Active] = {}
        self._abandoned: deque[asyncio.Future[Continuation]] = deque()

    # --- the event loop's side

    async def start(self) -> None:
        """Build the engine in its thread."""
        self._loop = asyncio.get_running_loop()
        started: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="engine", daemon=True)
        self._thread.start()
        await started

    async def generate(self, request: GenerationRequest, on_tokens: OnTokens | None = None) -> Continuation:
        """See `Engine.generate`. The request is in the engine's queue before the first suspension."""
        if self._failure is not None:
            raise self._failure
        if self._loop is None:
            raise InferenceError("the embedded engine was not started")
        num_prompt_tokens = len(request.prompt_token_ids)
        if not num_prompt_tokens or num_prompt_tokens + request.max_tokens > self.max_model_len:
            raise InferenceError(
                f"a prompt of {num_prompt_tokens} tokens and {request.max_tokens} new ones do not fit "
                f"max_model_len ({self.max_model_len})"
            )
        future: asyncio.Future[Continuation] = self._loop.create_future()
        self._post(_Active(request, future, on_tokens))
        self.num_in_flight += 1
        try:
            return await future
        except asyncio.CancelledError:
            self._abandoned.append(future)
            self._wake.set()
            raise
        finally:
            self.num_in_flight -= 1

    async def interrupt(self) -> None:
        """See `Engine.interrupt`."""
        await self.between_steps(self._interrupt_all)

    async def load(self, weights_path: Path) -> None:
        """See `Engine.load`."""
        await self._load(weights_path, None)

    async def load_from_gpu(self, weights_path: Path, on_gpu: WeightsOnGpu) -> None:
        """See `Engine.load_from_gpu`."""
        await self._load(weights_path, on_gpu)

    async def _load(self, weights_path: Path, on_gpu: WeightsOnGpu | None) -> None:
        def load(core: Core) -> None:
            try:
                core.load(weights_path, on_gpu)
            except Exception as error:
                raise WeightsRejected(f"{weights_path}: {error}") from error

        await self.between_steps(load)

    async def sleep(self) -> None:
        """See `Engine.sleep`."""
        await self.between_steps(lambda core: core.sleep())

    async def wake(self) -> None:
        """See `Engine.wake`."""
        await self.between_steps(lambda core: core.wake())

    async def check(self) -> None:
        """Check that the thread is alive; the caller's own generation proves the rest."""
        if self._failure is not None:
            raise self._failure
        if self._thread is None or not self._thread.is_alive():
            raise EngineDied("the embedded engine is not running")

    async def close(self) -> None:
        """Stop the thread after its current step."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _CLOSE_TIMEOUT_S)

    async def between_steps(self, function: Callable[[Core], T]) -> T:
        """Run a function in the engine's thread, between two steps. Raises EngineDied."""
        if self._failure is not None:
            raise self._failure
        if self._loop is None:
            raise InferenceError("the embedded engine was not started")
        future: asyncio.Future[T] = self._loop.create_future()
        self._post((function, future))
        return await future

    def _post(self, item: "_Active | tuple[Callable[[Core], Any], asyncio.Future[Any]]") -> None:
        self._inbox.append(item)
        if not self._wake.is_set():
            self._wake.set()

    # --- the engine's side

    def _run(self, started: "asyncio.Future[None]") -> None:
        core = None
        try:
            core = self._build(self._config)
            self._deliver([(started, None, None)])
            self._turn(core)
            error = EngineDied("the embedded engine was closed")
        except BaseException as cause:
            log.error("engine.died", exc_info=cause)
            error = _death(cause)
        self._failure = error
        waiting: list[asyncio.Future[Any]] = [started, *(request.future for request in self._active.values())]
        while self._inbox:
            item = self._inbox.popleft()
            waiting.append(item.future if isinstance(item, _Active) else item[1])
        self._deliver([(future, None, error) for future in waiting])
        if core is not None:
            core.close()

    def _turn(self, core: Core) -> None:
        while not self._stopping:
            if not self._inbox and not self._active:
                self._wake.clear()
                if not self._inbox and not self._stopping and not self._abandoned:
                    self._wake.wait()
            self._admit(core)
            if self._active:
                self._step(core)

    def _admit(self, core: Core) -> None:
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, _Active):
                if not item.future.cancelled():
                    request_id = core.add(item.request)
                    self._active[request_id] = item
                continue
            function, future = item
            try:
                self._deliver([(future, function(core), None)])
            except WeightsRejected as error:
                self._deliver([(future, None, error)])
            except BaseException as cause:  # the engine ends with it, and this caller is in no queue any more
                self._deliver([(future, None, _death(cause))])
                raise
        if self._abandoned:
            gone = set(self._abandoned)
            self._abandoned.clear()
            ids = [request_id for request_id, request in self._active.items() if request.future in gone]
            core.abort(ids)
            for request_id in ids:
                del self._active[request_id]

    def _step(self, core: Core) -> None:
        finished: _Finished = []
        for request_id, token_ids, logprobs, reason, num_cached_tokens in core.step():
            request = self._active.get(request_id)
            if request is None:
                continue
            request.token_ids += token_ids
            request.logprobs += logprobs
            request.num_cached_tokens += num_cached_tokens
            if request.on_tokens is not None:
                request.on_tokens(len(token_ids))
            if reason is None:
                continue
            del self._active[request_id]
            if reason in REPLY_ENDS:
                finished.append((request.future, request.continuation(REPLY_ENDS[reason]), None))
            else:
                error = InferenceError(f"the embedded engine ended a request with {reason!r}")
                finished.append((request.future, None, error))
        if finished:
            self._deliver(finished)

    def _interrupt_all(self, core: Core) -> None:
        core.abort(list(self._active))
        finished: _Finished = [(request.future, request.continuation(None), None) for request in self._active.values()]
        self._active.clear()
        self._deliver(finished)

    def _deliver(self, results: _Finished) -> None:
        assert self._loop is not None  # noqa: S101 - set before the thread starts
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_resolve, results)


def _death(cause: BaseException) -> EngineDied:
    return EngineDied(f"the embedded engine died: {type(cause).__name__}: {cause}")


def _resolve(results: _Finished) -> None:
    for future, result, error in results:
        if future.done():
            continue
        if error is not None:
            future.set_exception(error)
            future.exception()  # mark it as retrieved, so that the loop does not complain if the caller has gone
        else:
            future.set_result(result)
