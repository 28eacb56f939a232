"""One trainer, many rollout replicas: DNS, HTTP and Redis are real, the engines are not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog
import torch
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.rollout import LivePolicy
from gymfleet_contracts.streams import LAST_POLICY_VERSION, LIVE_POLICY, POLICY_OWNER
from gymfleet_kit.access import AccessRules
from gymfleet_kit.app import create_app
from gymfleet_kit.serve import bind
from gymfleet_kit.streams import RedisClient
from gymfleet_rollout.routes import policy as routes
from gymfleet_trainer.app import serving
from gymfleet_trainer.errors import PublishRefused, ReplicasTaken, Stalled
from gymfleet_trainer.publish import ownership
from gymfleet_trainer.publish.ownership import PolicyOwnership
from gymfleet_trainer.publish.policy_endpoint import VersionRefused
from gymfleet_trainer.publish.publisher import Publisher
from gymfleet_trainer.publish.rollout_replicas import RolloutReplicas
from gymfleet_trainer.run.checkpoint import Checkpoints
from gymfleet_trainer.run.run_directory import RunDirectory
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.run.torch_thread import TorchThread
from gymfleet_trainer.settings import TrainerSettings
from prometheus_client import REGISTRY
from pydantic import SecretStr
from safetensors.torch import save_file

from tests.fixtures.numbered_engine import World, numbered_weights
from tests.fixtures.ports import free_port
from tests.fixtures.resolver import Resolver

KEY = SecretStr("a-key-of-some-length")
RECIPE = Recipe.model_validate(
    {
        "name": "r",
        "environments": [{"name": "maze"}],
        "stages": [{"kind": "measure"}],
        "model": {"path": "m"},
        "inference": {"max_model_len": 64},
        "rollout": {"limits": {"max_context_tokens": 64}},
        "publish": {"probe_prompts": 2, "probe_max_tokens": 2},
    }
)


class Model:
    """The trainer's side of what a numbered engine computes."""

    vocab_size = 1000
    number = 0
    """Of the version that was written last."""

    def save_weights(self, directory: Path) -> None:
        self.number = int(directory.name.rpartition("-")[2])
        save_file({"w": torch.zeros(2)}, directory / "model.safetensors")

    def sampled_logprobs(self, prompts: list[list[int]], samples: list[list[int]]) -> list[list[float]]:
        return [[-float(self.number)] * len(sample) for sample in samples]


class Site:
    """Rollout replicas at 127.0.0.1, 127.0.0.2 and so on, all on one port, under one name."""

    def __init__(self, resolver: Resolver, directory: Path) -> None:
        self.port = free_port()
        self.resolver = resolver
        self.worlds: dict[str, World] = {}
        self._directory = directory
        self._stacks: dict[str, contextlib.AsyncExitStack] = {}

    async def start(self, *addresses: str) -> None:
        """A fresh replica at each, which DNS names."""
        for address in addresses:
            world = self.worlds[address] = World(partial(numbered_weights, self._directory))
            await world.policy.start()
            app = create_app("rollout", access=AccessRules(KEY))
            app.state.service = SimpleNamespace(policy=world.policy)
            for router in (routes.router, routes.control):
                app.include_router(router)
            stack = self._stacks[address] = contextlib.AsyncExitStack()
            listener = bind(address, self.port)
            await stack.enter_async_context(serving(app, listener))
            stack.push_async_callback(world.policy.close)
        self.resolver.addresses["rollout.fleet"] = sorted(self.worlds)

    async def kill(self, address: str) -> None:
        """It is gone; DNS names it still."""
        await self._stacks.pop(address).aclose()

    async def close(self) -> None:
        for address in list(self._stacks):
            await self.kill(address)

    def live(self) -> dict[str, int]:
        return {address: world.policy.live_version for address, world in self.worlds.items()}

    def num_loads(self, address: str) -> int:
        return self.worlds[address].engines[0].num_loads


ONE, TWO, THREE = "127.0.0.1", "127.0.0.2", "127.0.0.3"


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Site]:
    loop = asyncio.get_running_loop()
    resolver = Resolver(loop.getaddrinfo)
    monkeypatch.setattr(loop, "getaddrinfo", resolver)
    made = Site(resolver, tmp_path)
    yield made
    await made.close()


