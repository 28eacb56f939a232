"""Staging, deciding, and replicas that go down. Real engines: tests/conformance/test_inference_backends.py."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from gymfleet_contracts.rollout import Sampling, StageVersion
from gymfleet_kit.app import NotReady
from gymfleet_rollout.errors import PolicyUnavailable, PolicyUpdateFailed
from gymfleet_rollout.inference.base import (
    Continuation,
    EngineDied,
    Generation,
    InferenceError,
    Replica,
    ReplicaDown,
    WeightsRejected,
)
from gymfleet_rollout.policy import Policy
from pydantic import ValidationError
from safetensors.torch import save_file


class NumberedReplica(Replica):
    """Its weights are a directory whose name is a number; every token that it writes is that number."""

    def __init__(self, name: str, weights: Path) -> None:
        self.name = name
        self.max_model_len = 100
        self.weights = weights
        self.salts: list[str] = []
        self.held: list[asyncio.Event] = []
        self.interrupted = asyncio.Event()
        self.failure: InferenceError | None = None
        self.load_failure: InferenceError | None = None
        self.forgets = False
        """Loads nothing but says that it did."""
        self.num_loads = 0
        self.seeds: list[int | None] = []

    async def start(self) -> None: ...

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop_token_ids: tuple[int, ...],
        cache_salt: str,
    ) -> Continuation:
        if self.failure is not None:
            raise self.failure
        self.salts.append(cache_salt)
        self.seeds.append(sampling.seed)
        number, logprob = int(self.weights.name), -float(self.weights.name)
        if max_tokens == 50 and len(prompt_token_ids) == 1:  # a long one: three tokens, then it waits
            self.num_in_flight += 1
            await self.interrupted.wait()
            self.num_in_flight -= 1
            return Continuation([number] * 3, [logprob] * 3, None)
        return Continuation([number] * max_tokens, [logprob] * max_tokens, "length")

    async def interrupt(self) -> None:
        self.interrupted.set()

    async def load(self, weights_path: Path) -> None:
        self.num_loads += 1
        if self.load_failure is not None:
            raise self.load_failure
        if not self.forgets:
            self.weights = weights_path

    async def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None: ...


@pytest.fixture
def weights(tmp_path: Path) -> Callable[[int], Path]:
    def directory(number: int) -> Path:
        path = tmp_path / str(number)
        if not path.exists():
            path.mkdir()
            save_file({"w": torch.zeros(2)}, path / "model.safetensors")
        return path

    return directory


class World:
    def __init__(self, weights: Callable[[int], Path], num_replicas: int = 1) -> None:
        self.weights = weights
        self.replicas = [NumberedReplica(f"r{place}", weights(0)) for place in range(num_replicas)]
        self.policy = Policy(
            self.replicas, model="m", base_path=weights(0), backend="test", dtype="float32", vocab_size=1000
        )

    async def ask(self, max_tokens: int = 2, seed: int | None = None) -> Generation:
        return await self.policy.generate((1,), max_tokens=max_tokens, sampling=Sampling(seed=seed), stop_token_ids=())

    def body(self, version: int, **changes: Any) -> StageVersion:
        fields = {"version": version, "weights_path": str(self.weights(version)), "probe_prompts": ((1, 2),)}
        return StageVersion.model_validate({**fields, "probe_max_tokens": 4, **changes})


@pytest.fixture
async def world(weights: Callable[[int], Path]) -> World:
    world = World(weights)
    await world.policy.start()
    return world


async def test_a_resumed_reply_counts_its_tokens_and_draws_new_numbers(world: World) -> None:
    task = asyncio.create_task(world.ask(50, seed=7))
    await asyncio.sleep(0)
    await world.policy.stage(world.body(4))
    await world.policy.commit(4)

    answer = await task

    assert answer.token_ids == (0,) * 3 + (4,) * 47
    assert answer.logprobs == (0.0,) * 3 + (-4.0,) * 47
    assert (answer.version_min, answer.version_max) == (0, 4)
    assert [seed for seed in world.replicas[0].seeds if seed is not None] == [7, 10]


async def test_every_version_has_its_own_cache_salt(world: World) -> None:
    await world.ask()
    await world.policy.stage(world.body(3))
    await world.policy.commit(3)
    await world.ask()

    assert world.replicas[0].salts[-4:] == ["0", "0", "3", "3"], "rollout, probe before, probe after, rollout"


async def test_weights_that_cannot_be_brought_back_end_the_policy(world: World) -> None:
    world.replicas[0].load_failure = WeightsRejected("half of it")
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
    world.replicas[0].forgets = True

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
    first, _ = world.replicas
    first.failure, first.weights = ReplicaDown("connection refused"), weights(0)  # its process was restarted

    answers = await asyncio.gather(*(world.ask() for _ in range(8)))
    with pytest.raises(PolicyUpdateFailed, match="r0 is down"):
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
    world.replicas[0].failure = ReplicaDown("connection refused")
    task = asyncio.create_task(world.ask())
    await asyncio.sleep(0.02)

    assert not task.done()
    with pytest.raises(NotReady, match="r0 is down"):
        await world.policy.check_ready()
    world.replicas[0].failure = None
    async with asyncio.timeout(10):
        assert (await task).token_ids == (0, 0)


async def test_a_dead_engine_is_given_up(world: World) -> None:
    world.replicas[0].failure = EngineDied("segmentation fault")

    with pytest.raises(EngineDied):
        await world.ask()

    assert world.policy.failed.is_set()
    with pytest.raises(PolicyUnavailable, match="segmentation fault"):
        await world.ask()


async def test_refusing_again_changes_nothing(world: World) -> None:
    await world.policy.stage(world.body(1))
    await world.policy.refuse(1)
    loads = world.replicas[0].num_loads

    state = await world.policy.refuse(1)

    assert (state.live_version, state.staged_version, world.replicas[0].num_loads) == (0, None, loads)


async def test_a_probe_without_tokens_is_no_probe(world: World) -> None:
    with pytest.raises(ValidationError, match="probe_prompts"):
        world.body(1, probe_prompts=((),))
