"""All engines of one policy: which takes the next request, which are down, and operations on all of them."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from gymfleet_contracts.rollout import Sampling
from gymfleet_contracts.weights import WeightsOnGpu
from gymfleet_kit.retries import Retries

from gymfleet_rollout.inference.base import (
    Continuation,
    Engine,
    EngineDied,
    EngineDown,
    GenerationRequest,
    InferenceError,
    OnTokens,
    require_sound,
)

log = structlog.get_logger()

GREEDY: Final = Sampling(temperature=0.0)
_SAME_WEIGHTS_TOLERANCE: Final = {"float32": 1e-3}
"""Mean absolute difference in log-probability that two evaluations of equal weights may show."""
_SAME_WEIGHTS_TOLERANCE_HALF: Final = 0.05
_RECOVERY_PAUSE_S: Final = 0.5
_ADMISSION_LENGTH: Final = 8
_ADMISSION_TOKENS: Final = 8

Prompts = Sequence[Sequence[int]]
Answers = list[list[Continuation]]
"""One list per engine, with one answer per prompt."""


class EnginePool:
    """Hold engines that have equal weights.

    Args:
        vocab_size: every token id is smaller than this.
        revive: loads the live weights on an engine that answers again. Raises InferenceError if that must wait.
    """

    def __init__(
        self, engines: Sequence[Engine], *, dtype: str, vocab_size: int, revive: Callable[[Engine], Awaitable[None]]
    ) -> None:
        self._engines = tuple(engines)
        self._vocab_size = vocab_size
        self._tolerance = _SAME_WEIGHTS_TOLERANCE.get(dtype, _SAME_WEIGHTS_TOLERANCE_HALF)
        self._revive = revive
        self._some_up = asyncio.Event()
        self._some_up.set()
        self._recoveries: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._engines)

    @property
    def names(self) -> list[str]:
        """Return the engines' names in a fixed order."""
        return [engine.name for engine in self._engines]

    @property
    def down(self) -> list[str]:
        """Return the names of the engines that do not answer."""
        return [engine.name for engine in self._engines if not engine.is_up]

    @property
    def max_model_len(self) -> int:
        """Return how many tokens of prompt and reply together every engine can hold."""
        return min(engine.max_model_len for engine in self._engines)

    async def start(self) -> None:
        """Start every engine and return once each has generated a token. Raises InferenceError."""
        await asyncio.gather(*(start(engine) for engine in self._engines))
        await self.one_token("start")

    async def close(self) -> None:
        """Free every engine."""
        for task in self._recoveries.values():
            task.cancel()
        await asyncio.gather(*(engine.close() for engine in self._engines))

    async def check(self) -> None:
        """Raise InferenceError unless at least one engine is up and every engine that is up takes requests."""
        if not self._some_up.is_set():
            raise EngineDown(f"{', '.join(self.down)} is down")
        await asyncio.gather(*(engine.check() for engine in self._engines if engine.is_up))

    async def one_token(self, cache_salt: str) -> None:
        """Generate one token on every engine that is up. Raises InferenceError."""
        request = GenerationRequest((0,), 1, GREEDY, (), cache_salt)
        await asyncio.gather(*(self.generate(engine, request) for engine in self._engines if engine.is_up))

    async def generate(
        self, engine: Engine, request: GenerationRequest, on_tokens: OnTokens | None = None
    ) -> Continuation:
        """Return an engine's answer. Raises InferenceError for whatever it raises, and for an unsound answer."""
        with _as_inference_error(engine):
            answer = await engine.generate(request, on_tokens)
            require_sound(engine.name, request, answer, self._vocab_size)
        return answer

    async def least_busy(self) -> Engine:
        """Return the engine that takes the next request. This suspends only while all engines are down."""
        while True:
            up = [engine for engine in self._engines if engine.is_up]
            if up:
                return min(up, key=lambda engine: engine.num_in_flight)
            await self._some_up.wait()

    def mark_down(self, engine: Engine, error: InferenceError) -> None:
        """Send the engine no requests until it answers again and has the live weights."""
        if not engine.is_up:
            return
        engine.is_up = False
        log.error("engine.down", engine=engine.name, error=str(error))
        if all(not other.is_up for other in self._engines):
            self._some_up.clear()
        self._recoveries[engine.name] = asyncio.get_running_loop().create_task(self._recover(engine))

    async def admit(self, engine: Engine, path: Path, cache_salt: str) -> None:
        """Add an engine that has started: load the weights on it and check that it answers like one that is up.

        Raises InferenceError.
        """
        if engine.max_model_len < self.max_model_len:
            raise InferenceError(f"{engine.name} holds {engine.max_model_len} tokens, not {self.max_model_len}")
        witness = next((other for other in self._engines if other.is_up), None)
        length = min(_ADMISSION_LENGTH, self.max_model_len // 2)
        prompts = [[(31 * place + 7 * at) % self._vocab_size for at in range(length)] for place in range(length)]
        await load(engine, path)
        after = await self._ask(engine, prompts, _ADMISSION_TOKENS, GREEDY, cache_salt)
        if witness is not None:
            before = await self._ask(witness, prompts, _ADMISSION_TOKENS, GREEDY, cache_salt)
            self._require_alike(before, after, f"{engine.name} answers unlike {witness.name}")
        self._engines = (*self._engines, engine)
        self._some_up.set()

    async def forget_all_but(self, names: Collection[str]) -> None:
        """Forget engines that are down and not in `names`, but keep the last one, so that requests wait for another."""
        gone = [engine for engine in self._engines if not engine.is_up and engine.name not in names]
        for engine in gone[: len(self._engines) - 1]:
            self._engines = tuple(other for other in self._engines if other is not engine)
            self._recoveries.pop(engine.name).cancel()
            await engine.close()
            log.warning("engine.forgotten", engine=engine.name)

    async def interrupt(self) -> None:
        """End every request in flight on every engine."""
        await asyncio.gather(*(engine.interrupt() for engine in self._engines))

    async def sleep(self) -> None:
        """End the requests of every engine that is up, and put it to sleep.

        If one cannot sleep, the others are awake again when this raises InferenceError.
        """

        async def fall_asleep(engine: Engine) -> None:
            await engine.interrupt()
            await engine.sleep()

        try:
            await self._all_up(fall_asleep)
        except InferenceError:
            await self.wake()
            raise

    async def wake(self) -> None:
        """Wake every engine that is up. Raises InferenceError if one cannot be used any more."""
        await self._all_up(lambda engine: engine.wake())

    async def _all_up(self, call: Callable[[Engine], Awaitable[None]]) -> None:
        """Make a call on every engine that is up, and mark those that do not answer as down. Raises InferenceError."""

        async def one(engine: Engine) -> None:
            try:
                with _as_inference_error(engine):
                    await call(engine)
            except EngineDown as error:
                self.mark_down(engine, error)

        results = await asyncio.gather(
            *(one(engine) for engine in self._engines if engine.is_up), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def load(self, path: Path, on_gpu: WeightsOnGpu | None = None) -> None:
        """Load weights on every engine; if one load fails, wait for all of them to end before raising."""
        results = await asyncio.gather(
            *(load(engine, path, on_gpu) for engine in self._engines), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def ask(self, prompts: Prompts, max_tokens: int, sampling: Sampling, cache_salt: str) -> Answers:
        """Return every engine's answers to the prompts, generated by the same path as in episodes."""
        return list(
            await asyncio.gather(
                *(self._ask(engine, prompts, max_tokens, sampling, cache_salt) for engine in self._engines)
            )
        )

    async def restore(self, path: Path, prompts: Prompts, before: Answers | None, cache_salt: str) -> None:
        """Load weights again and check that each engine answers as in `before`, sampled greedily from the same weights.

        Without `before` no other weights were loaded, so it is enough that the engines answer.
        An engine that is down is left to its recovery. Raises InferenceError.
        """
        await asyncio.gather(
            *(
                self._restore(engine, path, prompts, None if before is None else before[at], cache_salt)
                for at, engine in enumerate(self._engines)
            )
        )

    async def _restore(
        self, engine: Engine, path: Path, prompts: Prompts, before: list[Continuation] | None, cache_salt: str
    ) -> None:
        try:
            if before is None:
                await engine.check()
                return
            await load(engine, path)
            max_tokens = max(len(answer.token_ids) for answer in before)
            after = await self._ask(engine, prompts, max_tokens, GREEDY, cache_salt)
        except EngineDown as error:
            self.mark_down(engine, error)
            return
        self._require_alike(before, after, f"{engine.name} answers unlike before")

    def _require_alike(self, before: list[Continuation], after: list[Continuation], complaint: str) -> None:
        gaps = [gap for one, other in zip(before, after, strict=True) for gap in _gaps(one, other)]
        if (mean := sum(gaps) / max(len(gaps), 1)) > self._tolerance:
            raise EngineDied(f"{complaint}, by {mean:.4f} nat a token")

    async def _recover(self, engine: Engine) -> None:
        await asyncio.sleep(_RECOVERY_PAUSE_S)
        await Retries(
            "engine.still_down", on=InferenceError, longest_pause_s=_RECOVERY_PAUSE_S, level="info",
            bound={"engine": engine.name},
        ).call(partial(self._bring_back, engine))  # fmt: skip
        self._some_up.set()
        log.warning("engine.up", engine=engine.name)

    async def _bring_back(self, engine: Engine) -> None:
        await engine.check()
        await self._revive(engine)
        engine.is_up = True

    async def _ask(
        self, engine: Engine, prompts: Prompts, max_tokens: int, sampling: Sampling, cache_salt: str
    ) -> list[Continuation]:
        requests = [GenerationRequest(prompt, max_tokens, sampling, (), cache_salt) for prompt in prompts]
        return list(await asyncio.gather(*(self.generate(engine, request) for request in requests)))


async def start(engine: Engine) -> None:
    """Start an engine. Raises InferenceError for whatever it raises."""
    with _as_inference_error(engine):
        await engine.start()


async def load(engine: Engine, path: Path, on_gpu: WeightsOnGpu | None = None) -> None:
    """Load weights on an engine. Raises InferenceError for whatever it raises."""
    with _as_inference_error(engine):
        if on_gpu is None:
            await engine.load(path)
        else:
            await engine.load_from_gpu(path, on_gpu)


@contextmanager
def _as_inference_error(engine: Engine) -> Iterator[None]:
    """Raise InferenceError for whatever an engine raises: engines may be other people's code, and only they failed."""
    try:
        yield
    except InferenceError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or "no reason given"
        raise InferenceError(f"the engine {engine.name} failed: {type(error).__name__}: {reason}") from error


def _gaps(before: Continuation, after: Continuation) -> list[float]:
    """Return the differences up to the first differing token; after it the two contexts are not comparable."""
    gaps = []
    for old_id, new_id, old, new in zip(
        before.token_ids, after.token_ids, before.logprobs, after.logprobs, strict=False
    ):
        gaps.append(abs(old - new))
        if old_id != new_id:
            break
    return gaps
