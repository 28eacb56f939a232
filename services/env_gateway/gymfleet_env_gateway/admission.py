"""Decide which opens are admitted now, which wait, and which are rejected.

An open is admitted when the environment has a free slot, its replicas have few opens under
way, and it is its tenant's turn.
Turns go to the tenant that holds least for its weight, so that the slots of tenants
that all want more settle in proportion to their weights (max-min fairness), however long
their episodes last; within a tenant they go in the order of arrival. An open that finds no
slot waits in a bounded queue. Only calls that were not executed get a 429: an open that was
admitted is carried to its end.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from gymfleet_kit.problems import ServiceError

from gymfleet_env_gateway.errors import Forbidden, QuotaExceeded, RateLimited, TooMany
from gymfleet_env_gateway.metrics import REJECTIONS
from gymfleet_env_gateway.open_queue import OpenQueue, Ticket
from gymfleet_env_gateway.settings import GatewaySettings
from gymfleet_env_gateway.tenants import Tenant

__all__ = ["Admission", "Capacity", "Ticket"]

E = TypeVar("E", bound=ServiceError)


class Capacity(Protocol):
    """The fleet's capacity figures. They exclude opens in flight, which are reserved here until they count as held."""

    def free_slots(self, env: str) -> int | None:
        """Return the number of sessions of `env` that can still be opened; None when it is not known."""

    def max_sessions(self, env: str) -> int:
        """Return the number of sessions that the replicas of `env` can hold, open ones included."""

    def max_opens(self, env: str) -> int:
        """Return the number of opens of `env` that may be under way at once."""

    def held(self, env: str) -> dict[str, int]:
        """Return the number of open sessions of `env` by tenant."""

    def held_by(self, tenant: str) -> int:
        """Return the number of a tenant's open sessions, over all environments."""


class Admission:
    """Admission control of one gateway process."""

    def __init__(self, capacity: Capacity, settings: GatewaySettings) -> None:
        self._capacity = capacity
        self._max_queue = settings.max_queue
        self._queue_timeout_s = settings.queue_timeout_s
        self._queues: dict[str, OpenQueue] = {}
        self._step_buckets: dict[str, _Bucket] = {}
        self._open_buckets: dict[str, _Bucket] = {}
        self._gateways = 1

    def set_gateways(self, number: int) -> None:
        """Set how many gateways serve the same tenants: each grants its share of their rates."""
        self._gateways = max(1, number)

    def step(self, tenant: Tenant, env: str = "") -> None:
        """Count a step. Raises `RateLimited`."""
        rate = tenant.steps_per_s
        if rate is not None:
            self._take(self._step_buckets, tenant, env, rate, "step")

    @asynccontextmanager
    async def opening(self, tenant: Tenant, env: str, timeout_s: float, slots: int = 1) -> AsyncIterator[Ticket]:
        """Admit an open, or a fork into `slots` children, once it is its turn.

        `env` is an environment of the fleet. The slots are reserved while the block runs.
        Raises `Forbidden`, `RateLimited`, `QuotaExceeded`, and `QueueFull` when there is no
        place to wait, or no slot within `timeout_s` and the queue's own limit.
        """
        if not tenant.may_play(env):
            raise self._rejected(tenant, env, Forbidden(f"tenant {tenant.name} may not play {env}"))
        if tenant.opens_per_s is not None:
            self._take(self._open_buckets, tenant, env, tenant.opens_per_s, "open")
        self._check_quota(tenant, env, slots)
        queue = self._queue(env)
        ticket = None
        try:
            ticket = await queue.enter(tenant, slots, min(timeout_s, self._queue_timeout_s))
            yield ticket
        except TooMany as error:
            self._rejected(tenant, env, error)
            raise
        finally:
            if ticket is not None:
                ticket.leave()

    def freed(self, env: str | None = None) -> None:
        """Serve the queue of `env` again because there may be new room; None means every queue."""
        queues = self._queues.values() if env is None else filter(None, [self._queues.get(env)])
        for queue in list(queues):
            queue.freed()

    def waiting(self, env: str) -> int:
        """Return the number of opens that wait for a slot."""
        return self._queues[env].length if env in self._queues else 0

    def _queue(self, env: str) -> OpenQueue:
        queue = self._queues.get(env)
        if queue is None:
            queue = self._queues[env] = OpenQueue(env, self._capacity, self._max_queue)
        return queue

    def _check_quota(self, tenant: Tenant, env: str, slots: int) -> None:
        """Check the quota, counting waiting opens too: a tenant may not queue for more than it may hold."""
        if tenant.max_sessions is None:
            return
        wanted = sum(queue.wanted_by(tenant.name) for queue in self._queues.values())
        held = self._capacity.held_by(tenant.name)
        if held + wanted + slots > tenant.max_sessions:
            state = f"{held} sessions open and {wanted} on their way"
            raise self._rejected(tenant, env, QuotaExceeded.of(tenant.name, tenant.max_sessions, state))

    def _rejected(self, tenant: Tenant, env: str, error: E) -> E:
        REJECTIONS.labels(env, tenant.name, error.type.rpartition("/")[2]).inc()
        return error

    def _take(self, buckets: "dict[str, _Bucket]", tenant: Tenant, env: str, rate: float, what: str) -> None:
        bucket = buckets.get(tenant.name)
        if bucket is None:
            bucket = buckets[tenant.name] = _Bucket()
        wait_s = bucket.take(rate / self._gateways)
        if wait_s > 0:
            detail = f"tenant {tenant.name} may {what} {rate:g} times per second; wait {wait_s:.3g} s"
            raise self._rejected(tenant, env, RateLimited(detail, wait_s=wait_s, limit_per_s=rate))


class _Bucket:
    """A token bucket for one second's worth of tokens, at least one; stored as the time at which it is full."""

    __slots__ = ("_full_at",)

    def __init__(self) -> None:
        self._full_at = 0.0

    def take(self, rate: float) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        now = time.monotonic()
        full_at = self._full_at
        full_at = max(full_at, now)
        interval_s = 1.0 / rate
        wait_s = full_at - now + interval_s - (max(interval_s, 1.0))
        # Rounding errors add up over many intervals: a nanosecond is no reason to wait.
        if wait_s > 1e-9:
            return wait_s
        self._full_at = full_at + interval_s
        return 0.0
