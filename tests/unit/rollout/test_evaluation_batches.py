"""Values that several searches ask for at once: shared calls, and failures of each search's own."""

import asyncio
from collections.abc import Sequence

import pytest
from gymfleet_contracts.reward import RewardSpec, ScoreRequest
from gymfleet_rollout import evaluation_batches
from gymfleet_rollout.errors import EvaluationFailed
from gymfleet_rollout.evaluation_batches import EvaluationBatches
from gymfleet_rollout.evaluator import Outcomes

from tests.fixtures.rewards import make_spec
from tests.fixtures.trajectories import make_trajectory


class Service:
    """Each episode is worth its sample; a call waits until it is let go, and one with what `fails` fails."""

    def __init__(self, *, held: bool = False) -> None:
        self.calls: list[list[int]] = []
        self.timeouts_s: list[float] = []
        self.let_go, self.called_twice = asyncio.Event(), asyncio.Event()
        self.num_cancelled = 0
        self.fails: set[int] = set()
        self.has_none: set[int] = set()
        self.breaks: set[int] = set()
        if not held:
            self.let_go.set()

    async def scores(self, requests: Sequence[ScoreRequest], *, timeout_s: float) -> Outcomes:
        self.timeouts_s.append(timeout_s)
        samples = [request.trajectory.sample for request in requests]
        self.calls.append(samples)
        if len(self.calls) == 2:
            self.called_twice.set()
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        if self.fails.intersection(samples):
            raise EvaluationFailed(f"422 for {samples}")
        if self.breaks.intersection(samples):
            raise KeyError("a bug")
        return [EvaluationFailed(f"none for {one}") if one in self.has_none else float(one) for one in samples]


def requests(*samples: int, reward: RewardSpec | None = None) -> list[ScoreRequest]:
    return [ScoreRequest(trajectory=make_trajectory(sample=one), reward=reward or RewardSpec()) for one in samples]


def asked(batches: EvaluationBatches, *samples: int, reward: RewardSpec | None = None) -> "asyncio.Task[list[float]]":
    return asyncio.create_task(batches.totals(requests(*samples, reward=reward), timeout_s=5))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_is_asked_for_at_the_same_time_is_one_call() -> None:
    service = Service()
    batches = EvaluationBatches(service)

    found = await asyncio.gather(*(asked(batches, 2 * tree, 2 * tree + 1) for tree in range(8)))

    assert service.calls == [list(range(16))]
    assert found == [[2.0 * tree, 2.0 * tree + 1] for tree in range(8)], "each has its own"
    await turns()
    assert not batches._queues, "of rewards that nobody asks for nothing is kept"


async def test_what_comes_while_a_call_is_under_way_leaves_when_that_is_back() -> None:
    service = Service(held=True)
    batches = EvaluationBatches(service, window_s=60)
    first = asked(batches, 0)
    await turns()
    others = [asked(batches, one) for one in (1, 2, 3)]
    await turns()
    assert service.calls == [[0]]

    service.let_go.set()

    assert [await first, *[await one for one in others]] == [[0.0], [1.0], [2.0], [3.0]]
    assert service.calls == [[0], [1, 2, 3]]


async def test_a_slow_call_holds_others_up_for_no_longer_than_the_window() -> None:
    service = Service(held=True)
    batches = EvaluationBatches(service, window_s=0.01)
    slow = asked(batches, 0)
    await turns()
    quick = asked(batches, 1)

    await asyncio.wait_for(service.called_twice.wait(), 5)
    service.let_go.set()

    assert [await slow, await quick] == [[0.0], [1.0]]
    assert service.calls == [[0], [1]]


async def test_a_full_batch_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_batches, "MAX_AT_ONCE", 4)
    service = Service(held=True)
    batches = EvaluationBatches(service, window_s=60)
    first = asked(batches, 0)
    await turns()
    others = [asked(batches, 1, 2), asked(batches, 3), asked(batches, 4, 5, 6)]
    await turns()
    assert service.calls == [[0], [1, 2, 3], [4, 5, 6]], "none has more than four"

    service.let_go.set()
    assert [await first, *[await one for one in others]] == [[0.0], [1.0, 2.0], [3.0], [4.0, 5.0, 6.0]]
    assert await batches.totals(requests(*range(6)), timeout_s=5) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert service.calls[3:] == [[0, 1, 2, 3], [4, 5]]
    assert await batches.totals([], timeout_s=5) == []


async def test_rewards_of_other_components_are_calls_of_their_own() -> None:
    service = Service()
    batches = EvaluationBatches(service)

    await asyncio.gather(asked(batches, 0), asked(batches, 1, reward=make_spec(length={})), asked(batches, 2))

    assert service.calls == [[0, 2], [1]]


async def test_each_call_has_the_time_that_its_searches_have() -> None:
    service = Service()
    batches = EvaluationBatches(service)

    hasty = [asked(batches, 0), asked(batches, 2)]
    await asyncio.gather(*hasty, batches.totals(requests(1), timeout_s=60))

    assert (service.calls, service.timeouts_s) == ([[0, 2], [1]], [5, 60])


async def test_an_episode_without_a_value_fails_its_own_search_alone() -> None:
    service = Service()
    service.has_none = {3}
    batches = EvaluationBatches(service)

    mine, other = asked(batches, 2, 3), asked(batches, 4)

    with pytest.raises(EvaluationFailed, match="none for 3"):
        await mine
    assert await other == [4.0]
    assert service.calls == [[2, 3, 4]]


async def test_a_shared_call_that_fails_is_made_again_for_each_search() -> None:
    service = Service()
    service.fails = {3}
    batches = EvaluationBatches(service)

    mine, other, third = asked(batches, 2, 3), asked(batches, 4), asked(batches, 5)

    with pytest.raises(EvaluationFailed, match=r"422 for \[2, 3\]"):
        await mine
    assert [await other, await third] == [[4.0], [5.0]]
    assert service.calls == [[2, 3, 4, 5], [2, 3], [4], [5]]


async def test_a_bug_is_told_to_all_that_wait() -> None:
    service = Service()
    service.breaks = {1}
    batches = EvaluationBatches(service)

    for one in (asked(batches, 0), asked(batches, 1)):
        with pytest.raises(KeyError, match="a bug"):
            await one


async def test_a_search_that_is_cancelled_harms_no_other() -> None:
    service = Service(held=True)
    batches = EvaluationBatches(service, window_s=60)
    leaves, stays = asked(batches, 0), asked(batches, 1)
    await turns()
    assert service.calls == [[0, 1]]
    waits, goes = asked(batches, 2), asked(batches, 3)
    await turns()

    leaves.cancel()
    goes.cancel()
    await turns()
    service.let_go.set()

    assert [await stays, await waits] == [[1.0], [2.0]]
    assert service.calls == [[0, 1], [2]], "what nobody waits for is not asked"
    assert service.num_cancelled == 0


async def test_a_call_that_nobody_waits_for_is_ended() -> None:
    service = Service(held=True)
    batches = EvaluationBatches(service)
    searches = [asked(batches, 0), asked(batches, 1)]
    await turns()

    for one in searches:
        one.cancel()
    await turns()

    assert service.num_cancelled == 1
    service.let_go.set()
    assert await asked(batches, 2) == [2.0], "and nothing is left of it"


async def test_closing_ends_the_calls_under_way() -> None:
    service = Service(held=True)
    batches = EvaluationBatches(service)
    search = asked(batches, 0)
    await turns()

    await batches.aclose()

    assert service.num_cancelled == 1
    with pytest.raises(asyncio.CancelledError):
        await search
