"""The parts of the running service, and the order in which they start and stop."""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import structlog
from gymfleet_client.rest import GatewayClient
from gymfleet_client.stream import SessionStream
from gymfleet_kit.app import NotReady
from gymfleet_kit.chat.image_reader import ImageReader, SeesNothing
from gymfleet_kit.chat.tokens import ChatTokens
from gymfleet_kit.streams import connect, disconnect
from redis.exceptions import RedisError

from gymfleet_rollout.backend import InferenceBackend
from gymfleet_rollout.environments import Environments
from gymfleet_rollout.errors import PolicyUnavailable
from gymfleet_rollout.evaluation_batches import EvaluationBatches
from gymfleet_rollout.evaluator import Evaluator, RewardService
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.inference.base import EngineConfig
from gymfleet_rollout.jobs import Jobs
from gymfleet_rollout.model import ModelPlace, find_model, longest_context, vocab_size
from gymfleet_rollout.player import Player
from gymfleet_rollout.policy import Policy
from gymfleet_rollout.replicas import Replicas
from gymfleet_rollout.settings import RolloutSettings
from gymfleet_rollout.version_gate import VersionGate
from gymfleet_rollout.worker import Output, Requests, RolloutWorker

log = structlog.get_logger()

_DRAIN_TIMEOUT_S: Final = 2.0
_PING_TIMEOUT_S: Final = 2.0
_MODEL_POLL_S: Final = 0.5


