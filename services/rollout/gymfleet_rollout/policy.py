"""The live policy: which weights generate replies, and how they are replaced.

A new version is *staged* (loaded on every engine and probed while nothing else
is generated), then *committed* or *refused*; without a decision in time it is
refused. Requests in flight are interrupted, keep the tokens they have, and are
resumed afterwards, as prompt plus partial reply, under the version that is live then.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from gymfleet_contracts.rollout import EngineProbe, ProbeSample, Sampling, StagedVersion, StageVersion
from gymfleet_contracts.rollout import Policy as PolicyState
from gymfleet_contracts.trajectory import VersionSpan
from gymfleet_kit.app import NotReady
from gymfleet_kit.chat.image_reader import PlacedImage
from gymfleet_kit.shared_weights import SHARED_MEMORY

from gymfleet_rollout import metrics
from gymfleet_rollout.deadlines import Deadlines
from gymfleet_rollout.engine_pool import GREEDY, Answers, EnginePool, Prompts, load
from gymfleet_rollout.errors import CannotSleep, PolicyUnavailable, PolicyUpdateFailed, PolicyVersionConflict
from gymfleet_rollout.held_weights import HeldWeights
from gymfleet_rollout.inference.base import (
    Continuation,
    Engine,
    EngineDied,
    EngineDown,
    Generation,
    GenerationRequest,
    InferenceError,
    WeightsRejected,
)
from gymfleet_rollout.inference.manifest import read_manifest
from gymfleet_rollout.inference.weights import is_adapter, require_adapter, require_same_tensors, tensor_shapes
from gymfleet_rollout.received_weights import ReceivedWeights
from gymfleet_rollout.sleep_lease import SleepLease

log = structlog.get_logger()

_HEALTH_TIMEOUT_S: Final = 10.0
_MAX_EMPTY: Final = 100
"""Parts of a reply in a row without a token: publishing does not interrupt a reply this often."""


@dataclass(frozen=True, slots=True)
class _Staged:
    version: int
    path: Path
    asked: StageVersion
    prompts: Prompts
    baseline: Answers
    timer: asyncio.TimerHandle
    answer: StagedVersion

    def is_asked_by(self, body: StageVersion) -> bool:
        """Return whether a request is for this version. The place that sends the weights may differ."""
        return (self.asked.version, self.asked.weights_path) == (body.version, body.weights_path)


class Policy:
    """Present all engines as one source of tokens that has a policy version.

    Args:
        model: the model name shown to callers.
        base_path: the directory with the weights of version 0.
        vocab_size: every token id is smaller than this.
        sleep_mode: the engines can sleep.
        sees_images: prompts may show images.
        max_lora_rank: versions are adapters of at most this rank to the weights of version 0; with 0 whole weights.
        received_dir: the directory for versions that the trainer sends.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        *,
        model: str,
        base_path: Path,
        backend: str,
        dtype: str,
        vocab_size: int,
        max_lora_rank: int = 0,
        sleep_mode: bool = False,
        sees_images: bool = False,
        received_dir: Path = SHARED_MEMORY,
    ) -> None:
        self._engines = EnginePool(engines, dtype=dtype, vocab_size=vocab_size, revive=self._revive)
        self._model = model
        self._backend = backend
        self._dtype = dtype
        self._vocab_size = vocab_size
        self._base_path = base_path
        self._max_lora_rank = max_lora_rank
        self._sleep_mode = sleep_mode
        self._sees_images = sees_images
        self._live = 0
        self._live_path = base_path
        self._staged: _Staged | None = None
        self._lock = asyncio.Lock()
        self._open = asyncio.Event()
        self._broken: str | None = None
        self._tokens_generated = 0
        self._tokens_sampled = 0
        self._deadlines = Deadlines()
        self._sleep = SleepLease(self._sleep_is_over)
        self._expiry: asyncio.Task[None] | None = None
        self._held = HeldWeights()
        self._received = ReceivedWeights(base_path, received_dir)
        self._listeners: list[Callable[[], None]] = []
        self.failed = asyncio.Event()
        """Set when nothing can be generated any more until the process is restarted."""

    @property
    def model(self) -> str:
        """Return the model name shown to callers."""
        return self._model

    @property
    def live_version(self) -> int:
        """Return the policy version that generates replies now."""
        return self._live

    @property
    def max_model_len(self) -> int:
        """Return how many tokens of prompt and reply together every engine can hold."""
        return self._engines.max_model_len

    def require_usable(self) -> None:
        """Raise PolicyUnavailable when the engine or its weights can no longer be used."""
        if self._broken is not None:
            raise PolicyUnavailable(self._broken)

    def state(self) -> PolicyState:
        """Return the state that `GET /v1/policy` reports."""
        return PolicyState(
            model=self._model,
            live_version=self._live,
            staged_version=None if self._staged is None else self._staged.version,
            backend=self._backend,
            dtype=self._dtype,
            num_engines=len(self._engines),
            max_lora_rank=self._max_lora_rank,
            tokens_generated=self._tokens_generated,
            tokens_sampled=self._tokens_sampled,
            sees_images=self._sees_images,
            sleep_mode=self._sleep_mode,
            asleep=self._sleep.is_held,
        )

    @property
    def replica_names(self) -> list[str]:
        """Return the names of all known engines, up or down."""
        return self._engines.names

    async def admit(self, engine: Engine) -> bool:
        """Add an engine that has started; return False while a version is being decided on or the engines sleep.

        Raises InferenceError.
        """
        async with self._lock:
            if self._staged is not None or self._sleep.is_held:
                return False
            await self._engines.admit(engine, self._live_path, str(self._live))
            return True

    async def forget_all_but(self, names: Collection[str]) -> None:
        """Forget engines that are down and not in `names`; do nothing while a version is being decided on."""
        async with self._lock:
            if self._staged is None:
                await self._engines.forget_all_but(names)

    def on_commit(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever a version has gone live."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """Start every engine and return once all of them answer. Raises InferenceError."""
        await self._engines.start()
        self._open.set()

    async def close(self) -> None:
        """Free every engine."""
        if self._staged is not None:
            self._staged.timer.cancel()
        if self._expiry is not None:
            self._expiry.cancel()
        self._sleep.close()
        await self._engines.close()
        self._held.hold_only([])
        self._received.keep_only(self._base_path)

    async def check_ready(self) -> None:
        """Generate one token, unless a version is being staged or the engines sleep. Raises NotReady."""
        if self._broken is not None:
            raise NotReady(self._broken)
        try:
            async with asyncio.timeout(_HEALTH_TIMEOUT_S):
                await self._engines.check()
                if self._open.is_set():
                    await self._engines.one_token(str(self._live))
        except TimeoutError:
            raise NotReady(f"the engine gave no token within {_HEALTH_TIMEOUT_S:g} s") from None
        except InferenceError as error:
            raise NotReady(str(error)) from error

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop_token_ids: tuple[int, ...],
        images: Sequence[PlacedImage] = (),
    ) -> Generation:
        """Sample a reply, and continue it across a change of weights if one happens meanwhile.

        An engine that went down is skipped. If no engine is left this waits, so set a deadline.
        Raises InferenceError when the engine fails and PolicyUnavailable when it can no longer be used.
        """
        prompt = list(prompt_token_ids)
        token_ids: list[int] = []
        logprobs: list[float] = []
        sampled: dict[int, int] = {}
        num_prefilled = 0
        empty = 0
        while empty < _MAX_EMPTY:
            part, version = await self._continue(
                prompt + token_ids, max_tokens - len(token_ids), _resumed(sampling, len(token_ids)), stop_token_ids,
                images,
            )  # fmt: skip
            if part.token_ids:
                num_prefilled += len(prompt) + len(token_ids) - part.num_cached_tokens
                token_ids += part.token_ids
                logprobs += part.logprobs
                sampled[version] = sampled.get(version, 0) + len(part.token_ids)
                self._tokens_generated += len(part.token_ids)
                metrics.TOKENS.inc(len(part.token_ids))
            if part.finish_reason is not None:
                versions = tuple(VersionSpan(version=version, num_tokens=count) for version, count in sampled.items())
                return Generation(tuple(token_ids), tuple(logprobs), part.finish_reason, versions, num_prefilled)
            metrics.INTERRUPTED.inc()
            empty = 0 if part.token_ids else empty + 1
        raise InferenceError(f"the engine answered {empty} times with neither a token nor the end of the reply")

    async def _continue(
        self,
        prompt: list[int],
        max_tokens: int,
        sampling: Sampling,
        stop_token_ids: tuple[int, ...],
        images: Sequence[PlacedImage],
    ) -> tuple[Continuation, int]:
        """Return the result of one engine call, and the version whose weights sampled all of its tokens.

        A call that is lost because its engine went down is made again.
        """
        while True:
            engine = await self._engines.least_busy()
            if not self._open.is_set():
                await self._open.wait()
                continue
            self.require_usable()
            # Nothing is awaited from here until the request is in the engine's queue, so the version cannot change.
            version = self._live
            try:
                request = GenerationRequest(prompt, max_tokens, sampling, stop_token_ids, str(version), images)
                part = await self._engines.generate(engine, request, self._count_sampled)
            except EngineDown as error:
                self._engines.mark_down(engine, error)
            except EngineDied as error:
                self._give_up(str(error))
                raise
            else:
                return part, version

    def timeout(self, seconds: float) -> contextlib.AbstractAsyncContextManager[asyncio.Timeout]:
        """Return a time limit like `asyncio.timeout`, paused while a version is decided on or the engines sleep."""
        return self._deadlines.timeout(seconds)

    def _count_sampled(self, num_tokens: int) -> None:
        self._tokens_sampled += num_tokens

    async def stage(self, body: StageVersion) -> StagedVersion:
        """Load a version on every engine and sample the probe with it; generate nothing else until it is decided on.

        Engines that sleep wake first.

        Raises PolicyVersionConflict, or PolicyUpdateFailed once the live version has been restored.
        """
        async with self._lock:
            if self._staged is not None and self._staged.is_asked_by(body):
                return self._staged.answer  # a repeated request, whose first answer was lost
            self._require_stageable(body)
            try:
                path = await self._brought(body)
                self._held.hold(path)
                await asyncio.to_thread(self._require_loadable, path)
            except InferenceError as error:
                self._hold_live()
                raise PolicyUpdateFailed(str(error), version=body.version) from error
            self._pause()
            try:
                await self._wake_engines()
                self._staged = await self._load_and_probe(body, path)
            except InferenceError as error:
                self._hold_live()
                raise PolicyUpdateFailed(f"version {body.version}: {error}", version=body.version) from error
            answer = self._staged.answer
            log.info("policy.staged", version=body.version, pause_s=round(answer.pause_s, 4))
            return answer

    async def commit(self, version: int) -> PolicyState:
        """Make the staged version live. Committing the live version again changes nothing."""
        async with self._lock:
            if self._staged is None and version == self._live:
                return self.state()
            staged = self._require_staged(version)
            staged.timer.cancel()
            self._live, self._live_path, self._staged = staged.version, staged.path, None
            self._hold_live()
            self._resume()
            metrics.LIVE_VERSION.set(version)
            log.info("policy.committed", version=version)
            for listener in self._listeners:
                listener()
            return self.state()

    async def refuse(self, version: int) -> PolicyState:
        """Restore the last live version. Refusing a version that is no longer staged changes nothing."""
        async with self._lock:
            if self._staged is None and version > self._live:
                return self.state()
            staged = self._require_staged(version)
            staged.timer.cancel()
            self._staged = None
            await asyncio.shield(self._restore(staged.prompts, staged.baseline))
            self._hold_live()
            log.warning("policy.refused", version=version, live_version=self._live)
            return self.state()

    async def _brought(self, body: StageVersion) -> Path:
        """Return the directory of the version, which may have to be received first. Raises WeightsRejected."""
        if body.broadcast is None:
            return Path(body.weights_path)
        if self._max_lora_rank:
            raise WeightsRejected("whole weights are sent, and this service was started for adapters")
        # Requests are still answered meanwhile: the pause is for loading alone.
        return await asyncio.to_thread(self._received.receive, body.version, body.broadcast)

    def _hold_live(self) -> None:
        self._held.hold_only([self._live_path])
        self._received.keep_only(self._live_path)

    async def sleep(self, lease_s: float) -> PolicyState:
        """Free the engines' memory; requests keep their tokens and wait. If asleep, only renew the lease.

        Raises PolicyVersionConflict while a version is decided on, and CannotSleep.
        """
        async with self._lock:
            self.require_usable()
            if not self._sleep_mode:
                raise CannotSleep("they were not started for it: GYMFLEET_ROLLOUT_SLEEP_MODE, placement.colocated")
            if self._staged is not None:
                raise PolicyVersionConflict(
                    f"version {self._staged.version} is staged; commit or refuse it first",
                    live_version=self._live,
                    staged_version=self._staged.version,
                )
            was_awake = not self._sleep.is_held
            self._sleep.renew(lease_s)  # before they sleep: if this call is cancelled half way, they wake by it
            if was_awake:
                await self._fall_asleep()
            return self.state()

    async def _fall_asleep(self) -> None:
        self._pause()
        try:
            await self._engines.sleep()
        except InferenceError as error:
            self._sleep.give_back()
            if isinstance(error, EngineDied):
                self._give_up(str(error))
            self._resume()
            raise CannotSleep(str(error)) from error
        log.info("policy.asleep", live_version=self._live)

    async def wake(self) -> PolicyState:
        """Let the engines go on with the live version. If they are awake, this changes nothing."""
        async with self._lock:
            if self._sleep.is_held:
                await self._wake_up()
            self.require_usable()
            return self.state()

    async def _sleep_is_over(self) -> None:
        async with self._lock:
            if self._sleep.is_over:  # it may have been renewed while this waited for the lock
                log.error("policy.overslept", live_version=self._live)
                await self._wake_up()

    async def _wake_up(self) -> None:
        try:
            with contextlib.suppress(InferenceError):  # then nothing can be generated, and every request is told so
                await self._wake_engines()
        finally:
            self._resume()

    async def _wake_engines(self) -> None:
        """Give the lease back and wake the engines, if they sleep. Raises InferenceError if one is lost."""
        if not self._sleep.is_held:
            return
        self._sleep.give_back()
        try:
            await asyncio.shield(self._engines.wake())
        except BaseException as error:
            if isinstance(error, InferenceError):
                self._give_up(f"an engine did not wake: {error}")
            self._resume()
            raise
        log.info("policy.awake", live_version=self._live)

    def _require_stageable(self, body: StageVersion) -> None:
        self.require_usable()
        if self._staged is not None:
            raise PolicyVersionConflict(
                f"version {self._staged.version} is staged; commit or refuse it first",
                live_version=self._live,
                staged_version=self._staged.version,
            )
        if body.version <= self._live:
            raise PolicyVersionConflict(
                f"version {body.version} is not newer than the live version {self._live}", live_version=self._live
            )
        if down := self._engines.down:
            raise PolicyUnavailable(f"{', '.join(down)} is down; a version must reach every engine")
        limit = self.max_model_len - body.probe_max_tokens
        if any(not 0 < len(prompt) <= limit for prompt in body.probe_prompts):
            raise PolicyUpdateFailed(
                f"every probe prompt must have 1 to {limit} tokens (max_model_len less probe_max_tokens)"
            )
        if any(not 0 <= token < self._vocab_size for prompt in body.probe_prompts for token in prompt):
            raise PolicyUpdateFailed(f"every token of a probe prompt must be in 0 to {self._vocab_size - 1}")

    def _require_loadable(self, path: Path) -> None:
        if self._max_lora_rank:
            require_adapter(tensor_shapes(self._base_path), path, self._max_lora_rank)
            return
        if is_adapter(path):
            raise WeightsRejected(
                f"{path} holds an adapter, and this service was started for whole weights: set "
                "GYMFLEET_ROLLOUT_MAX_LORA_RANK"
            )
        require_same_tensors(tensor_shapes(self._base_path), tensor_shapes(path), path)
        read_manifest(path)

    async def _load_and_probe(self, body: StageVersion, path: Path) -> _Staged:
        began = time.perf_counter()
        prompts = body.probe_prompts
        baseline: Answers | None = None
        try:
            await self._engines.interrupt()
            # Ask under the old weights first. Their blocks are then in the prefix cache, so a cache that
            # was not reset would show in the probe; and the answers let a refusal be verified.
            baseline = await self._engines.ask(prompts, body.probe_max_tokens, GREEDY, str(self._live))
            loading = time.perf_counter()
            await self._engines.load(path, body.on_gpu)
            update_s = time.perf_counter() - loading
            answers = await self._engines.ask(prompts, body.probe_max_tokens, Sampling(), str(body.version))
        except BaseException:
            await asyncio.shield(self._restore(prompts, baseline))
            raise
        metrics.UPDATE_SECONDS.observe(update_s)
        answer = StagedVersion(
            version=body.version,
            engines=tuple(map(_probe_answers, self._engines.names, answers)),
            pause_s=time.perf_counter() - began,
            update_s=update_s,
        )
        timer = asyncio.get_running_loop().call_later(body.decision_timeout_s, self._expire, body.version)
        return _Staged(body.version, path, body, prompts, baseline, timer, answer)

    def _expire(self, version: int) -> None:
        async def refuse() -> None:
            if self._staged is not None and self._staged.version == version:
                log.error("policy.undecided", version=version)
                await self.refuse(version)

        self._expiry = asyncio.get_running_loop().create_task(refuse())

    async def _restore(self, prompts: Prompts, baseline: Answers | None) -> None:
        """Restore the live version and check that it answers as before; otherwise mark the policy as unusable."""
        try:
            await self._engines.restore(self._live_path, prompts, baseline, str(self._live))
        except InferenceError as error:
            self._give_up(f"version {self._live} could not be restored: {error}")
        finally:
            self._resume()

    def _pause(self) -> None:
        self._open.clear()
        self._deadlines.pause()

    def _resume(self) -> None:
        self._open.set()
        self._deadlines.resume()

    async def _revive(self, engine: Engine) -> None:
        """Load the live weights on an engine that may have restarted. Raises InferenceError."""
        async with self._lock:
            if self._staged is not None:
                raise InferenceError("which weights it gets is being decided")
            if self._sleep.is_held:
                raise InferenceError("the engines sleep")
            await load(engine, self._live_path)

    def _give_up(self, reason: str) -> None:
        if self._broken is None:
            self._broken = reason
            self.failed.set()
            log.error("policy.broken", live_version=self._live, reason=reason)

    def _require_staged(self, version: int) -> _Staged:
        if self._staged is None or self._staged.version != version:
            raise PolicyVersionConflict(
                f"version {version} is not staged",
                live_version=self._live,
                staged_version=None if self._staged is None else self._staged.version,
            )
        return self._staged


def _probe_answers(engine: str, samples: list[Continuation]) -> EngineProbe:
    return EngineProbe(
        engine=engine,
        samples=tuple(
            ProbeSample(token_ids=tuple(sample.token_ids), logprobs=tuple(sample.logprobs)) for sample in samples
        ),
    )


def _resumed(sampling: Sampling, num_done: int) -> Sampling:
    """Shift the seed, so that a resumed reply does not draw the same random numbers as its first part."""
    if sampling.seed is None or num_done == 0:
        return sampling
    return sampling.model_copy(update={"seed": sampling.seed + num_done})
