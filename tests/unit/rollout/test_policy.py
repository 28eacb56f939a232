"""Staging, deciding, and replicas that go down. Real engines: tests/conformance/test_inference_backends.py."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.rollout import Sampling
from gymfleet_kit.app import NotReady
from gymfleet_rollout.backend import EngineConfig
from gymfleet_rollout.backends.server import Server, ServerOptions
from gymfleet_rollout.errors import PolicyUnavailable, PolicyUpdateFailed
from gymfleet_rollout.inference.base import Continuation, EngineDied, EngineDown, InferenceError, WeightsRejected
from gymfleet_rollout.policy import Policy
from gymfleet_rollout.replicas import Replicas
from pydantic import ValidationError

from tests.fixtures.numbered_engine import NumberedEngine, World
from tests.fixtures.resolver import Resolver


async def test_a_resumed_reply_counts_its_tokens_and_draws_new_numbers(world: World) -> None:
    task = asyncio.create_task(world.ask(50, seed=7))
    await asyncio.sleep(0)
    await world.policy.stage(world.body(4))
    await world.policy.commit(4)
    world.engines[0].num_cached_tokens = 1

    answer = await task

    assert answer.token_ids == (0,) * 3 + (4,) * 47
    assert answer.logprobs == (0.0,) * 3 + (-4.0,) * 47
    assert [(span.version, span.num_tokens) for span in answer.versions] == [(0, 3), (4, 47)]
    assert [seed for seed in world.engines[0].seeds if seed is not None] == [7, 10]
    assert answer.num_prefilled_tokens == 1 + 3, "one, and then four of which one was cached"


async def test_tokens_count_before_their_reply_has_ended(world: World) -> None:
    task = asyncio.create_task(world.ask(50))
    await asyncio.sleep(0)

    state = world.policy.state()

    assert (state.tokens_sampled, state.tokens_generated) == (3, 0)
    task.cancel()


async def test_an_engine_that_says_nothing_is_not_asked_for_ever(world: World) -> None:
    async def nothing(*_: Any) -> Continuation:
        await asyncio.sleep(0)
        return Continuation([], [], None)

    world.engines[0].generate = nothing  # type: ignore[assignment, method-assign]

    with pytest.raises(InferenceError, match="answered 100 times with neither a token nor the end of the reply"):
        await asyncio.wait_for(world.ask(50), 10)


async def test_what_only_asks_for_health_is_no_sign_of_life(world: World) -> None:
    await world.policy.check_ready()

    assert world.policy.state().tokens_sampled == 0


async def test_a_publish_does_not_count_against_a_time_limit(world: World) -> None:
    async def within_a_limit() -> str:
        try:
            async with world.policy.timeout(0.2):
                await asyncio.sleep(30)
        except TimeoutError:
            return "over"
        return "never"

    before = asyncio.create_task(within_a_limit())
    await asyncio.sleep(0)
    await world.policy.stage(world.body(4))
    within = asyncio.create_task(within_a_limit())
    done, _ = await asyncio.wait([before, within], timeout=0.5)
    assert not done, "both stand still while a version is decided on"

    await world.policy.commit(4)

    async with asyncio.timeout(10):
        assert [await before, await within] == ["over", "over"]


async def test_a_limit_that_was_kept_is_forgotten(world: World) -> None:
    async with world.policy.timeout(30):
        await world.policy.stage(world.body(4))
    async with world.policy.timeout(30):
        pass

    await world.policy.refuse(4)

    assert world.policy._deadlines._running == set()


async def test_every_version_has_its_own_cache_salt(world: World) -> None:
    await world.ask()
    await world.policy.stage(world.body(3))
    await world.policy.commit(3)
    await world.ask()

    assert world.engines[0].salts[-4:] == ["0", "0", "3", "3"], "rollout, probe before, probe after, rollout"


async def test_weights_that_cannot_be_brought_back_end_the_policy(world: World) -> None:
    world.engines[0].load_failure = WeightsRejected("half of it")
    with pytest.raises(PolicyUpdateFailed, match="half of it"):
        await world.policy.stage(world.body(1))
    with pytest.raises(PolicyUnavailable):  # the same fault met the restore: nothing may be generated any more
        await world.ask()

    assert world.policy.failed.is_set()
    with pytest.raises(NotReady, match="version 0 could not be restored"):
        await world.policy.check_ready()
    with pytest.raises(PolicyUnavailable):
        await world.policy.stage(world.body(2))


async def test_a_refusal_that_restores_nothing_is_noticed(world: World) -> None:
    await world.policy.stage(world.body(1))
    world.engines[0].forgets = True

    await world.policy.refuse(1)

    with pytest.raises(PolicyUnavailable, match="answers unlike before, by 1"):
        await world.ask()


async def test_a_replica_that_is_down_is_passed_over_until_it_has_the_live_weights(
    weights: Callable[[int], Path],
) -> None:
    world = World(weights, 2)
    await world.policy.start()
    await world.policy.stage(world.body(5))
    await world.policy.commit(5)
    first, _ = world.engines
    first.failure, first.weights = EngineDown("connection refused"), weights(0)  # its process was restarted

    answers = await asyncio.gather(*(world.ask() for _ in range(8)))
    with pytest.raises(PolicyUnavailable, match="r0 is down"):
        await world.policy.stage(world.body(6))
    await world.policy.check_ready()
    first.failure = None
    async with asyncio.timeout(10):
        while not first.is_up:  # noqa: ASYNC110 - the recovery has no event of its own
            await asyncio.sleep(0.01)

    assert {answer.token_ids for answer in answers} == {(5, 5)}
    assert first.weights == weights(5)
    await world.policy.close()


async def test_with_no_replica_left_a_request_waits(world: World) -> None:
    world.engines[0].failure = EngineDown("connection refused")
    task = asyncio.create_task(world.ask())
    await asyncio.sleep(0.02)

    assert not task.done()
    with pytest.raises(NotReady, match="r0 is down"):
        await world.policy.check_ready()
    world.engines[0].failure = None
    async with asyncio.timeout(10):
        assert (await task).token_ids == (0, 0)


async def test_a_dead_engine_is_given_up(world: World) -> None:
    world.engines[0].failure = EngineDied("segmentation fault")

    with pytest.raises(EngineDied):
        await world.ask()

    assert world.policy.failed.is_set()
    with pytest.raises(PolicyUnavailable, match="segmentation fault"):
        await world.ask()


async def test_refusing_again_changes_nothing(world: World) -> None:
    await world.policy.stage(world.body(1))
    await world.policy.refuse(1)
    loads = world.engines[0].num_loads

    state = await world.policy.refuse(1)

    assert (state.live_version, state.staged_version, world.engines[0].num_loads) == (0, None, loads)


async def test_a_probe_without_tokens_is_no_probe(world: World) -> None:
    with pytest.raises(ValidationError, match="probe_prompts"):
        world.body(1, probe_prompts=((),))


async def test_a_server_that_joins_has_the_live_weights_before_it_serves(weights: Callable[[int], Path]) -> None:
    world = World(weights)
    await world.policy.start()
    await world.policy.stage(world.body(5))
    await world.policy.commit(5)
    newcomer = NumberedEngine("new", weights(0))

    assert await world.policy.admit(newcomer)
    world.engines[0].failure = EngineDown("connection refused")
    answers = await asyncio.gather(*(world.ask() for _ in range(4)))

    assert world.policy.replica_names == ["r0", "new"]
    assert newcomer.weights == weights(5)
    assert {answer.token_ids for answer in answers} == {(5, 5)}
    await world.policy.forget_all_but(["new"])
    assert world.policy.replica_names == ["new"], "who is down and not listed any more"
    await world.policy.stage(world.body(6))
    assert (await world.policy.commit(6)).live_version == 6, "and stands in no publish's way"
    await world.policy.close()


async def test_a_server_that_answers_something_else_is_not_taken_in(weights: Callable[[int], Path]) -> None:
    world = World(weights)
    await world.policy.start()
    stranger = NumberedEngine("new", weights(3))
    stranger.forgets = True
    short = NumberedEngine("short", weights(0))
    short.max_model_len = 99

    with pytest.raises(InferenceError, match="new answers unlike r0, by 3"):
        await world.policy.admit(stranger)
    with pytest.raises(InferenceError, match="short holds 99 tokens, not 100"):
        await world.policy.admit(short)

    assert world.policy.replica_names == ["r0"]


async def test_nobody_joins_or_leaves_while_a_version_is_decided_on(weights: Callable[[int], Path]) -> None:
    world = World(weights, 2)
    await world.policy.start()
    await world.policy.stage(world.body(1))
    world.engines[0].is_up = False
    newcomer = NumberedEngine("new", weights(0))

    admitted = await world.policy.admit(newcomer)
    await world.policy.forget_all_but([])

    assert not admitted
    assert world.policy.replica_names == ["r0", "r1"]
    world.engines[0].is_up = True
    await world.policy.commit(1)
    assert await world.policy.admit(newcomer)
    assert newcomer.weights == weights(1)


async def test_servers_come_and_go_by_name(weights: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = Resolver()
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolver)
    made: dict[str, NumberedEngine] = {}

    class Numbered(Server):
        def engine(self, replica: str, config: EngineConfig) -> Any:
            made[replica] = NumberedEngine("unnamed", config.model)
            return made[replica]

    options = ServerOptions.model_validate({"discover": ["http://vllm.fleet:8000"]})
    servers = Replicas(Numbered(options), EngineConfig(model=weights(0)))
    resolver.addresses["vllm.fleet"] = ["10.0.0.1"]
    policy = Policy(
        await servers.first(), model="m", base_path=weights(0), backend="server", dtype="float32", vocab_size=1000
    )
    await policy.start()
    first, second = "http://10.0.0.1:8000", "http://10.0.0.2:8000"
    assert policy.replica_names == [first]

    resolver.addresses["vllm.fleet"] = ["10.0.0.1", "10.0.0.2"]
    await servers.look(policy)
    async with asyncio.timeout(10):
        while policy.replica_names != [first, second]:  # noqa: ASYNC110 - joining has no event of its own
            await asyncio.sleep(0)
    resolver.addresses["vllm.fleet"] = ["10.0.0.2"]
    await servers.look(policy)
    assert policy.replica_names == [first, second], "unlisted, but it answers"
    made[first].failure = EngineDown("connection refused")
    await policy.generate((1,), max_tokens=2, sampling=Sampling(), stop_token_ids=())
    await servers.look(policy)

    assert policy.replica_names == [second]
    await policy.close()
