"""Engines that sleep while the policy is updated: what waits, who wakes them, and what a dead trainer leaves behind."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from gymfleet_contracts.rollout import SleepRequest
from gymfleet_kit.app import NotReady
from gymfleet_rollout.errors import CannotSleep, PolicyUnavailable, PolicyVersionConflict
from gymfleet_rollout.inference.base import EngineDied, EngineDown, InferenceError
from gymfleet_rollout.inference.engine import VllmCore
from gymfleet_rollout.policy import Policy
from gymfleet_rollout.recipe import settings_for
from pydantic import ValidationError

from tests.fixtures.numbered_engine import NumberedEngine, World
from tests.fixtures.scored import make_recipe


async def test_a_reply_goes_on_after_the_sleep_with_the_tokens_that_it_has(world: World) -> None:
    task = asyncio.create_task(world.ask(50, seed=7))
    await asyncio.sleep(0)

    state = await world.policy.sleep(60)
    late = asyncio.create_task(world.ask())
    done, _ = await asyncio.wait([task, late], timeout=0.1)

    assert state.asleep
    assert world.engines[0].asleep
    assert not done, "whoever asks waits"
    assert not (await world.policy.wake()).asleep
    answer = await task
    assert answer.token_ids == (0,) * 50
    assert [(span.version, span.num_tokens) for span in answer.versions] == [(0, 50)]
    assert [seed for seed in world.engines[0].seeds if seed is not None] == [7, 10], "three tokens were kept"
    assert len((await late).token_ids) == 2


async def test_time_stands_still_in_sleep(world: World) -> None:
    async def within_a_limit() -> str:
        try:
            async with world.policy.timeout(0.2):
                await asyncio.sleep(30)
        except TimeoutError:
            return "over"
        return "never"

    before = asyncio.create_task(within_a_limit())
    await asyncio.sleep(0)
    await world.policy.sleep(60)
    within = asyncio.create_task(within_a_limit())
    done, _ = await asyncio.wait([before, within], timeout=0.5)
    assert not done

    await world.policy.wake()

    async with asyncio.timeout(10):
        assert [await before, await within] == ["over", "over"]


async def test_a_lease_that_nobody_renews_ends_with_the_live_version(world: World) -> None:
    await world.policy.stage(world.body(3))
    await world.policy.commit(3)
    await world.policy.sleep(0.05)

    async with asyncio.timeout(10):
        answer = await world.ask()

    assert answer.token_ids == (3, 3)
    assert not world.policy.state().asleep
    assert world.engines[0].did == ["load 3", "sleep", "wake"]


async def test_a_renewed_lease_holds(world: World) -> None:
    await world.policy.sleep(0.05)
    await world.policy.sleep(60)
    await asyncio.sleep(0.2)

    assert world.policy.state().asleep
    assert world.engines[0].did == ["sleep"], "asked again it is the lease alone"
    await world.policy.sleep(0.01)
    async with world.policy._lock:  # the lease ends, and cannot act on it
        await asyncio.sleep(0.05)
        world.policy._sleep.renew(60)
    await asyncio.sleep(0.05)
    assert world.policy.state().asleep, "renewed before its end had its turn"
    await world.policy.close()


async def test_a_version_wakes_who_sleeps(world: World) -> None:
    await world.policy.sleep(60)

    await world.policy.stage(world.body(4))
    assert not world.policy.state().asleep
    await world.policy.commit(4)

    assert world.engines[0].did == ["sleep", "wake", "load 4"]
    assert (await world.ask()).token_ids == (4, 4)


async def test_a_refused_version_after_sleep_leaves_the_live_one(world: World) -> None:
    await world.policy.sleep(60)
    await world.policy.stage(world.body(4))

    await world.policy.refuse(4)

    assert (await world.ask()).token_ids == (0, 0)


async def test_nobody_sleeps_while_a_version_is_decided_on(world: World) -> None:
    await world.policy.stage(world.body(4))

    with pytest.raises(PolicyVersionConflict, match="version 4 is staged; commit or refuse it first"):
        await world.policy.sleep(60)

    await world.policy.commit(4)
    assert (await world.policy.wake()).live_version == 4, "awake it changes nothing"
    assert world.engines[0].did == ["load 4"]


async def test_asleep_is_ready(world: World) -> None:
    await world.policy.sleep(60)

    await world.policy.check_ready()

    await world.policy.close()


async def test_who_cannot_sleep_says_so_and_the_others_wake(weights: Callable[[int], Path]) -> None:
    world = World(weights, num_engines=2)
    await world.policy.start()
    world.engines[1].failure = InferenceError("the engine r1 cannot sleep")

    with pytest.raises(CannotSleep, match="r1 cannot sleep"):
        await world.policy.sleep(60)

    assert not world.policy.state().asleep
    assert world.engines[0].did == ["sleep", "wake"]
    world.engines[1].failure = None
    assert (await world.ask()).token_ids == (0, 0)


async def test_an_engine_that_is_down_is_not_waited_for_and_comes_back_after_the_sleep(
    weights: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymfleet_rollout.engine_pool._RECOVERY_PAUSE_S", 0.01)
    world = World(weights, num_engines=2)
    await world.policy.start()
    world.engines[1].failure = EngineDown("gone")

    await world.policy.sleep(60)
    world.engines[1].failure = None
    await asyncio.sleep(0.1)
    assert not world.engines[1].is_up, "nothing is loaded while the others sleep"
    assert not await world.policy.admit(NumberedEngine("new", weights(0)))
    await world.policy.wake()

    async with asyncio.timeout(10):
        while not world.engines[1].is_up:  # noqa: ASYNC110 - a recovery has no event
            await asyncio.sleep(0.01)
    assert world.engines[1].did == ["load 0"]


async def test_an_engine_that_does_not_wake_ends_the_policy(world: World) -> None:
    await world.policy.sleep(60)
    world.engines[0].wake_failure = EngineDied("out of memory")
    waiting = asyncio.create_task(world.ask())

    with pytest.raises(PolicyUnavailable, match="an engine did not wake: out of memory"):
        await world.policy.wake()

    with pytest.raises(PolicyUnavailable):
        await waiting
    assert world.policy.failed.is_set()
    with pytest.raises(NotReady):
        await world.policy.check_ready()


async def test_an_engine_of_ones_own_need_not_sleep(weights: Callable[[int], Path]) -> None:
    class Awake(NumberedEngine):
        async def sleep(self) -> None:
            await super(NumberedEngine, self).sleep()

    policy = Policy(
        [Awake("mine", weights(0))], model="m", base_path=weights(0), backend="t", dtype="float32", vocab_size=1000,
        sleep_mode=True,
    )  # fmt: skip
    await policy.start()

    with pytest.raises(CannotSleep, match="the engine mine cannot sleep"):
        await policy.sleep(60)


async def test_who_was_not_started_for_it_stays_awake(world: World) -> None:
    world.policy._sleep_mode = False

    with pytest.raises(CannotSleep, match="not started for it: GYMFLEET_ROLLOUT_SLEEP_MODE"):
        await world.policy.sleep(60)

    assert world.engines[0].did == []


@pytest.mark.parametrize("lease_s", [0, -1, 3601, "1"])
def test_a_lease_has_an_end(lease_s: object) -> None:
    with pytest.raises(ValidationError):
        SleepRequest.model_validate({"lease_s": lease_s})


@pytest.mark.parametrize("colocated", [True, False])
def test_engines_are_made_for_sleep_where_the_recipe_has_them_colocated(colocated: bool, tmp_path: Path) -> None:
    settings = settings_for(make_recipe(placement={"colocated": colocated}), tmp_path).model_validate({})

    assert settings.sleep_mode is colocated


class _Sleeper:
    """vLLM's engine as far as it sleeps and wakes."""

    def __init__(self, answer: bool | None) -> None:
        self.answer = answer
        self.woken = 0

    def is_sleeping(self) -> bool:
        return True

    def wake_up(self) -> bool | None:
        self.woken += 1
        return self.answer


@pytest.mark.parametrize("answer", [pytest.param(True, id="as vLLM says it"), pytest.param(None, id="an older vLLM")])
def test_an_engine_that_woke_goes_on(answer: bool | None) -> None:
    core = VllmCore.__new__(VllmCore)
    core._engine = _Sleeper(answer)

    core.wake()

    assert core._engine.woken == 1


def test_an_engine_that_woke_in_part_is_an_error() -> None:
    core = VllmCore.__new__(VllmCore)
    core._engine = _Sleeper(False)

    with pytest.raises(RuntimeError, match="still asleep"):
        core.wake()