class Trainer:
    def __init__(self, site: Site, redis: RedisClient, run_dir: Path, worker: TorchThread) -> None:
        settings = TrainerSettings(
            rollout_url=f"http://rollout.fleet:{site.port}", rollout_api_key=KEY, publish_timeout_s=3
        )
        directory = RunDirectory(run_dir)
        self.fleet = RolloutReplicas(settings, redis, "r")
        self.publisher = Publisher(
            self.fleet, Model(), worker, directory, Checkpoints(directory.checkpoints, keep=2), RECIPE
        )
        self.state = RunState(run_id="r", recipe_hash="h")
        run_dir.mkdir()

    async def publish(self) -> int:
        self.state.age += 1
        return (await self.publisher.publish(self.state)).version

    async def bring_up(self) -> bool:
        return await self.publisher.bring_up(self.state, await self.fleet.glance())


@pytest.fixture
async def trainer(site: Site, redis: RedisClient, tmp_path: Path) -> AsyncIterator[Trainer]:
    with TorchThread(1) as worker:
        made = Trainer(site, redis, tmp_path / "run", worker)
        yield made
        await made.fleet.aclose()


async def test_every_address_of_the_name_gets_the_version(site: Site, trainer: Trainer) -> None:
    await site.start(ONE, TWO, THREE)

    versions = [await trainer.publish() for _ in range(2)]

    assert versions == [1, 2]
    assert site.live() == {ONE: 2, TWO: 2, THREE: 2}


async def test_who_gives_no_answer_is_left_out_and_gets_it_alone_when_it_is_back(site: Site, trainer: Trainer) -> None:
    await site.start(ONE, TWO)
    await trainer.publish()
    await site.kill(TWO)

    with structlog.testing.capture_logs() as lines:
        version = await trainer.publish()
        await trainer.bring_up()
        absent = REGISTRY.get_sample_value("gymfleet_trainer_replicas", {"state": "absent"})
        await site.start(TWO)
        loads = site.num_loads(ONE)
        brought = await trainer.bring_up()

    assert (version, brought, absent) == (2, True, 1.0)
    assert site.live() == {ONE: 2, TWO: 2}
    assert site.num_loads(ONE) == loads, "the other one is not touched"
    events = [line["event"] for line in lines if line["event"].startswith("replica.")]
    assert events == ["replica.absent", "replica.returned", "replica.caught_up"]
    assert not await trainer.bring_up()


async def test_a_newcomer_does_not_hold_up_a_publish(site: Site, trainer: Trainer) -> None:
    await site.start(ONE)
    await trainer.publish()
    await site.start(TWO)
    site.worlds[TWO].engines[0].forgets = True  # loads nothing but says that it did

    version = await trainer.publish()
    with structlog.testing.capture_logs() as lines:
        brought = [await trainer.bring_up() for _ in range(2)]

    assert (version, brought) == (2, [False, False])
    assert site.live() == {ONE: 2, TWO: 0}
    refused = [line for line in lines if line["event"] == "replica.refused"]
    assert [line["replica"] for line in refused] == [f"http://{TWO}:{site.port}"], "once for each version"


async def test_the_only_one_that_disagrees_ends_the_run(site: Site, trainer: Trainer) -> None:
    await site.start(ONE)
    await trainer.publish()
    await site.kill(ONE)
    await site.start(ONE)
    site.worlds[ONE].engines[0].forgets = True

    with pytest.raises(PublishRefused, match="no replica agrees"):
        await trainer.bring_up()


async def test_one_that_disagrees_has_the_version_refused_by_all_and_is_named(site: Site, trainer: Trainer) -> None:
    await site.start(ONE, TWO)
    await trainer.publish()
    site.worlds[TWO].engines[0].forgets = True

    with pytest.raises(PublishRefused, match=f"at http://{TWO}:{site.port}"):
        await trainer.publish()

    assert site.live() == {ONE: 1, TWO: 1}
    assert [world.policy.state().staged_version for world in site.worlds.values()] == [None, None]


