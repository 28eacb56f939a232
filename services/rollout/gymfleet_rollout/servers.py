"""vLLM's servers by name: which exist, which join and which are gone."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog
from gymfleet_kit.discovery import Discovery

from gymfleet_rollout.inference.base import Engine, InferenceError
from gymfleet_rollout.policy import Policy
from gymfleet_rollout.settings import RolloutSettings

log = structlog.get_logger()

_LOOK_EVERY_S: Final = 2.0
_RETRY_S: Final = 30.0
"""How long a server that could not be used is left alone."""


class Servers:
    """The servers at `server_urls`, and one at each address of each name in `server_discover`.

    Args:
        make: creates the engine for a URL.
    """

    def __init__(self, settings: RolloutSettings, make: Callable[[str], Engine]) -> None:
        self._make = make
        self._discovery = Discovery(settings.server_discover, fixed=settings.server_urls)
        self._joining: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}

    async def first(self) -> list[Engine]:
        """Return the servers that exist at the start; waits for at least one."""
        while not (urls := await self._discovery.urls()):  # noqa: ASYNC110 - a name server has no event
            await asyncio.sleep(_LOOK_EVERY_S)
        return [self._make(url) for url in urls]

    async def watch(self, policy: Policy) -> None:
        """Keep the policy's engines in line with what the names resolve to."""
        try:
            while True:
                await asyncio.sleep(_LOOK_EVERY_S)
                if self._discovery.names:
                    await self.look(policy)
        finally:
            for task in self._joining.values():
                task.cancel()
            await asyncio.gather(*self._joining.values(), return_exceptions=True)

    async def look(self, policy: Policy) -> None:
        """Start to add new servers, and forget those that are down and no longer listed."""
        urls = await self._discovery.urls()
        for url in self._joining.keys() - set(urls):
            self._joining[url].cancel()
        await policy.forget_all_but(urls)
        for url in urls:
            due = time.monotonic() >= self._not_before.get(url, 0.0)
            if url not in policy.replica_names and url not in self._joining and due:
                task = self._joining[url] = asyncio.create_task(self._join(url, policy))
                task.add_done_callback(lambda _, url=url: self._joining.pop(url))  # type: ignore[misc]

    async def _join(self, url: str, policy: Policy) -> None:
        engine = self._make(url)
        try:
            await engine.start()
            while not await policy.admit(engine):  # noqa: ASYNC110 - a version is being decided on
                await asyncio.sleep(_LOOK_EVERY_S)
        except BaseException as error:
            await engine.close()
            if not isinstance(error, InferenceError):
                raise
            self._not_before[url] = time.monotonic() + _RETRY_S
            log.error("engine.not_admitted", engine=url, reason=str(error))
        else:
            log.info("engine.admitted", engine=url, version=policy.live_version)
