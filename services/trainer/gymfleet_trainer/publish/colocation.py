"""Engines that share GPUs with the trainer: they sleep while the policy is updated, and wake before it is published."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

import structlog

from gymfleet_trainer.publish.policy_endpoint import NoAnswer, VersionRefused
from gymfleet_trainer.publish.rollout_replicas import RolloutReplicas

log = structlog.get_logger()

_LEASE_S: Final = 60.0
"""If this process dies, the engines sleep no longer than this."""
_RENEW_EVERY_S: Final = 15.0
_LAST_WORD_S: Final = 5.0


@contextlib.asynccontextmanager
async def engines_asleep(fleet: RolloutReplicas) -> AsyncIterator[None]:
    """Have the engines of all replicas sleep within the context, and wake at its end.

    Raises:
        VersionRefused: engines that cannot sleep, or that died of it.
        Stalled: no answer within `publish_timeout_s`.
    """
    await fleet.sleep(_LEASE_S)
    renewing = asyncio.create_task(_renew(fleet))
    try:
        yield
    except BaseException:
        # Without delay, because the run is about to end: an engine that misses this wakes when its lease expires.
        with contextlib.suppress(NoAnswer, VersionRefused):
            await fleet.wake_once(timeout_s=_LAST_WORD_S)
        raise
    finally:
        renewing.cancel()
        await asyncio.wait([renewing])
    await fleet.wake()


async def _renew(fleet: RolloutReplicas) -> None:
    while True:
        await asyncio.sleep(_RENEW_EVERY_S)
        try:
            await fleet.sleep_once(_LEASE_S, timeout_s=_RENEW_EVERY_S)
        except (NoAnswer, VersionRefused) as error:  # the update goes on, and waking tells what became of the engines
            log.warning("sleep.not_renewed", reason=str(error))
