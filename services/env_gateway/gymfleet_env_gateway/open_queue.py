"""Queue of the opens of one environment that wait for a slot, and the rule for whose turn it is.

The next turn goes to the tenant with the smallest `(held + reserved + n/2) / weight`, where n
is the number of slots that it asks for next. The half is Webster's rounding: where the slots
cannot be divided by the weights exactly, no tenant is further than half a slot from its
share. Ties go to the tenant that has waited longest.
"""

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING, Final

from gymfleet_env_gateway.errors import QueueFull, QuotaExceeded, TooMany
from gymfleet_env_gateway.metrics import QUEUE_LENGTH, QUEUE_WAIT_SECONDS
from gymfleet_env_gateway.tenants import Tenant

if TYPE_CHECKING:
    from gymfleet_env_gateway.admission import Capacity

_NOTHING_ENDS_S: Final = 10.0
"""Retry advice while no slot has been given recently, so that no rate is known."""
_LONGEST_ADVICE_S: Final = 60.0
_LEAST_LENGTH: Final = 1024
_LENGTH_PER_SLOT: Final = 2


class Ticket:
    """One open: first its place in the queue, then the reservation of its slots."""

    __slots__ = ("_queue", "admitted", "deadline", "entered_at", "epoch", "outcome", "slots", "tenant")

    def __init__(self, queue: "OpenQueue", tenant: Tenant, slots: int, timeout_s: float) -> None:
        self._queue = queue
        self.tenant = tenant
        self.slots = slots
        self.admitted = False
        self.epoch = 0
        """The ticket is skipped until the queue has reached this epoch."""
        self.entered_at = asyncio.get_running_loop().time()
        self.deadline = self.entered_at + timeout_s
        self.outcome: asyncio.Future[TooMany | None] = asyncio.get_running_loop().create_future()

    async def refused(self, *, everywhere: bool = True) -> None:
        """Wait at the head of the queue until there is room, after every replica that could take the open was full.

        `everywhere` says that no other open of this environment would succeed either, so that
        none is tried until then; for a fork, which only one replica can take, it is False.
        Raises `QueueFull` when the time is up.
        """
        await self._queue.back(self, everywhere=everywhere)

    def leave(self) -> None:
        """Release the reservation: the session is open and counts as held, or the open failed."""
        self._queue.leave(self)


