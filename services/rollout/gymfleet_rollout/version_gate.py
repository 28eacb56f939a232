"""Keep this process from taking work while it does not have the newest policy version.

A replica that was started or restarted in the middle of a run has the initial weights. The trainer
writes the live version to Redis, and sends that version to every replica that it finds.
"""

import asyncio
from typing import Final

import structlog
from gymfleet_contracts.rollout import LivePolicy
from gymfleet_contracts.streams import LIVE_POLICY
from gymfleet_kit.streams import OUTAGE, RedisClient
from pydantic import ValidationError

from gymfleet_rollout.policy import Policy

log = structlog.get_logger()

_LOOK_EVERY_S: Final = 1.0


class VersionGate:
    """Compare the version that is live here with the one that the trainer has announced as live."""

    def __init__(self, redis: RedisClient, policy: Policy) -> None:
        self._redis = redis
        self._policy = policy
        self._said: LivePolicy | None = None
        self._here = asyncio.Event()
        policy.on_commit(self._judge)

    @property
    def awaited(self) -> str:
        """Return a description of what this process waits for; empty when it may take work."""
        if self._said is None or self._policy.live_version >= self._said.version:
            return ""
        return f"waiting for version {self._said.version} of run {self._said.run_id} from the trainer"

    async def look(self) -> None:
        """Read which version the trainer has announced. While Redis is unreachable, the last value read stays valid."""
        try:
            value = await self._redis.get(LIVE_POLICY)
            said = None if value is None else LivePolicy.model_validate_json(value)
        except OUTAGE:
            return
        except ValidationError as error:
            log.error("policy.live_unreadable", reason=str(error))
            return
        if said != self._said:
            self._said = said
            if self.awaited:
                log.info("policy.awaited", live_version=self._policy.live_version, reason=self.awaited)
        self._judge()

    async def watch(self) -> None:
        """Keep reading the live version at a fixed interval."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            await self.look()

    async def here_within(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` for the newest version, and return whether it is here."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._here.wait()
        except TimeoutError:
            return False
        return True

    def _judge(self) -> None:
        if self.awaited:
            self._here.clear()
        else:
            self._here.set()