async def test_a_replica_that_moves_while_it_is_staged_is_found_again(
    site: Site, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.start(ONE)
    stage = trainer.fleet.stage

    async def after_a_move(*arguments: object, **more: object) -> object:
        if ONE in site.worlds:
            await site.kill(ONE)
            del site.worlds[ONE]
            await site.start(TWO)
        return await stage(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(trainer.fleet, "stage", after_a_move)

    assert await trainer.publish() == 1
    assert site.live() == {TWO: 1}


async def test_with_nobody_there_it_ends_with_a_name(site: Site, trainer: Trainer) -> None:
    await site.start(ONE)
    await site.kill(ONE)

    with pytest.raises(Stalled, match=f"no answer from the rollout service at http://rollout.fleet:{site.port}"):
        await trainer.publish()


async def test_a_wrong_key_is_said_at_once(site: Site, redis: RedisClient) -> None:
    await site.start(ONE)
    url = f"http://rollout.fleet:{site.port}"
    fleet = RolloutReplicas(TrainerSettings(rollout_url=url, rollout_api_key=SecretStr("another-key")), redis, "r")

    with pytest.raises(VersionRefused, match="send this service's key"):
        await fleet.present()
    await fleet.aclose()


async def test_no_number_is_given_twice(site: Site, trainer: Trainer, redis: RedisClient) -> None:
    """A replica that was out of reach for a whole run must not take the next run's version for its own."""
    await site.start(ONE)
    await redis.set(LAST_POLICY_VERSION, 30)

    assert await trainer.publish() == 31
    assert await redis.get(LAST_POLICY_VERSION) == b"31"


async def test_one_with_a_higher_number_has_all_published_anew(site: Site, trainer: Trainer) -> None:
    await site.start(ONE)
    await trainer.publish()
    await site.start(TWO)
    stranger = site.worlds[TWO]
    await stranger.policy.stage(stranger.body(40))
    await stranger.policy.commit(40)

    for _ in range(2):
        assert await trainer.bring_up()

    assert site.live() == {ONE: 41, TWO: 41}
    assert trainer.state.version == 41


async def test_what_is_said_in_redis_is_said_before_the_commit_and_taken_back_at_the_end(
    site: Site, trainer: Trainer, redis: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.start(ONE)
    heard: list[tuple[int | None, int]] = []
    commit = site.worlds[ONE].policy.commit

    async def listening(version: int) -> object:
        said = await redis.get(LIVE_POLICY)
        number = LivePolicy.model_validate_json(said).version if said else None
        heard.append((number, site.worlds[ONE].policy.live_version))
        return await commit(version)

    monkeypatch.setattr(site.worlds[ONE].policy, "commit", listening)
    await trainer.publish()
    after_a_crash = await redis.ttl(LIVE_POLICY)
    await trainer.fleet.ownership.withdraw()

    assert heard == [(1, 0)]
    assert 0 < after_a_crash <= 30
    assert await redis.get(LIVE_POLICY) is None


async def test_one_run_has_the_replicas_and_lets_them_go(redis: RedisClient) -> None:
    first, second = PolicyOwnership(redis, "first"), PolicyOwnership(redis, "second")
    resumed = PolicyOwnership(redis, "first")

    assert [await first.claim(), await second.claim(), await resumed.claim()] == ["", "first", ""]
    assert 0 < await redis.ttl(POLICY_OWNER) <= 30, "a run that was killed does not keep them"

    await resumed.close()
    await first.close()
    assert await second.claim() == ""
    assert await first.claim() == "second"
    await first.withdraw()
    assert await redis.get(POLICY_OWNER) == b"second", "what is another's is left alone"
    await second.close()


async def test_a_lock_that_expires_while_it_is_claimed_is_claimed_again(
    redis: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = PolicyOwnership(redis, "first")
    acquire = run._owned.acquire
    refusals = [False]

    async def refused_once(token: str) -> bool:
        return refusals.pop() if refusals else await acquire(token=token)

    monkeypatch.setattr(run._owned, "acquire", refused_once)

    assert await run.claim() == ""
    assert await redis.get(POLICY_OWNER) == b"first"
    await run.close()
    assert await redis.get(POLICY_OWNER) is None


async def test_who_gets_the_replicas_back_keeps_them(redis: RedisClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "LIVE_POLICY_TTL_S", 1)
    run = PolicyOwnership(redis, "first")
    await run.claim()
    await redis.set(POLICY_OWNER, "other")
    with structlog.testing.capture_logs() as lines:
        while not lines:  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0.05)
    assert [line["event"] for line in lines] == ["policy.fleet_taken"]

    await redis.delete(POLICY_OWNER)
    assert await run.claim() == ""
    await asyncio.sleep(1.5)  # longer than the key lives by itself

    assert await redis.get(POLICY_OWNER) == b"first"
    await run.close()


async def test_who_lost_the_replicas_to_another_run_publishes_no_more(
    site: Site, trainer: Trainer, redis: RedisClient
) -> None:
    await site.start(ONE)
    await trainer.publish()
    await redis.set(POLICY_OWNER, "other")  # as after an outage that outlasted the key

    with pytest.raises(ReplicasTaken, match="run other took the rollout replicas"):
        await trainer.publish()

    assert site.live() == {ONE: 1}


def test_a_url_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match="'rollout:8212' is not the base URL"):
        TrainerSettings(rollout_url="http://a:1, rollout:8212")
