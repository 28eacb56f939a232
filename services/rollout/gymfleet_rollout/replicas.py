"""The engines of a backend by name: which exist, which join and which are gone."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

import structlog

from gymfleet_rollout.backend import InferenceBackend
from gymfleet_rollout.engine_pool import start
from gymfleet_rollout.inference.base import Engine, EngineConfig, InferenceError
from gymfleet_rollout.policy import Policy

log = structlog.get_logger()

_LOOK_EVERY_S: Final = 2.0
_RETRY_S: Final = 30.0
"""How long an engine that could not be used is left alone."""


class Replicas:
    """The engines that a backend makes, one for each name that it gives."""

    def __init__(self, backend: InferenceBackend[Any], config: EngineConfig) -> None:
        self._backend = backend
        self._config = config
        self._joining: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}

    async def first(self) -> list[Engine]:
        """Return the engines that exist at the start; wait for at least one."""
        while not (names := await self._names()):  # noqa: ASYNC110 - a name server has no event
            await asyncio.sleep(_LOOK_EVERY_S)
        return [self._make(name) for name in names]

    async def watch(self, policy: Policy) -> None:
        """Keep the policy's engines in line with what the backend names."""
        try:
            while True:
                await asyncio.sleep(_LOOK_EVERY_S)
                await self.look(policy)
        finally:
            for task in self._joining.values():
                task.cancel()
            await asyncio.gather(*self._joining.values(), return_exceptions=True)

    async def look(self, policy: Policy) -> None:
        """Start to add new engines, and forget those that are down and no longer named."""
        names = await self._names()
        for name in self._joining.keys() - set(names):
            self._joining[name].cancel()
        await policy.forget_all_but(names)
        for name in names:
            due = time.monotonic() >= self._not_before.get(name, 0.0)
            if name not in policy.replica_names and name not in self._joining and due:
                task = self._joining[name] = asyncio.create_task(self._join(name, policy))
                task.add_done_callback(lambda _, name=name: self._joining.pop(name))  # type: ignore[misc]

    async def _names(self) -> Sequence[str]:
        return list(dict.fromkeys(await self._backend.replicas()))

    def _make(self, name: str) -> Engine:
        engine = self._backend.engine(name, self._config)
        engine.name = name
        return engine

    async def _join(self, name: str, policy: Policy) -> None:
        engine = self._make(name)
        try:
            await start(engine)
            while not await policy.admit(engine):  # noqa: ASYNC110 - a version is being decided on
                await asyncio.sleep(_LOOK_EVERY_S)
        except BaseException as error:
            await engine.close()
            if not isinstance(error, InferenceError):
                raise
            self._not_before[name] = time.monotonic() + _RETRY_S
            log.error("engine.not_admitted", engine=name, reason=str(error))
        else:
            log.info("engine.admitted", engine=name, version=policy.live_version)
