"""What every Redis must do for the streams: the embedded one, and a separate server where there is one.

`GYMFLEET_TEST_REDIS_URL` names the separate server; without it a `redis-server`
on the path is started. Leases are not waited for: entries are aged in Redis.
"""

import asyncio
import os
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self
from uuid import uuid4

import pytest
from gymfleet_contracts.streams import dead_letters
from gymfleet_kit.streams import Delivery, StreamConsumer, StreamFull, StreamProducer, connect, disconnect
from gymfleet_kit.trace import current_trace, new_trace, traced
from pydantic import BaseModel
from structlog.testing import capture_logs

from tests.fixtures.redis_server import RedisServer

GROUP = "workers"
PATIENCE_S = 60
SEPARATE_URL = os.environ.get("GYMFLEET_TEST_REDIS_URL")
SEPARATE_BINARY = shutil.which("redis-server")


class Message(BaseModel):
    n: int


@dataclass
class Broker:
    """A Redis to test against; `server` is None where it is somebody else's process."""

    url: str
    server: RedisServer | None

    async def crash_and_return(self, redis: Any) -> None:
        """kill -9 and a new process on the same files; of a foreign server only the connections are cut."""
        if self.server is None:
            await redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            return
        await asyncio.to_thread(self.server.stop, signal.SIGKILL)
        await asyncio.sleep(0.3)
        await asyncio.to_thread(self.server.start)


@pytest.fixture(scope="module", params=["embedded", *(["separate"] if SEPARATE_URL or SEPARATE_BINARY else [])])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    if request.param == "separate" and SEPARATE_URL:
        yield Broker(SEPARATE_URL, None)
        return
    executable = SEPARATE_BINARY if request.param == "separate" else None
    with RedisServer(tmp_path_factory.mktemp("redis"), executable=executable, crash_safe=True) as server:
        yield Broker(server.url, server)