class RolloutService:
    """Everything behind the routes. The engine starts in the background; until it is up, `policy` and `jobs` raise.

    Args:
        on_failure: called once when nothing can be played any more; only a restart of the process helps then.
    """

    def __init__(
        self,
        settings: RolloutSettings,
        model: ModelPlace,
        backend: InferenceBackend[Any],
        on_failure: Callable[[], None],
    ) -> None:
        self._on_failure = on_failure
        self._settings = settings
        self._backend = backend
        self._model = model
        self._policy: Policy | None = None
        self._gate: VersionGate | None = None
        self._jobs: Jobs | None = None
        self._reason = "the engine is starting"

    @property
    def policy(self) -> Policy:
        """Return the policy. Raises PolicyUnavailable until the engine is up."""
        if self._policy is None:
            raise PolicyUnavailable(self._reason)
        return self._policy

    @property
    def jobs(self) -> Jobs:
        """Return the jobs. Raises PolicyUnavailable until the engine is up."""
        if self._jobs is None:
            raise PolicyUnavailable(self._reason)
        return self._jobs

    def require_newest(self) -> None:
        """Raise PolicyUnavailable while this process waits for the newest version."""
        if self._gate is None:
            raise PolicyUnavailable(self._reason)
        if self._gate.awaited:
            raise PolicyUnavailable(self._gate.awaited)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listen at once while the engine starts in the background, and stop everything at the end."""
        self._redis = connect(str(self._settings.redis_url))
        key = self._settings.gateway_api_key
        gateway_url, api_key = str(self._settings.gateway_url), None if key is None else key.get_secret_value()
        stop = asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(disconnect, self._redis)
            gateway = await stack.enter_async_context(GatewayClient(gateway_url, api_key=api_key))
            sessions = SessionStream(gateway_url, api_key=api_key, connections=self._settings.gateway_connections)
            stack.push_async_callback(sessions.aclose)
            evaluator: EvaluationBatches | None = None
            if (url := self._settings.reward_url) is not None:
                reward_service = RewardService(str(url), self._settings.reward_api_key)
                stack.push_async_callback(reward_service.aclose)
                evaluator = EvaluationBatches(reward_service)
                stack.push_async_callback(evaluator.aclose)
            main = asyncio.create_task(self._main(gateway, sessions, evaluator, stop))
            try:
                yield
            finally:
                stop.set()
                # After the timeout the worker is cancelled and gives its messages back.
                with contextlib.suppress(TimeoutError, asyncio.CancelledError):
                    await asyncio.wait_for(main, _DRAIN_TIMEOUT_S)
                if self._jobs is not None:
                    await self._jobs.close()
                if self._policy is not None:
                    await self._policy.close()

    async def check_ready(self) -> None:
        """Raise NotReady unless Redis answers, the newest version is live here, and the engine generates a token."""
        if self._policy is None or self._gate is None:
            raise NotReady(self._reason)
        if self._gate.awaited:
            raise NotReady(self._gate.awaited)
        await self._policy.check_ready()
        try:
            async with asyncio.timeout(_PING_TIMEOUT_S):
                await self._redis.ping()
        except (RedisError, TimeoutError):
            raise NotReady("Redis does not answer; see GYMFLEET_ROLLOUT_REDIS_URL") from None

    async def _main(
        self, gateway: GatewayClient, sessions: SessionStream, evaluator: Evaluator | None, stop: asyncio.Event
    ) -> None:
        try:
            await self._model_built()
            policy, chat, reader = await self._start_policy()
            output = Output(self._redis, max_len=self._settings.max_raw_backlog)
            player = Player(
                policy, chat, sessions, Environments(gateway), Formats(self._settings.plugins),
                max_episodes=self._settings.max_episodes, plugins=self._settings.plugins, evaluator=evaluator,
                reader=reader,
            )  # fmt: skip
            gate = VersionGate(self._redis, policy)
            await gate.look()
            self._policy, self._gate = policy, gate
            self._jobs = Jobs(player, output, max_trajectories=self._settings.max_kept_trajectories)
            requests = Requests(self._redis, self._settings, gate)
            await self._work(policy, gate, RolloutWorker(self._settings, requests, player, output), stop)
            if policy.failed.is_set():
                self._on_failure()
        except Exception as error:
            self._reason = f"the service failed: {type(error).__name__}: {error}"
            self._policy, self._jobs = None, None
            log.error("service.failed", exc_info=error)
            self._on_failure()

    async def _model_built(self) -> None:
        while missing := self._model.missing:
            self._reason = missing
            await asyncio.sleep(_MODEL_POLL_S)
        self._reason = "the engine is starting"

    async def _start_policy(self) -> tuple[Policy, ChatTokens, ImageReader | str]:
        began = time.perf_counter()
        settings, model_path = self._settings, find_model(str(self._model.path))
        chat = await asyncio.to_thread(ChatTokens.load, model_path)
        reader = await asyncio.to_thread(_reader, model_path, self._backend)
        self._replicas = Replicas(self._backend, engine_config(settings, model_path))
        policy = Policy(
            await self._replicas.first(),
            model=settings.model,
            base_path=model_path,
            backend=settings.backend,
            dtype=settings.dtype,
            vocab_size=vocab_size(model_path),
            max_lora_rank=settings.max_lora_rank,
            sleep_mode=settings.sleep_mode,
            sees_images=isinstance(reader, ImageReader),
            received_dir=settings.received_dir,
        )
        await policy.start()
        # torch and vLLM leave about a million objects that live as long as the process. If every
        # full collection went through them, it would stop the event loop for a second.
        gc.freeze()
        seconds, unseeing = round(time.perf_counter() - began, 2), reader if isinstance(reader, str) else ""
        log.info("engine.started", backend=settings.backend, seconds=seconds, sees_no_images_because=unseeing)
        return policy, chat, reader

    async def _work(self, policy: Policy, gate: VersionGate, worker: RolloutWorker, stop: asyncio.Event) -> None:
        """Take groups until stopped. If the policy fails they are given back, so that another process can play them."""
        working = asyncio.create_task(worker.run(stop))
        failed = asyncio.create_task(policy.failed.wait())
        watching = [asyncio.create_task(gate.watch()), asyncio.create_task(self._replicas.watch(policy))]
        try:
            await asyncio.wait([working, failed, *watching], return_when=asyncio.FIRST_COMPLETED)
            for one in (working, *watching):
                if one.done():
                    await one
        finally:
            for task in (working, failed, *watching):
                task.cancel()
            await asyncio.gather(working, failed, *watching, return_exceptions=True)


def _reader(model: Path, backend: InferenceBackend[Any]) -> ImageReader | str:
    """Return the reader of images for a model, or why its policy sees none."""
    if not backend.facts.images:
        return "engines of this backend are given text alone: take embedded"
    try:
        return ImageReader(model)
    except SeesNothing as error:
        return str(error)


def engine_config(settings: RolloutSettings, model_path: Path) -> EngineConfig:
    """Return the configuration of an engine; its context fits the model unless an operator sets another."""
    given = settings.model_dump(include=set(EngineConfig.model_fields))
    if "max_model_len" not in settings.model_fields_set:
        given["max_model_len"] = min(settings.max_model_len, longest_context(model_path) or settings.max_model_len)
    return EngineConfig.model_validate({**given, "model": model_path})
