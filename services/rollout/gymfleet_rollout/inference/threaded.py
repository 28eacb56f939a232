"""The base of engines that answer one request at a time, with blocking code."""

import asyncio
import threading
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from gymfleet_rollout.inference.base import Continuation, Engine, EngineConfig, GenerationRequest, OnTokens

T = TypeVar("T")
Over = Callable[[], bool]
"""Returns whether a reply is no longer wanted: it was interrupted, or its caller has gone."""


class ThreadEngine(Engine):
    """An engine whose abstract methods run in its own thread, never two at once."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.max_model_len = config.max_model_len
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._open: set[threading.Event] = set()

    @abstractmethod
    def build(self) -> None:
        """Load the model in `config.model`."""

    @abstractmethod
    def sample(self, request: GenerationRequest, over: Over) -> Continuation:
        """Return a reply, as in `Engine.generate`. Call `over` after each token; if true, end with the reason None."""

    @abstractmethod
    def read_weights(self, weights_path: Path) -> None:
        """Replace the weights by those in a directory of safetensors."""

    async def start(self) -> None:
        """Build the model."""
        await self._in_thread(self.build)

    async def generate(self, request: GenerationRequest, on_tokens: OnTokens | None = None) -> Continuation:
        """Wait for the earlier requests, then sample."""
        over = threading.Event()
        self._open.add(over)
        self.num_in_flight += 1
        try:
            answer = await self._in_thread(lambda: self._sampled(request, over))
        finally:
            over.set()  # if the caller has gone, the thread should not go on for it
            self._open.discard(over)
            self.num_in_flight -= 1
        if on_tokens is not None:
            on_tokens(len(answer.token_ids))
        return answer

    async def interrupt(self) -> None:
        """End the reply that is being sampled, and those that wait."""
        for over in self._open:
            over.set()
        while self._open:  # their callers take the answers a moment after the thread gave them
            await self._in_thread(_nothing)

    async def load(self, weights_path: Path) -> None:
        """See `Engine.load`."""
        await self._in_thread(lambda: self.read_weights(weights_path))

    async def check(self) -> None:
        """Do nothing: only a token proves that the thread works."""

    async def close(self) -> None:
        """End the requests in flight; the thread ends with them."""
        for over in self._open:
            over.set()
        self._thread.shutdown(wait=False)

    def _sampled(self, request: GenerationRequest, over: threading.Event) -> Continuation:
        return Continuation([], [], None) if over.is_set() else self.sample(request, over.is_set)

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


def _nothing() -> None: ...