class OpenQueue:
    """The queue of one environment.

    Args:
        max_length: opens that may wait; None derives the number from the environment's capacity, so that
            all clients of a large fleet may come at once and those of a small one do not wait in vain.
    """

    def __init__(self, env: str, capacity: "Capacity", max_length: int | None) -> None:
        self.length = 0
        self._env = env
        self._capacity = capacity
        self._max_length = max_length
        self._shown_length = QUEUE_LENGTH.labels(env)
        self._shown_wait = QUEUE_WAIT_SECONDS.labels(env)
        self._lines: dict[str, deque[Ticket]] = {}
        self._reserved: dict[str, int] = {}
        self._under_way = 0
        self._epoch = 0
        self._stalled = False
        self._given: deque[float] = deque(maxlen=64)  # enough to tell a rate

    async def enter(self, tenant: Tenant, slots: int, timeout_s: float) -> Ticket:
        """Wait for the tenant's turn; return a ticket whose slots are reserved. Raises `TooMany`."""
        self._make_place(tenant)
        ticket = Ticket(self, tenant, slots, timeout_s)
        self._lines.setdefault(tenant.name, deque()).append(ticket)
        self._resized(1)
        self._serve()
        await self._turn(ticket)
        return ticket

    async def back(self, ticket: Ticket, *, everywhere: bool) -> None:
        """Put an admitted ticket back into the queue, at the position that its arrival time gives it."""
        self._release(ticket)
        ticket.epoch = self._epoch + 1
        ticket.outcome = asyncio.get_running_loop().create_future()
        line = self._lines.setdefault(ticket.tenant.name, deque())
        place = next((i for i, other in enumerate(line) if other.entered_at > ticket.entered_at), len(line))
        line.insert(place, ticket)
        self._resized(1)
        if everywhere:
            self._stalled = True
        else:
            self._serve()
        await self._turn(ticket)

    def leave(self, ticket: Ticket) -> None:
        """End a reservation; do nothing when there is none."""
        if ticket.admitted:
            self._release(ticket)
            self._serve()

    def freed(self) -> None:
        """Serve the queue again: there may be room now, also for tickets that were refused."""
        self._epoch += 1
        self._stalled = False
        self._serve()

    def wanted_by(self, tenant: str) -> int:
        """Return the number of slots that a tenant has reserved or waits for."""
        return self._reserved.get(tenant, 0) + sum(ticket.slots for ticket in self._lines.get(tenant, ()))

    async def _turn(self, ticket: Ticket) -> None:
        timer = asyncio.get_running_loop().call_at(ticket.deadline, self._expire, ticket)
        try:
            refusal = await ticket.outcome
        except asyncio.CancelledError:
            if ticket.admitted:
                self.leave(ticket)
            elif ticket in self._lines.get(ticket.tenant.name, ()):
                self._remove(ticket)
                self._serve()  # it may have blocked tickets behind it
            raise
        finally:
            timer.cancel()
        if refusal is not None:
            raise refusal

    def _serve(self) -> None:
        """Admit tickets in turn while there is a slot for them."""
        if self._stalled or not self._lines:
            return
        free = self._capacity.free_slots(self._env)
        room = math.inf if free is None else free - sum(self._reserved.values())
        max_opens = self._capacity.max_opens(self._env)
        if room <= 0 or self._under_way >= max_opens:
            return
        held = self._capacity.held(self._env)
        total = room + sum(self._reserved.values()) + sum(held.values())
        while room > 0 and self._under_way < max_opens and (ticket := self._next(held, room, total)) is not None:
            self._remove(ticket)
            if self._over_quota(ticket):
                continue
            room -= ticket.slots
            self._admit(ticket)

    def _next(self, held: dict[str, int], room: float, total: float) -> Ticket | None:
        def turn(ticket: Ticket) -> tuple[float, float]:
            name = ticket.tenant.name
            slots = held.get(name, 0) + self._reserved.get(name, 0) + ticket.slots / 2
            return slots / ticket.tenant.weight, ticket.entered_at

        first = (self._first(line, room, total) for line in self._lines.values())
        return min((ticket for ticket in first if ticket is not None), key=turn, default=None)

    def _first(self, line: deque[Ticket], room: float, total: float) -> Ticket | None:
        """Return a tenant's next ticket. One too large for now blocks the tenant's others, or it would never fit."""
        for ticket in line:
            if ticket.epoch > self._epoch or ticket.slots > total:
                continue
            return ticket if ticket.slots <= room else None
        return None

    def _admit(self, ticket: Ticket) -> None:
        ticket.admitted = True
        self._under_way += 1
        name = ticket.tenant.name
        self._reserved[name] = self._reserved.get(name, 0) + ticket.slots
        now = asyncio.get_running_loop().time()
        self._given.append(now)
        self._shown_wait.observe(now - ticket.entered_at)
        ticket.outcome.set_result(None)

    def _release(self, ticket: Ticket) -> None:
        ticket.admitted = False
        self._under_way -= 1
        name = ticket.tenant.name
        self._reserved[name] -= ticket.slots
        if not self._reserved[name]:
            del self._reserved[name]

    def _remove(self, ticket: Ticket) -> None:
        line = self._lines[ticket.tenant.name]
        line.remove(ticket)
        if not line:
            del self._lines[ticket.tenant.name]
        self._resized(-1)

    def _resized(self, change: int) -> None:
        self.length += change
        self._shown_length.set(self.length)

    def _expire(self, ticket: Ticket) -> None:
        if ticket.outcome.done():
            return
        waited_s = ticket.deadline - ticket.entered_at
        detail = f"no slot of {self._env} came free within {waited_s:.3g} s; {self.length} opens wait"
        self._turn_away(ticket, QueueFull(detail, wait_s=self._advice_s(ticket.tenant)))
        self._serve()

    def _turn_away(self, ticket: Ticket, refusal: TooMany) -> None:
        self._remove(ticket)
        ticket.outcome.set_result(refusal)

    def _make_place(self, tenant: Tenant) -> None:
        """Make room in a full queue by dropping the newest ticket of the tenant that has most for its weight.

        Raises `QueueFull` when that is the tenant which asks.
        """
        max_length = self._longest()
        if self.length < max_length:
            return
        crowd = max(self._lines.values(), key=lambda line: len(line) / line[0].tenant.weight)
        detail = f"the queue of {self._env} is full: {max_length} opens may wait"
        own = (len(self._lines.get(tenant.name, ())) + 1) / tenant.weight
        if own >= len(crowd) / crowd[0].tenant.weight:
            raise QueueFull(detail, wait_s=self._advice_s(tenant))
        self._turn_away(crowd[-1], QueueFull(detail, wait_s=self._advice_s(crowd[-1].tenant)))

    def _longest(self) -> int:
        """Return the number of opens that may wait now."""
        if self._max_length is not None:
            return self._max_length
        return max(_LEAST_LENGTH, _LENGTH_PER_SLOT * self._capacity.max_sessions(self._env))

    def _over_quota(self, ticket: Ticket) -> bool:
        """Refuse a ticket that is over quota by now: other gateways may have opened the tenant's sessions meanwhile."""
        tenant = ticket.tenant
        if tenant.max_sessions is None:
            return False
        on_their_way = self._reserved.get(tenant.name, 0)
        if self._capacity.held_by(tenant.name) + on_their_way + ticket.slots <= tenant.max_sessions:
            return False
        state = f"{tenant.max_sessions} sessions open or on their way"
        ticket.outcome.set_result(QuotaExceeded.of(tenant.name, tenant.max_sessions, state))
        return True

    def _advice_s(self, tenant: Tenant) -> float:
        """Estimate when the tenant's waiting opens will be served, at the rate at which slots were given lately."""
        now = asyncio.get_running_loop().time()
        while self._given and self._given[0] < now - _LONGEST_ADVICE_S:
            self._given.popleft()
        if not self._given or now == self._given[0]:
            return _NOTHING_ENDS_S
        rate = len(self._given) / (now - self._given[0])
        weights = {name: line[0].tenant.weight for name, line in self._lines.items()} | {tenant.name: tenant.weight}
        share = tenant.weight / sum(weights.values())
        ahead = len(self._lines.get(tenant.name, ())) + 1
        return min(max(ahead / (rate * share), 1.0), _LONGEST_ADVICE_S)
