"""The reward service's app: the stream worker and the HTTP routes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import structlog
from fastapi import FastAPI
from gymfleet_kit.app import NotReady, create_app
from gymfleet_kit.sealing import Opener
from gymfleet_kit.streams import RedisWatch, connect, disconnect
from redis.exceptions import RedisError

from gymfleet_reward.composer import Scorer
from gymfleet_reward.judging.judge import Judges
from gymfleet_reward.routes import scores
from gymfleet_reward.settings import RewardSettings
from gymfleet_reward.worker import RewardWorker

if TYPE_CHECKING:
    from gymfleet_reward.models.reward_models import RewardModels

log = structlog.get_logger()
DRAIN_TIMEOUT_S: Final = 5.0
PING_TIMEOUT_S: Final = 2.0
_LOADING_GLANCE_S: Final = 0.1


def build_app(settings: RewardSettings) -> FastAPI:
    """Return the app; its worker runs from start-up to shutdown. Raises `KeyUnreadable` and `UnusableModel`."""
    redis = connect(str(settings.redis_url))
    opener = None if settings.seal_key is None else Opener(settings.seal_key.get_secret_value())
    judges = Judges(settings.judges, str(settings.redis_url))
    models = _reward_models(settings)
    scorer = Scorer(
        settings.plugins, timeout_s=settings.component_timeout_s, opener=opener, judges=judges, models=models
    )
    threads = ThreadPoolExecutor(settings.concurrency, "score")  # components may wait and try again
    consumer = RewardWorker(redis, settings, scorer, threads)
    working: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if models is not None:
            models.start()
        stop = asyncio.Event()
        worker = asyncio.create_task(_work(consumer, stop, models))
        working.append(worker)
        log.info("service.started", consumer=settings.consumer)
        try:
            yield
        finally:
            stop.set()
            # After the timeout the worker is cancelled and gives its messages back.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(worker, DRAIN_TIMEOUT_S)
            scorer.close()
            if models is not None:
                models.close()
            threads.shutdown(wait=False, cancel_futures=True)
            await disconnect(redis)
            log.info("service.stopped")

    async def ready() -> None:
        if not working or working[-1].done():
            raise NotReady("the stream worker does not run")
        if models is not None and (lack := models.lack()) is not None:
            raise NotReady(lack)
        try:
            async with asyncio.timeout(PING_TIMEOUT_S):
                await redis.ping()
        except (RedisError, TimeoutError):
            raise NotReady("Redis does not answer; see GYMFLEET_REWARD_REDIS_URL") from None

    app = create_app(
        "gymfleet reward",
        access=settings.rules(),
        lifespan=lifespan,
        ready=ready,
        max_body_bytes=settings.max_body_bytes,
        measure=RedisWatch(redis, consumer.streams).measure,
    )
    app.state.scorer = scorer
    app.include_router(scores.router)
    return app


def _reward_models(settings: RewardSettings) -> "RewardModels | None":
    if not settings.models:
        return None
    from gymfleet_reward.models.reward_models import RewardModels  # noqa: PLC0415 - loads tokenizers

    return RewardModels(settings.models)


async def _work(worker: RewardWorker, stop: asyncio.Event, models: "RewardModels | None") -> None:
    try:
        # Loading may take longer than an answer may. (Threads do the loading: there is no event to wait for.)
        while models is not None and models.loading() and not stop.is_set():  # noqa: ASYNC110
            await asyncio.sleep(_LOADING_GLANCE_S)
        await worker.run(stop)
    except Exception:  # a bug: the service logs it and is no longer ready
        log.exception("worker.failed")
