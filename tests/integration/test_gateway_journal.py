"""The journal of sessions, on a real Redis."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
from gymfleet_env_gateway.journal import (
    Journal,
    JournaledStep,
    JournalEntries,
    JournalHeader,
    SessionLocation,
    Written,
    digest,
)
from gymfleet_kit.streams import RedisClient, connect, disconnect

from tests.fixtures.redis_server import RedisServer

HERE, THERE = SessionLocation("replica-a", "upstream-1"), SessionLocation("replica-b", "upstream-2")
RECORD = JournalHeader("maze", "train", "small", "small.train.0", 7, 30.0, digest("the first observation"))


def played(action: str) -> JournaledStep:
    return JournaledStep(action, digest(f"after {action}"), 0.5, over=False)


@asynccontextmanager
async def journal_on(url: str, timeout_s: float = 5.0) -> AsyncIterator[Journal]:
    redis = connect(url)
    journal = Journal(redis, timeout_s=timeout_s)
    await journal.start()
    try:
        yield journal
    finally:
        await journal.aclose()
        await disconnect(redis)


@pytest.fixture
async def journal(redis: RedisClient, redis_url: str) -> AsyncIterator[Journal]:
    async with journal_on(redis_url) as opened:
        yield opened


async def test_a_session_is_read_as_it_was_played(journal: Journal) -> None:
    await journal.begin("s", HERE, RECORD)
    for index, action in enumerate(("up", "down")):
        assert await journal.step("s", HERE, index, played(action)) is Written.DONE

    assert await journal.read("s") == JournalEntries(HERE, RECORD, [played("up"), played("down")])


async def test_a_step_that_is_written_again_changes_nothing(journal: Journal) -> None:
    await journal.begin("s", HERE, RECORD)
    for _ in range(3):
        assert await journal.step("s", HERE, 0, played("up")) is Written.DONE

    story = await journal.read("s")
    assert story is not None
    assert story.steps == [played("up")]


async def test_a_journal_with_a_gap_is_no_journal(journal: Journal) -> None:
    await journal.begin("s", HERE, RECORD)
    assert await journal.step("s", HERE, 1, played("down")) is Written.ABSENT
    assert await journal.read("s") is None, "a replay without the first step would be another episode"


async def test_what_an_old_home_says_after_a_move_does_not_count(journal: Journal) -> None:
    await journal.begin("s", HERE, RECORD)
    assert await journal.move("s", HERE, THERE) is Written.DONE
    assert await journal.move("s", HERE, SessionLocation("replica-c", "upstream-3")) is Written.MOVED, "one mover alone"
    assert await journal.step("s", HERE, 0, played("up")) is Written.MOVED
    assert await journal.check("s", HERE) is Written.MOVED
    assert await journal.record_lease("s", HERE, 10.0) is Written.MOVED
    assert await journal.step("s", THERE, 0, played("up")) is Written.DONE
    assert await journal.location("s") == THERE


async def test_a_fork_begins_with_what_its_parent_had_played_then(journal: Journal) -> None:
    await journal.begin("s", HERE, RECORD)
    for index, action in enumerate(("up", "down", "left")):
        await journal.step("s", HERE, index, played(action))
    await journal.copy("s", "child", THERE, 2, 30.0)
    await journal.step("child", THERE, 2, played("right"))

    child, parent = await journal.read("child"), await journal.read("s")
    assert child is not None
    assert parent is not None
    assert [step.action for step in child.steps] == ["up", "down", "right"]
    assert [step.action for step in parent.steps] == ["up", "down", "left"]
    assert child.location == THERE


async def test_moves_are_counted_until_a_step_is_taken(journal: Journal) -> None:
    async def counts() -> tuple[int, int, int]:
        story = await journal.read("s")
        assert story is not None
        return story.tries, story.killed, story.recoveries

    await journal.begin("s", HERE, RECORD)
    await journal.move("s", HERE, THERE)
    await journal.move("s", THERE, HERE, culprit=True)
    await journal.move("s", HERE, THERE)
    assert await counts() == (3, 1, 3)
    await journal.step("s", THERE, 0, played("up"))
    assert await counts() == (0, 0, 3)


async def test_a_move_whose_answer_was_lost_succeeds_when_it_is_written_again(journal: Journal) -> None:
    await journal.begin("s", HERE, RECORD)
    for _ in range(2):
        assert await journal.move("s", HERE, THERE) is Written.DONE
    story = await journal.read("s")
    assert story is not None
    assert (story.location, story.recoveries) == (THERE, 1)


async def test_a_redis_that_was_restarted_vouches_for_no_journal_until_its_index_was_told(tmp_path: Path) -> None:
    with RedisServer(tmp_path, crash_safe=True) as redis_server:
        async with journal_on(redis_server.url) as journal:

            async def vouched_for(*session_ids: str) -> list[bool]:
                stories = [await journal.read(session_id) for session_id in session_ids]
                return [story is not None and story.vouched_for for story in stories]

            for session_id in ("stepped", "repeated", "renewed", "forked"):
                await journal.begin(session_id, HERE, RECORD)
                await journal.step(session_id, HERE, 0, played("up"))
            assert await vouched_for("stepped", "repeated", "renewed", "forked") == [True] * 4
            redis_server.stop(signal.SIGKILL)
            redis_server.start()
            assert await vouched_for("stepped", "repeated", "renewed", "forked") == [False] * 4

            await journal.step("stepped", HERE, 1, played("down"))
            await journal.step("repeated", HERE, 0, played("up"))
            await journal.record_lease("renewed", HERE, 30.0)
            await journal.copy("forked", "child", THERE, 1, 30.0)
            assert await vouched_for("stepped", "repeated", "renewed", "forked") == [True, True, False, False]
            assert await vouched_for("child") == [True], "its env server has just said how far it is"


async def test_a_fork_of_a_journal_that_lacks_steps_has_none(journal: Journal) -> None:
    await journal.begin("s", HERE, RECORD)
    await journal.step("s", HERE, 0, played("up"))
    await journal.copy("s", "child", THERE, 2, 30.0)
    assert await journal.read("child") is None, "the second step is not known"


async def test_a_journal_lives_as_long_as_its_session(journal: Journal, redis_url: str) -> None:
    redis = connect(redis_url)
    await journal.begin("s", HERE, RECORD)
    key = "gymfleet:gateway:journal:s"
    await redis.pexpire(key, 1000)
    await journal.step("s", HERE, 0, played("up"))
    assert 29_000 < await redis.pttl(key) <= 30_000, "a step renews it"
    await journal.record_lease("s", HERE, 90.0)
    assert 89_000 < await redis.pttl(key) <= 90_000
    await journal.end("s")
    assert await redis.keys("*") == []
    await disconnect(redis)


async def test_steps_of_one_moment_share_a_round_trip(journal: Journal, redis_url: str) -> None:
    redis = connect(redis_url)
    await asyncio.gather(*(journal.begin(str(number), HERE, RECORD) for number in range(200)))
    before = (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"]
    await asyncio.gather(*(journal.step(str(number), HERE, 0, played("up")) for number in range(200)))
    after = (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"]
    assert after - before <= 2
    await disconnect(redis)


async def test_a_redis_that_is_away_costs_recovery_and_nothing_else(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as redis_server:
        async with journal_on(redis_server.url, timeout_s=0.5) as journal:
            for session_id in ("failed", "skipped", "untouched"):
                await journal.begin(session_id, HERE, RECORD)
            redis_server.stop()
            assert await journal.step("failed", HERE, 0, played("up")) is Written.ABSENT
            assert await journal.step("skipped", HERE, 0, played("up")) is Written.ABSENT

            redis_server.start()
            for _ in range(100):
                await asyncio.sleep(0.05)
                if await journal.check("untouched", HERE) is Written.DONE:
                    break
            for session_id in ("failed", "skipped"):
                assert await journal.read(session_id) is None, "a step that was not written must not miss in a replay"
            assert await journal.read("untouched") is not None


async def test_every_outage_is_told_once(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as redis_server, structlog.testing.capture_logs() as lines:
        async with journal_on(redis_server.url, timeout_s=0.5) as journal:
            await journal.begin("s", HERE, RECORD)
            for _ in range(2):
                redis_server.stop()
                for _ in range(2):
                    await journal.check("s", HERE)
                redis_server.start()
                for _ in range(100):
                    await asyncio.sleep(0.05)
                    if await journal.check("s", HERE) is Written.DONE:
                        break
                await journal.check("s", HERE)

    assert [line["event"] for line in lines] == ["journal.lost", "journal.returned"] * 2


async def test_a_sealed_journal_says_so_and_is_moved_nowhere(journal: Journal) -> None:
    await journal.begin("s", HERE, RECORD)
    assert await journal.step("s", HERE, 0, played("up")) is Written.DONE
    assert await journal.seal("s", THERE) is Written.MOVED, "only where the session lives"
    assert await journal.seal("s", HERE) is Written.DONE
    assert await journal.seal("s", HERE) is Written.DONE
    assert await journal.step("s", HERE, 1, played("down")) is Written.DONE
    assert await journal.move("s", HERE, THERE) is Written.ABSENT, "a replay that began before comes too late"
    await journal.copy("s", "child", THERE, 2, 30.0)

    assert await journal.read("s") == JournalEntries(HERE, RECORD, [played("up"), played("down")], sealed=True)
    child = await journal.read("child")
    assert child is not None
    assert child.sealed, "its state holds the action too"
    assert await journal.seal("absent", HERE) is Written.ABSENT