class Lab:
    """One stream of its own on the broker, and short ways to work on it."""

    def __init__(self, broker: Broker, redis: Any) -> None:
        self.broker = broker
        self.redis = redis
        self.stream = f"test:{uuid4().hex}"

    def producer(self, *, max_len: int = 10_000, full_timeout_s: float = PATIENCE_S) -> StreamProducer:
        return StreamProducer(self.redis, self.stream, max_len=max_len, full_timeout_s=full_timeout_s)

    def consumer(
        self, name: str = "a", *, group: str = GROUP, lease_s: float = 300.0, max_attempts: int = 5
    ) -> StreamConsumer[Message]:
        return StreamConsumer(
            self.redis, self.stream, group, Message, consumer=name, lease_s=lease_s, max_attempts=max_attempts
        )

    async def publish(self, count: int) -> list[str]:
        return [await self.producer().publish(Message(n=n)) for n in range(count)]

    async def end_lease(self, entry_id: str) -> None:
        """As if the owner had been silent for a day."""
        await self.redis.xclaim(self.stream, GROUP, "a", 0, [entry_id], idle=86_400_000, justid=True)

    async def pending(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = await self.redis.xpending_range(self.stream, GROUP, "-", "+", 1000)
        return rows

    async def length(self) -> int:
        return int(await self.redis.xlen(self.stream))

    async def letters(self) -> list[dict[bytes, bytes]]:
        return [fields for _, fields in await self.redis.xrange(dead_letters(self.stream))]


@pytest.fixture
async def lab(broker: Broker) -> AsyncIterator[Lab]:
    redis = connect(broker.url)
    lab = Lab(broker, redis)
    try:
        yield lab
        await redis.delete(lab.stream, dead_letters(lab.stream))
    finally:
        await disconnect(redis)


class Running:
    """`consumer.run` in the background, stopped at the end of the block."""

    def __init__(
        self,
        consumer: StreamConsumer[Message],
        handle: Callable[[Delivery[Message]], Awaitable[None]],
        concurrency: int = 4,
    ) -> None:
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(consumer.run(handle, concurrency=concurrency, stop=self.stop))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop.set()
        await asyncio.wait_for(self.task, PATIENCE_S)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110 - the condition is a state of Redis
            await asyncio.sleep(0.02)


async def test_failed_message_is_redelivered_under_the_same_id_then_acknowledged(lab: Lab) -> None:
    seen: list[Delivery[Message]] = []
    failed = asyncio.Event()

    async def handle(delivery: Delivery[Message]) -> None:
        seen.append(delivery)
        if len(seen) == 1:
            failed.set()
            raise RuntimeError("once")

    (entry_id,) = await lab.publish(1)
    with capture_logs() as logs:
        async with Running(lab.consumer(), handle):
            await asyncio.wait_for(failed.wait(), PATIENCE_S)
            assert [row["message_id"].decode() for row in await lab.pending()] == [entry_id], "stays after a failure"
            await lab.end_lease(entry_id)
            await until(lambda: _is_empty(lab))

    assert [delivery.attempt for delivery in seen] == [1, 2]
    assert {delivery.id for delivery in seen} == {entry_id}, "same id on redelivery: the idempotency key"
    assert await lab.pending() == []
    (failure,) = [entry for entry in logs if entry["event"] == "message.failed"]
    assert (failure["id"], failure["attempt"]) == (entry_id, 1)


async def test_message_of_a_dead_consumer_is_claimed_after_its_lease(lab: Lab) -> None:
    dead, heir = lab.consumer("dead"), lab.consumer("heir")
    (entry_id,) = await lab.publish(1)
    (first,) = await dead.receive(10, 1000)

    assert await heir.receive(10, 0) == [], "the lease has not run out"
    await lab.end_lease(entry_id)
    (second,) = await heir.receive(10, 1000)

    assert (first.attempt, second.attempt) == (1, 2)
    assert first.body == second.body == Message(n=0)
    assert first.id == second.id == entry_id
    await heir.ack([second.id])
    assert await lab.length() == 0


async def test_abandoned_message_is_found_behind_many_that_are_held(lab: Lab) -> None:
    keeper, finder = lab.consumer("keeper"), lab.consumer("finder")
    ids = await lab.publish(60)
    assert len(await keeper.receive(60, 1000)) == 60
    await lab.end_lease(ids[-1])

    (found,) = await finder.receive(1, 1000)  # one claim looks at ten entries

    assert found.id == ids[-1]


async def test_a_long_handler_keeps_its_lease(lab: Lab) -> None:
    lease_s = 1.5
    rival = lab.consumer("rival", lease_s=lease_s)
    runs = Counter[str]()
    release = asyncio.Event()

    async def handle(delivery: Delivery[Message]) -> None:
        runs[delivery.id] += 1
        await release.wait()

    (entry_id,) = await lab.publish(1)
    async with Running(lab.consumer("owner", lease_s=lease_s), handle):
        extensions, last_idle_ms = 0, 0
        async with asyncio.timeout(PATIENCE_S):
            while extensions < 4:  # extended every third: longer than one lease
                await asyncio.sleep(0.02)
                for row in await lab.pending():
                    extensions += row["time_since_delivered"] < last_idle_ms
                    last_idle_ms = row["time_since_delivered"]
        assert await rival.receive(1, 0) == []
        (row,) = await lab.pending()
        assert (row["consumer"], row["times_delivered"]) == (b"owner", 1), "a renewal is no attempt"
        release.set()
        await until(lambda: _is_empty(lab))

    assert runs == {entry_id: 1}


async def test_a_message_that_keeps_failing_is_buried_with_its_reason(lab: Lab) -> None:
    attempts: list[int] = []

    async def handle(delivery: Delivery[Message]) -> None:
        attempts.append(delivery.attempt)
        raise ValueError("no good")

    trace = new_trace()
    with traced(trace):
        (entry_id,) = await lab.publish(1)
    async with Running(lab.consumer(max_attempts=2), handle):
        await until(lambda: _has(attempts, 1))
        await lab.end_lease(entry_id)
        await until(lambda: _is_empty(lab))

    assert attempts == [1, 2]
    (letter,) = await lab.letters()
    assert letter[b"id"] == entry_id.encode()
    assert letter[b"attempts"] == b"2"
    assert letter[b"reason"] == b"gave up after 2 attempts: ValueError: no good"
    assert letter[b"body"] == b'{"n":0}'
    assert letter[b"traceparent"] == trace.encode()
    assert await lab.pending() == []


async def test_a_message_that_kills_its_consumers_is_buried(lab: Lab) -> None:
    (entry_id,) = await lab.publish(1)
    for name in ("first", "second"):
        assert len(await lab.consumer(name, max_attempts=2).receive(1, 1000)) == 1
        await lab.end_lease(entry_id)

    assert await lab.consumer("third", max_attempts=2).receive(1, 0) == []

    (letter,) = await lab.letters()
    assert (letter[b"id"], letter[b"attempts"]) == (entry_id.encode(), b"2")
    assert await lab.pending() == []
    assert await lab.length() == 0


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param({"body": "{"}, b"Invalid JSON", id="not JSON"),
        pytest.param({"body": '{"n": "many"}'}, b"n: Input should be a valid integer", id="wrong schema"),
        pytest.param({"body": b"\xff\xfe"}, b"Invalid JSON", id="not text"),
        pytest.param({"other": "1"}, b"no field b'body'", id="no body"),
    ],
)
async def test_an_unreadable_message_is_buried_at_once(lab: Lab, fields: dict[str, str | bytes], reason: bytes) -> None:
    await lab.redis.xadd(lab.stream, fields)
    await lab.publish(1)

    received = await lab.consumer().receive(10, 1000)

    assert [delivery.body for delivery in received] == [Message(n=0)], "the next one is not held up"
    (letter,) = await lab.letters()
    assert letter[b"reason"].startswith(b"unreadable: ")
    assert reason in letter[b"reason"]
    assert letter[b"attempts"] == b"1"
    assert len(await lab.pending()) == 1


