"""Admission by itself: turns, bounds, quotas and rates, worked out by hand."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from gymfleet_env_gateway import admission as module
from gymfleet_env_gateway.admission import Admission, Ticket
from gymfleet_env_gateway.errors import Forbidden, QueueFull, QuotaExceeded, RateLimited
from gymfleet_env_gateway.settings import GatewaySettings
from gymfleet_env_gateway.tenants import Tenant
from prometheus_client import REGISTRY
from prometheus_client.samples import Sample

from tests.fixtures.standing_clock import StandingClock, stop_time

LONG_S = 60.0


@dataclass
class Slots:
    """A fleet of one environment with a number of slots; `stale` hides what was taken."""

    total: int | None
    sessions: Counter[str] = field(default_factory=Counter)
    elsewhere: Counter[str] = field(default_factory=Counter)
    stale: bool = False
    opens: int = 1000

    def max_opens(self, env: str) -> int:
        return self.opens

    def max_sessions(self, env: str) -> int:
        return self.total or 0

    def free_slots(self, env: str) -> int | None:
        taken = 0 if self.stale else self.sessions.total()
        return None if self.total is None else self.total - taken

    def held(self, env: str) -> dict[str, int]:
        return dict(self.sessions)

    def held_by(self, tenant: str) -> int:
        return self.sessions[tenant] + self.elsewhere[tenant]


def samples() -> Iterator[Sample]:
    return (sample for family in REGISTRY.collect() for sample in family.samples)


class Gate:
    """An admission, and the sessions that were opened through it, in their order."""

    def __init__(self, total: int | None, **settings: float) -> None:
        self.slots = Slots(total)
        self._before = {(each.name, *each.labels.items()): each.value for each in samples()}
        self.admission = Admission(
            self.slots,
            GatewaySettings.model_validate({"replicas": ["http://x:1"], "secret": "s" * 16, **settings}),
        )
        self.opened: list[str] = []

    async def open(self, tenant: Tenant, slots: int = 1, timeout_s: float = LONG_S) -> None:
        async with self.admission.opening(tenant, "maze", timeout_s, slots):
            self.slots.sessions[tenant.name] += slots
            self.opened.append(tenant.name)

    def start(self, tenant: Tenant, slots: int = 1, timeout_s: float = LONG_S) -> "asyncio.Task[None]":
        return asyncio.create_task(self.open(tenant, slots, timeout_s))

    def close(self, tenant: Tenant, slots: int = 1) -> None:
        self.slots.sessions[tenant.name] -= slots
        self.admission.freed("maze")

    def counted(self, name: str, **labels: str) -> float:
        """What has come on since this gate was made."""
        name = f"gymfleet_gateway_{name}"
        return (REGISTRY.get_sample_value(name, labels) or 0) - self._before.get((name, *labels.items()), 0)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def cancel(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


A = Tenant("a")
B = Tenant("b")
HEAVY = Tenant("heavy", weight=3)


async def test_with_free_slots_nobody_waits() -> None:
    gate = Gate(2)

    await gate.open(A)
    await gate.open(B)

    assert gate.opened == ["a", "b"]
    assert gate.counted("queue_wait_seconds_count", env="maze") == 2
    assert REGISTRY.get_sample_value("gymfleet_gateway_queue_length", {"env": "maze"}) == 0


async def test_what_the_fleet_does_not_get_done_waits_here_and_not_there() -> None:
    gate = Gate(100)
    gate.slots.opens = 2
    slow = asyncio.Event()
    begun: list[int] = []

    async def open_slowly(number: int) -> None:
        async with gate.admission.opening(A, "maze", LONG_S):
            begun.append(number)
            await slow.wait()

    opens = [asyncio.create_task(open_slowly(number)) for number in range(4)]
    await settle()
    assert (begun, gate.admission.waiting("maze")) == ([0, 1], 2)

    await cancel(opens[0])
    await settle()
    assert begun == [0, 1, 2], "an open that ended makes room for the next, in order"

    slow.set()
    await asyncio.gather(*opens[1:])
    assert (begun, gate.admission.waiting("maze")) == ([0, 1, 2, 3], 0)


async def test_who_is_refused_everywhere_counts_no_longer_as_under_way() -> None:
    gate = Gate(100)
    gate.slots.opens = 1
    async with gate.admission.opening(A, "maze", LONG_S) as ticket:
        waiting = asyncio.create_task(ticket.refused(everywhere=False))
        await settle()

        await asyncio.wait_for(gate.open(B), 1)

        assert gate.opened == ["b"]
        gate.admission.freed()
        await asyncio.wait_for(waiting, 1)


async def test_who_finds_no_slot_waits_for_one_and_a_slot_lets_in_one() -> None:
    gate = Gate(1)
    await gate.open(A)
    waiting = [gate.start(A), gate.start(A)]
    await settle()
    assert (gate.opened, REGISTRY.get_sample_value("gymfleet_gateway_queue_length", {"env": "maze"})) == (["a"], 2)

    gate.close(A)
    await settle()

    assert [task.done() for task in waiting] == [True, False], "in the order of arrival"
    await cancel(waiting[1])
    assert gate.admission.waiting("maze") == 0


async def test_an_open_that_is_under_way_holds_its_slot_until_it_failed() -> None:
    gate = Gate(1)
    async with gate.admission.opening(A, "maze", LONG_S):
        other = gate.start(B)
        await settle()
        assert not other.done(), "the slot is reserved, though no session is open yet"

    await other  # the first ended without a session: its slot went on at once


@pytest.mark.parametrize(
    ("capacity", "share"),
    [
        pytest.param(8, {"b": 2, "heavy": 6}, id="1:3 divides 8 exactly"),
        pytest.param(40, {"b": 10, "heavy": 30}, id="and 40"),
        pytest.param(5, {"b": 1, "heavy": 4}, id="5: 1.25 to 3.75, rounded"),
    ],
)
async def test_slots_settle_by_weight_whoever_held_them_first(capacity: int, share: dict[str, int]) -> None:
    gate = Gate(capacity)
    for _ in range(capacity):
        await gate.open(B)
    waiting = [gate.start(tenant) for _ in range(400) for tenant in (B, HEAVY)]
    await settle()

    for number in range(200):  # each session in turn ends; whose it was is as the slots are held
        gate.close(B if number % capacity < gate.slots.sessions["b"] else HEAVY)
        await settle()

    assert dict(gate.slots.sessions) == share
    await cancel(*(task for task in waiting if not task.done()))


async def test_shares_of_finished_episodes_follow_the_weights() -> None:
    """Episodes of one length: 40 slots, of which 10 and 30 are held, end 1:3."""
    gate = Gate(40, max_queue=4000)
    waiting = [gate.start(tenant) for _ in range(1000) for tenant in (B, HEAVY)]
    await settle()
    ended = 0
    while ended < 1200:
        done = gate.opened[ended]
        gate.close(B if done == "b" else HEAVY)
        ended += 1
        await settle()

    assert Counter(gate.opened[200:1200]) == {"b": 250, "heavy": 750}
    await cancel(*(task for task in waiting if not task.done()))


async def test_without_rivals_a_tenant_gets_everything() -> None:
    gate = Gate(4)
    for _ in range(4):
        await gate.open(B)

    assert gate.slots.sessions == {"b": 4}


async def test_a_client_that_goes_leaves_the_queue_and_loses_no_slot() -> None:
    gate = Gate(1)
    await gate.open(A)
    gone, staying = gate.start(A), gate.start(A)
    await settle()

    gate.close(A)  # the first is let in now ...
    gone.cancel()  # ... and goes before it notices
    await asyncio.wait([gone])

    assert gone.cancelled()
    await staying
    assert gate.opened == ["a", "a"]


async def test_a_wait_ends_with_the_callers_time_or_the_queues() -> None:
    for settings, timeout_s in (({}, 0.01), ({"queue_timeout_s": 0.01}, LONG_S)):
        gate = Gate(0, **settings)
        with pytest.raises(QueueFull, match=r"no slot of maze came free within 0\.01 s") as caught:
            await gate.open(A, timeout_s=timeout_s)

        assert caught.value.status == 429
        assert caught.value.headers() == {"Retry-After": "10"}, "nothing ended within memory"
        assert gate.counted("rejections_total", env="maze", tenant="a", reason="environment-full") == 1
        assert gate.admission.waiting("maze") == 0


async def test_the_advice_is_the_rate_at_which_slots_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, now = asyncio.get_running_loop(), [100.0]
    monkeypatch.setattr(loop, "time", lambda: now[0])
    gate = Gate(10, max_queue=8)
    for _ in range(10):
        await gate.open(A)
        now[0] += 0.5
    waiting = [gate.start(A) for _ in range(8)]
    await settle()

    with pytest.raises(QueueFull) as caught:
        await gate.open(A)

    # 10 slots in 5 s; 8 wait before it: (8 + 1) / 2 per second.
    assert caught.value.problem().model_extra == {"retry_after_s": 4.5}
    assert caught.value.headers() == {"Retry-After": "5"}
    await cancel(*waiting)


@pytest.mark.parametrize(
    ("capacity", "places"),
    [
        pytest.param(600, 1200, id="twice the capacity: all players of the fleet, and all of its next turn"),
        pytest.param(4, 1024, id="a small fleet has a queue too"),
    ],
)
async def test_the_queue_is_as_long_as_the_capacity_asks_for(capacity: int, places: int) -> None:
    gate = Gate(capacity)
    gate.slots.opens = 0  # the replicas have as many opens under way as they may
    waiting = [gate.start(A) for _ in range(places)]
    await settle()
    assert gate.admission.waiting("maze") == places

    with pytest.raises(QueueFull, match=f"the queue of maze is full: {places} opens may wait"):
        await gate.open(A)

    await cancel(*waiting)


async def test_a_full_queue_turns_away_who_crowds_it() -> None:
    gate = Gate(0, max_queue=4)
    crowd = [gate.start(A) for _ in range(4)]
    await settle()

    with pytest.raises(QueueFull, match="the queue of maze is full: 4 opens may wait"):
        await gate.open(A)
    late = gate.start(B)
    await settle()

    assert isinstance(crowd[3].exception(), QueueFull), "the newest of the one who waits most"
    assert not late.done()
    second = gate.start(B)
    await settle()
    assert isinstance(crowd[2].exception(), QueueFull)
    with pytest.raises(QueueFull):
        await gate.open(B)  # two and two: nobody crowds it more
    assert gate.admission.waiting("maze") == 4
    await cancel(*crowd[:2], late, second)


async def test_a_refused_open_waits_at_the_head_until_there_is_news() -> None:
    gate = Gate(1)
    gate.slots.stale = True  # the figures say that there is room, the replicas say that there is none
    tries: list[str] = []

    async def keep_trying(name: str) -> None:
        async with gate.admission.opening(A, "maze", LONG_S) as ticket:
            tries.append(name)
            while gate.slots.sessions.total() >= 1:
                await ticket.refused()
                tries.append(name)
            gate.slots.sessions["a"] += 1

    gate.slots.sessions["a"] = 1
    first, second = asyncio.create_task(keep_trying("first")), asyncio.create_task(keep_trying("second"))
    await settle()
    assert tries == ["first"], "after one refusal nobody else tries in vain"

    gate.admission.freed("maze")
    await settle()
    assert tries == ["first", "first"]

    gate.close(A)
    await settle()
    assert (first.done(), second.done(), tries) == (True, False, ["first", "first", "first", "second"])
    await cancel(second)


async def test_a_refused_open_has_its_deadline_too() -> None:
    gate = Gate(1)

    with pytest.raises(QueueFull):
        async with gate.admission.opening(A, "maze", 0.01) as ticket:
            await ticket.refused()

    assert gate.counted("rejections_total", env="maze", tenant="a", reason="environment-full") == 1
    gate.admission.freed("maze")
    await gate.open(A)  # its slot is not lost


async def test_a_fork_that_its_replica_refused_does_not_hold_up_others() -> None:
    gate = Gate(4)
    refused = asyncio.Event()

    async def fork() -> Ticket:
        async with gate.admission.opening(A, "maze", LONG_S, slots=2) as ticket:
            refused.set()
            await ticket.refused(everywhere=False)
        return ticket

    forking = asyncio.create_task(fork())
    await refused.wait()

    await gate.open(B)
    await gate.open(A)
    assert not forking.done()
    gate.admission.freed()
    await forking


async def test_a_fork_waits_for_all_its_slots_and_its_tenants_opens_wait_behind_it() -> None:
    gate = Gate(4)
    for _ in range(4):
        await gate.open(A)
    fork, behind, other = gate.start(A, slots=3), gate.start(A), gate.start(B)
    await settle()

    gate.close(A)
    await settle()
    assert (fork.done(), behind.done(), other.done()) == (False, False, True), "others pass"

    gate.close(A)
    gate.close(A)
    gate.close(B)
    await settle()
    assert (fork.done(), behind.done()) == (True, False)
    await cancel(behind)


async def test_a_fork_that_never_fits_holds_up_nobody() -> None:
    gate = Gate(4)
    fork = gate.start(A, slots=5)
    await settle()

    await asyncio.wait_for(gate.open(A), 5)

    assert not fork.done()
    await cancel(fork)


async def test_while_the_figures_are_unknown_a_call_may_try() -> None:
    gate = Gate(None)

    await gate.open(A)

    assert gate.opened == ["a"]


async def test_a_quota_counts_all_environments_and_what_is_on_its_way() -> None:
    gate = Gate(3)
    tenant = Tenant("small", max_sessions=3)
    gate.slots.elsewhere["small"] = 1
    await gate.open(tenant)
    async with gate.admission.opening(tenant, "textcraft", LONG_S):
        with pytest.raises(QuotaExceeded, match="2 sessions open and 1 on their way, and may have 3") as caught:
            await gate.open(tenant)

    assert (caught.value.status, caught.value.headers()) == (429, {"Retry-After": "1"})
    assert gate.counted("rejections_total", env="maze", tenant="small", reason="quota-exceeded") == 1
    with pytest.raises(QuotaExceeded):
        await gate.open(tenant, slots=2)
    await gate.open(tenant)


async def test_a_quota_that_was_used_up_elsewhere_during_the_wait_holds() -> None:
    gate = Gate(1)
    tenant = Tenant("small", max_sessions=2)
    await gate.open(A)
    waiting = gate.start(tenant)
    await settle()

    gate.slots.elsewhere["small"] = 2  # by another gateway
    gate.close(A)
    with pytest.raises(QuotaExceeded):
        await waiting

    assert gate.counted("rejections_total", env="maze", tenant="small", reason="quota-exceeded") == 1
    await gate.open(A)


async def test_an_environment_that_the_tenant_was_not_given_is_forbidden() -> None:
    gate = Gate(1)

    with pytest.raises(Forbidden, match="tenant a may not play maze"):
        await gate.open(Tenant("a", environments=frozenset({"textcraft"})))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    return stop_time(module, monkeypatch)


def steps(gate: Gate, tenant: Tenant, number: int) -> int:
    """How many of so many steps are let through."""
    passed = 0
    for _ in range(number):
        try:
            gate.admission.step(tenant, "maze")
            passed += 1
        except RateLimited:
            pass
    return passed


def test_steps_beyond_the_rate_are_told_when_to_come_again(clock: StandingClock) -> None:
    gate, tenant = Gate(1), Tenant("a", steps_per_s=10)
    assert steps(gate, tenant, 15) == 10, "a second's worth at once"

    with pytest.raises(RateLimited, match=r"10 times per second; wait 0\.1 s") as caught:
        gate.admission.step(tenant, "maze")

    assert caught.value.problem().model_extra == {"retry_after_s": 0.1, "limit_per_s": 10}
    assert caught.value.headers() == {"Retry-After": "1"}
    clock.now += 0.1
    assert steps(gate, tenant, 2) == 1
    clock.now += 0.35
    assert steps(gate, tenant, 9) == 3
    clock.now += 100
    assert steps(gate, tenant, 15) == 10
    assert gate.counted("rejections_total", env="maze", tenant="a", reason="rate-limited") == 5 + 1 + 1 + 6 + 5
    assert steps(gate, Tenant("b", steps_per_s=10), 15) == 10, "each tenant for himself"
    assert steps(gate, Tenant("free"), 1000) == 1000


def test_a_rate_is_shared_by_the_gateways(clock: StandingClock) -> None:
    gate, tenant = Gate(1), Tenant("a", steps_per_s=10)
    gate.admission.set_gateways(2)

    assert steps(gate, tenant, 15) == 5
    clock.now += 1
    assert steps(gate, tenant, 15) == 5


async def test_opens_below_one_per_second_have_their_rate_too(clock: StandingClock) -> None:
    gate, tenant = Gate(9), Tenant("a", opens_per_s=0.5)
    await gate.open(tenant)

    with pytest.raises(RateLimited, match="may open") as caught:
        await gate.open(tenant)

    assert caught.value.headers() == {"Retry-After": "2"}
    clock.now += 2
    await gate.open(tenant)
    assert gate.slots.sessions["a"] == 2
