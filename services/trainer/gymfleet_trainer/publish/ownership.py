"""The run that owns the rollout replicas, and the newest version: kept in Redis for other runs and new replicas."""

import asyncio
import contextlib
from typing import Any, Final

import structlog
from gymfleet_contracts.rollout import LivePolicy
from gymfleet_contracts.streams import LAST_POLICY_VERSION, LIVE_POLICY, LIVE_POLICY_TTL_S, POLICY_OWNER
from gymfleet_kit.streams import OUTAGE, Patience, RedisClient
from redis.asyncio.lock import Lock
from redis.exceptions import LockError, LockNotOwnedError

from gymfleet_trainer.errors import ReplicasTaken

log = structlog.get_logger()

_PATIENCE_S: Final = 30.0
_NEVER_LOWER: Final = """
local last = tonumber(redis.call('GET', KEYS[1]) or '0')
if tonumber(ARGV[1]) > last then redis.call('SET', KEYS[1], ARGV[1]) end
"""


class PolicyOwnership:
    """Announce which run owns the replicas and which version is live, repeatedly while this process lives."""

    def __init__(self, redis: RedisClient, run_id: str) -> None:
        self._redis = redis
        self._run_id = run_id
        # Its token is the run, not the process: a resumed run owns what its last process owned.
        self._owned = Lock(redis, POLICY_OWNER, timeout=LIVE_POLICY_TTL_S, blocking=False, thread_local=False)
        self._value = ""
        self._extending: asyncio.Task[None] | None = None
        self._patience = Patience(key=LIVE_POLICY)

    async def claim(self) -> str:
        """Claim the replicas for this run. If another run owns them, return its id and change nothing.

        A run that was killed owns them until its keys expire.
        """
        owner = await self._patience.call(self._claim, timeout_s=_PATIENCE_S)
        if not owner and (self._extending is None or self._extending.done()):  # done: another run had them for a while
            self._extending = asyncio.create_task(self._extend())
        return owner

    async def highest(self) -> int:
        """Return the highest version that any run ever announced here, or 0 if there was none."""
        value = await self._patience.call(lambda: self._redis.get(LAST_POLICY_VERSION), timeout_s=_PATIENCE_S)
        return int(value or 0)

    async def take(self, version: int) -> None:
        """Reserve a version number, so that no other run uses it from now on."""
        await self._patience.call(
            lambda: self._redis.eval(_NEVER_LOWER, 1, LAST_POLICY_VERSION, version), timeout_s=_PATIENCE_S
        )

    async def say(self, version: int) -> None:
        """Announce a version: replicas with an older version take no work from now on. Raises ReplicasTaken."""
        if owner := await self.claim():
            raise ReplicasTaken(
                f"run {owner} took the rollout replicas while this one did not reach Redis; the same command resumes "
                "when that run is over"
            )
        self._value = LivePolicy(run_id=self._run_id, version=version).model_dump_json()
        await self._patience.call(self._set, timeout_s=_PATIENCE_S)

    async def close(self) -> None:
        """Stop announcing the version, and release the replicas to any run.

        Replicas that wait for a version do so until the key expires, as another process may continue the run.
        """
        if self._extending is not None:
            self._extending.cancel()
            await asyncio.wait([self._extending])
            self._extending = None
            with contextlib.suppress(LockError, *OUTAGE):  # another run has them; without Redis the key expires
                await self._owned.release()

    async def withdraw(self) -> None:
        """Withdraw the version at the end of the run, so that no replica waits for it."""
        await self.close()
        with contextlib.suppress(*OUTAGE):  # without Redis the key expires
            if await self._redis.get(LIVE_POLICY) == self._value.encode():
                await self._redis.delete(LIVE_POLICY)

    async def _claim(self) -> str:
        """Take or keep the lock; return the run that has it, if it is another run."""
        self._owned.local.token = self._run_id.encode()
        with contextlib.suppress(LockNotOwnedError):
            await self._owned.reacquire()
            return ""
        if await self._owned.acquire(token=self._run_id):
            return ""
        owner: Any = await self._redis.get(POLICY_OWNER)
        return await self._claim() if owner is None else owner.decode()

    async def _set(self) -> None:
        await self._redis.set(LIVE_POLICY, self._value, ex=LIVE_POLICY_TTL_S)

    async def _extend(self) -> None:
        while True:
            await asyncio.sleep(LIVE_POLICY_TTL_S / 3)
            try:
                if owner := await self._claim():
                    log.error("policy.fleet_taken", owner=owner)
                    return
                if self._value:
                    await self._set()
            except OUTAGE as error:
                log.warning("policy.not_announced", error=str(error))