async def test_a_full_stream_holds_its_producers_until_something_is_acknowledged(lab: Lab) -> None:
    impatient, patient = lab.producer(max_len=2, full_timeout_s=0), lab.producer(max_len=2)
    consumer = lab.consumer()
    await impatient.publish(Message(n=0))
    await impatient.publish(Message(n=1))
    (first,) = await consumer.receive(1, 1000)

    with pytest.raises(StreamFull, match="holds 2 messages"):
        await impatient.publish(Message(n=2))  # received is not yet acknowledged
    with capture_logs() as logs:
        waiting = asyncio.create_task(patient.publish(Message(n=2)))
        await asyncio.sleep(0.2)
        await consumer.ack([first.id])
        await asyncio.wait_for(waiting, PATIENCE_S)

    assert [(entry["event"], entry["stream"]) for entry in logs] == [("stream.full", lab.stream)]
    assert [delivery.body.n for delivery in await consumer.receive(10, 1000)] == [1, 2]


async def test_no_number_of_producers_exceeds_the_limit(lab: Lab) -> None:
    attempts = [lab.producer(max_len=3, full_timeout_s=0).publish(Message(n=n)) for n in range(10)]

    results = await asyncio.gather(*attempts, return_exceptions=True)

    assert sum(isinstance(result, str) for result in results) == 3
    assert sum(isinstance(result, StreamFull) for result in results) == 7
    assert await lab.length() == 3


async def test_acknowledged_messages_leave_the_stream_in_any_order(lab: Lab) -> None:
    consumer = lab.consumer()
    ids = await lab.publish(5)
    await consumer.receive(5, 1000)

    await consumer.ack(ids[2:4])
    assert [entry_id.decode() for entry_id, _ in await lab.redis.xrange(lab.stream)] == [ids[0], ids[1], ids[4]]
    await consumer.ack([ids[0], ids[1], ids[4]])

    assert await lab.length() == 0
    await consumer.ack(ids)  # again: nothing happens


