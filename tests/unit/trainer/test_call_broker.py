"""The broker between the run and its workers: whose answer is whose, and what a dead group leaves behind."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from gymfleet_trainer.distributed.call_broker import Answer, Call, CallBroker
from gymfleet_trainer.errors import WorkersFailed, WorkersLost


async def started(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A task that has run as far as it can."""
    task = asyncio.ensure_future(work)
    await settled()
    return task


async def settled() -> None:
    """Every other task has run as far as it can: no chain of the broker's wake-ups is longer."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_call_goes_to_every_rank_and_its_answer_comes_back() -> None:
    broker = CallBroker()
    group = await broker.join(2)
    ranks = [await started(broker.take(group, 0)) for _ in range(2)]

    answer = await started(broker.call(group, "update", ["arguments"]))

    assert [await rank for rank in ranks] == [Call(1, "update", ["arguments"])] * 2
    for said in (Answer({"loss": 1.0}), None):
        await settled()
        assert not answer.done()
        await broker.answer(1, said)
    assert (await answer) == Answer({"loss": 1.0}), "the first rank's, whoever is last"


async def test_a_rank_that_is_late_misses_no_call() -> None:
    broker = CallBroker()
    group = await broker.join(2)
    load = await started(broker.call(group, "load_checkpoint", []))
    await broker.answer(1, Answer())
    await settled()

    assert not load.done(), "or the next call would take its place"
    assert (await broker.take(group, 0)) == Call(1, "load_checkpoint", [])
    await broker.answer(1, None)
    assert (await load) == Answer()


async def test_what_the_first_rank_could_not_write_is_said_at_once() -> None:
    broker = CallBroker()
    group = await broker.join(2)
    save = await started(broker.call(group, "save_checkpoint", []))

    await broker.answer(1, Answer(error=OSError("no space left")))

    assert str((await save).error) == "no space left", "the other rank may be waiting for the first one's weights"
    following = await started(broker.call(group, "update", []))
    await broker.answer(1, None)
    await broker.answer(2, Answer())
    await settled()
    assert not following.done(), "its late answer is to the call before"
    following.cancel()


async def test_a_rank_that_has_made_a_call_waits_for_the_next() -> None:
    broker = CallBroker()
    group = await broker.join(1)
    first = await started(broker.call(group, "end_sft", []))
    done = await broker.take(group, 0)
    assert done is not None

    again = await started(broker.take(group, done.number + 1))
    assert not again.done(), "the same call is not made twice"
    await broker.answer(done.number, Answer())
    await first
    second = await started(broker.call(group, "update", []))

    assert (await again) == Call(done.number + 1, "update", [])
    second.cancel()


async def test_who_waits_for_a_dead_group_hears_that_it_is_lost() -> None:
    broker = CallBroker()
    old = await broker.join(1)
    waiting = await started(broker.call(old, "update", []))

    new = await broker.join(1)

    assert isinstance((await waiting).error, WorkersLost)
    assert isinstance((await broker.call(old, "update", [])).error, WorkersLost), "and so does who comes later"
    assert await broker.take(old, 0) is None, "a straggler of the old group has nothing more to do"
    assert await broker.group(after=old) == new


async def test_an_old_groups_late_answer_is_nobodys() -> None:
    broker = CallBroker()
    old = await broker.join(1)
    lost = await started(broker.call(old, "update", []))
    new = await broker.join(1)
    waiting = await started(broker.call(new, "update", []))

    await broker.answer(1, Answer("of the old group"))
    await settled()
    assert not waiting.done()
    await broker.answer(2, Answer("of the new group"))

    assert (await waiting).value == "of the new group"
    assert isinstance((await lost).error, WorkersLost)


async def test_a_closed_desk_keeps_nobody_waiting() -> None:
    broker = CallBroker()
    group = await broker.join(1)
    waiting = await started(broker.call(group, "update", []))
    rank = await started(broker.take(group, 7))
    next_group = await started(broker.group(after=group))

    await broker.close("the training workers died too often")

    error = (await waiting).error
    with pytest.raises(WorkersFailed, match="died too often"):
        raise error or AssertionError
    assert not isinstance(error, WorkersLost), "there is nothing to go on with"
    assert await rank is None
    assert await next_group == 0
    assert isinstance((await broker.call(group, "update", [])).error, WorkersFailed)