async def test_a_message_stays_until_every_group_has_acknowledged_it(lab: Lab) -> None:
    quick, slow = lab.consumer(group=GROUP), lab.consumer(group="slow")
    await quick.create_group()
    await slow.create_group()
    await slow.create_group()  # idempotent
    ids = await lab.publish(5)

    await quick.receive(5, 1000)
    await quick.ack(ids)
    assert await lab.length() == 5
    assert len(await slow.receive(3, 1000)) == 3
    await slow.ack(ids[:2])

    assert [entry_id.decode() for entry_id, _ in await lab.redis.xrange(lab.stream)] == ids[2:]
    await slow.receive(5, 1000)
    await slow.ack(ids[2:])
    assert await lab.length() == 0


async def test_published_once_however_often_it_is_tried(lab: Lab) -> None:
    key = f"{lab.stream}:members"
    producer = lab.producer()

    results = await asyncio.gather(*(producer.publish_once([Message(n=7)], key=key, members=["0"]) for _ in range(20)))
    other = await producer.publish_once([Message(n=8)], key=key, members=["1"])

    assert sum(results) == 1
    assert other
    assert [delivery.body.n for delivery in await lab.consumer().receive(10, 1000)] == [7, 8]
    await lab.redis.delete(key)


async def test_several_are_published_together_or_not_at_all(lab: Lab) -> None:
    key = f"{lab.stream}:members"
    producer = lab.producer()

    both = await producer.publish_once([Message(n=1), Message(n=2)], key=key, members=["whole", "0", "1"])
    again = await producer.publish_once([Message(n=3), Message(n=4)], key=key, members=["1", "2"])

    assert (both, again) == (True, False)
    assert [delivery.body.n for delivery in await lab.consumer().receive(10, 1000)] == [1, 2]
    assert await lab.redis.smembers(key) == {b"whole", b"0", b"1"}
    await lab.redis.delete(key)


async def test_a_member_that_found_no_room_is_not_remembered(lab: Lab) -> None:
    key = f"{lab.stream}:members"
    full = lab.producer(max_len=1, full_timeout_s=0)
    await lab.publish(1)

    with pytest.raises(StreamFull):
        await full.publish_once([Message(n=1)], key=key, members=["0"])

    assert await lab.redis.scard(key) == 0


async def test_a_restart_of_redis_in_mid_consumption_loses_nothing(lab: Lab) -> None:
    total = 120
    handled = Counter[int]()

    async def handle(delivery: Delivery[Message]) -> None:
        await asyncio.sleep(0.01)
        handled[delivery.body.n] += 1

    async def produce() -> None:
        for n in range(total):
            await lab.producer().publish(Message(n=n))

    with capture_logs() as logs:
        async with Running(lab.consumer("a", lease_s=1.0), handle), Running(lab.consumer("b", lease_s=1.0), handle):
            producing = asyncio.create_task(produce())
            await until(lambda: _has(handled, 30))
            await lab.broker.crash_and_return(lab.redis)
            await asyncio.wait_for(producing, PATIENCE_S)
            await until(lambda: _has(handled, total))
            await until(lambda: _is_empty(lab))

    assert sorted(handled) == list(range(total))
    assert await lab.pending() == []
    assert await lab.letters() == []
    losses = [entry for entry in logs if entry["event"] == "redis.lost" and "group" in entry]
    assert len(losses) <= 2, "an outage is logged once by each consumer"


async def test_a_group_that_was_lost_with_redis_data_is_made_again(lab: Lab) -> None:
    consumer = lab.consumer()
    await consumer.create_group()
    await lab.redis.delete(lab.stream)
    await lab.publish(1)

    (delivery,) = await consumer.receive(1, 1000)

    assert delivery.body == Message(n=0)


async def test_a_pending_message_that_somebody_deleted_is_forgotten(lab: Lab) -> None:
    consumer = lab.consumer()
    gone, left = await lab.publish(2)
    await consumer.receive(2, 1000)
    await lab.redis.xdel(lab.stream, gone)
    await lab.end_lease(gone)
    await lab.end_lease(left)

    assert [delivery.id for delivery in await consumer.receive(10, 1000)] == [left]

    assert [row["message_id"].decode() for row in await lab.pending()] == [left]


async def test_stop_lets_handlers_end(lab: Lab) -> None:
    entered, release = asyncio.Event(), asyncio.Event()
    ended = []

    async def handle(delivery: Delivery[Message]) -> None:
        entered.set()
        await release.wait()
        ended.append(delivery.id)

    ids = await lab.publish(2)
    running = Running(lab.consumer(), handle, concurrency=1)
    await asyncio.wait_for(entered.wait(), PATIENCE_S)
    running.stop.set()
    release.set()
    await asyncio.wait_for(running.task, PATIENCE_S)

    assert ended == ids[:1]
    assert await lab.length() == 1, "the second waits for another consumer"


async def test_a_cancelled_run_gives_its_messages_back(lab: Lab) -> None:
    entered = asyncio.Event()

    async def handle(delivery: Delivery[Message]) -> None:
        entered.set()
        await asyncio.Event().wait()

    (entry_id,) = await lab.publish(1)
    running = Running(lab.consumer("leaving"), handle)
    await asyncio.wait_for(entered.wait(), PATIENCE_S)
    running.task.cancel()
    await asyncio.wait([running.task], timeout=PATIENCE_S)

    (delivery,) = await lab.consumer("next").receive(1, 0)
    assert (delivery.id, delivery.attempt) == (entry_id, 1), "at once, and without counting the attempt"


async def test_as_many_at_once_as_asked_for(lab: Lab) -> None:
    busy, most = 0, 0
    all_in = asyncio.Event()

    async def handle(_: Delivery[Message]) -> None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        if busy == 3:
            all_in.set()
        await all_in.wait()
        busy -= 1

    await lab.publish(10)
    async with Running(lab.consumer(), handle, concurrency=3):
        await until(lambda: _is_empty(lab))

    assert most == 3


async def test_what_a_person_must_put_right_is_logged_once_and_work_goes_on_afterwards(lab: Lab) -> None:
    handled: list[int] = []

    async def handle(delivery: Delivery[Message]) -> None:
        handled.append(delivery.body.n)

    await lab.redis.set(lab.stream, "a key of another type")
    with capture_logs() as logs:
        async with Running(lab.consumer(), handle):
            await asyncio.sleep(2.5)  # two tries or more
            await lab.redis.delete(lab.stream)
            await lab.publish(1)
            await until(lambda: _has(handled, 1))

    (failure,) = [entry for entry in logs if entry["event"] == "stream.failed"]
    assert (failure["log_level"], failure["stream"], failure["group"]) == ("error", lab.stream, GROUP)
    assert "WRONGTYPE" in failure["reason"]


async def test_the_trace_id_travels_with_the_message(lab: Lab) -> None:
    trace = new_trace()
    seen: list[tuple[str | None, str | None]] = []

    async def handle(delivery: Delivery[Message]) -> None:
        seen.append((delivery.trace, current_trace()))

    with traced(trace):
        await lab.publish(1)
    async with Running(lab.consumer(), handle):
        await until(lambda: _is_empty(lab))

    assert seen == [(trace, trace)]


async def test_an_idle_worker_waits_inside_redis(lab: Lab) -> None:
    async def handle(_: Delivery[Message]) -> None: ...

    async with Running(lab.consumer(), handle):
        await until(lambda: _group_exists(lab))
        before = (await lab.redis.info("stats"))["total_commands_processed"]
        await asyncio.sleep(1.5)
        after = (await lab.redis.info("stats"))["total_commands_processed"]

    assert after - before < 20


async def _has(found: "Counter[int] | list[int]", count: int) -> bool:
    return len(found) >= count


async def _is_empty(lab: Lab) -> bool:
    return await lab.length() == 0


async def _group_exists(lab: Lab) -> bool:
    return bool(await lab.redis.exists(lab.stream))
