"""Several rollout replicas under one trainer: every process is real, each replica has a vLLM of its own."""

import asyncio
import json
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from gymfleet_contracts.recipe import load_recipe
from gymfleet_contracts.rollout import EpisodeLimits, GroupRequest, LivePolicy, SubmitJob
from gymfleet_contracts.session import OpenSession
from gymfleet_contracts.streams import LIVE_POLICY, ROLLOUT_REQUESTS, trajectories_scored
from gymfleet_kit.streams import RedisClient, StreamProducer, connect, disconnect
from gymfleet_trainer.errors import PublishRefused
from gymfleet_trainer.publish.publisher import Publisher
from gymfleet_trainer.publish.rollout_replicas import RolloutReplicas
from gymfleet_trainer.run.checkpoint import Checkpoints
from gymfleet_trainer.run.run_directory import RunDirectory
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.run.torch_thread import TorchThread
from gymfleet_trainer.settings import TrainerSettings
from transformers import AutoModelForCausalLM

from tests.fixtures.trainer_runs import TrainerRun
from tests.fleet import Fleet, ServiceProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TIMEOUT_S = 300.0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Fleet]:
    """Two of everything but the gateway."""
    with Fleet(tmp_path_factory.mktemp("pair"), tiny_model, rollout={"LEASE_S": "3"}, scale=2) as fleet:
        yield fleet


@pytest.fixture
async def redis(pair: Fleet) -> AsyncIterator[RedisClient]:
    client = connect(pair.redis.url)
    try:
        yield client
    finally:
        await client.delete(LIVE_POLICY)
        await disconnect(client)


class Suspicious:
    """The model by transformers; its log-probabilities are off where `wrong` says so of the how manieth answer."""

    def __init__(self, path: Path) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self.asked = 0
        self.wrong: Callable[[int], bool] = lambda _: False

    @property
    def vocab_size(self) -> int:
        return int(self._model.config.vocab_size)

    def save_weights(self, directory: Path) -> None:
        self._model.save_pretrained(directory)

    @torch.no_grad()
    def sampled_logprobs(self, prompts: list[list[int]], samples: list[list[int]]) -> list[list[float]]:
        offset = 0.01 if self.wrong(self.asked) else 0.0
        self.asked += 1
        rows = []
        for prompt, sample in zip(prompts, samples, strict=True):
            logits = self._model(torch.tensor([prompt + sample])).logits[0, len(prompt) - 1 : -1]
            chosen = logits.log_softmax(-1).gather(1, torch.tensor(sample)[:, None])[:, 0]
            rows.append([float(value) + offset for value in chosen])
        return rows


class Trainer:
    """The publishing half of a trainer, in this process."""

    def __init__(self, fleet: RolloutReplicas, publisher: Publisher, learner: Suspicious) -> None:
        self.fleet = fleet
        self.publisher = publisher
        self.learner = learner
        self.state = RunState(run_id="r", recipe_hash="h")


@pytest.fixture
async def trainer(pair: Fleet, redis: RedisClient, tiny_model: Path, tmp_path: Path) -> AsyncIterator[Trainer]:
    recipe = load_recipe(TrainerRun(pair, tmp_path, tiny_model).recipe)
    directory = RunDirectory(tmp_path / "run")
    urls = ",".join(rollout.url for rollout in pair.rollouts)
    fleet = RolloutReplicas(TrainerSettings(rollout_url=urls), redis, "r")
    with directory, TorchThread(1) as worker:
        learner = await worker.run(Suspicious, tiny_model)
        checkpoints = Checkpoints(directory.checkpoints, keep=2)
        yield Trainer(fleet, Publisher(fleet, learner, worker, directory, checkpoints, recipe), learner)
    await fleet.ownership.withdraw()
    await fleet.aclose()


def ask(service: ServiceProcess, path: str) -> httpx.Response:
    return httpx.get(f"{service.url}{path}", timeout=30, trust_env=False)


def send(service: ServiceProcess, path: str, body: Any) -> httpx.Response:
    return httpx.post(f"{service.url}{path}", json=body, timeout=30, trust_env=False)


def live(service: ServiceProcess) -> int:
    version: int = ask(service, "/v1/policy").json()["live_version"]
    return version


def num_loads(service: ServiceProcess) -> float:
    found = re.search(r"^gymfleet_rollout_update_seconds_count (\S+)$", ask(service, "/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def engine_is_up(service: ServiceProcess) -> bool:
    try:
        return ask(service, "/v1/policy").is_success
    except httpx.TransportError:
        return False


def group(run_id: str, group_id: str) -> GroupRequest:
    return GroupRequest(
        run_id=run_id, group_id=group_id, task=OpenSession(env="maze", task_index=0), num_samples=2,
        limits=EpisodeLimits(max_turns=1, max_response_tokens=8, max_context_tokens=1024),
    )  # fmt: skip


async def test_a_version_reaches_every_replica(pair: Fleet, trainer: Trainer, redis: RedisClient) -> None:
    first = await trainer.publisher.publish(trainer.state)
    second = await trainer.publisher.publish(trainer.state)

    assert second.version == first.version + 1
    assert second.replicas == 2
    assert [live(rollout) for rollout in pair.rollouts] == [second.version] * 2
    said = LivePolicy.model_validate_json(await redis.get(LIVE_POLICY) or b"")
    assert (said.run_id, said.version) == ("r", second.version)
    assert 0 < await redis.ttl(LIVE_POLICY) <= 30
    assert all(ask(rollout, "/readyz").is_success for rollout in pair.rollouts)


async def test_the_next_run_counts_on_above_every_version_that_ever_was(pair: Fleet, trainer: Trainer) -> None:
    before = (await trainer.publisher.publish(trainer.state)).version
    trainer.state = RunState(run_id="r2", recipe_hash="h")

    publication = await trainer.publisher.publish(trainer.state)

    assert publication.version == before + 1
    assert [live(rollout) for rollout in pair.rollouts] == [before + 1] * 2


async def test_one_replica_that_disagrees_twice_has_the_version_refused_everywhere(
    pair: Fleet, trainer: Trainer
) -> None:
    before = (await trainer.publisher.publish(trainer.state)).version
    trainer.learner.asked, trainer.learner.wrong = 0, lambda place: place % 2 == 1

    with pytest.raises(PublishRefused, match=r"log-probability is 0\.0") as caught:
        await trainer.publisher.publish(trainer.state)

    assert pair.rollouts[1].url in str(caught.value), "it is named"
    assert trainer.learner.asked == 4, "two replicas, twice"
    policies = [ask(rollout, "/v1/policy").json() for rollout in pair.rollouts]
    assert [(policy["live_version"], policy["staged_version"]) for policy in policies] == [(before, None)] * 2


async def test_a_replica_that_is_killed_before_the_commit_gets_the_version_alone(
    pair: Fleet, trainer: Trainer, redis: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    survivor, victim = pair.rollouts
    commit = trainer.fleet.commit

    async def after_a_death(version: int, urls: Iterable[str]) -> None:
        victim.stop(signal.SIGKILL)
        await commit(version, urls)

    monkeypatch.setattr(trainer.fleet, "commit", after_a_death)
    try:
        version = (await trainer.publisher.publish(trainer.state)).version
    finally:
        monkeypatch.undo()
        if victim.process is None:
            victim.start()
    assert live(survivor) == version
    await asyncio.to_thread(wait_until, lambda: engine_is_up(victim), "the engine did not start")
    present = await trainer.fleet.present()
    awaited = ask(victim, "/readyz")
    job = SubmitJob(groups=(group("by-hand", "g"),)).model_dump(mode="json")
    refused = send(victim, "/v1/jobs", job)
    trajectories = await played(redis, "meanwhile")
    untouched = ask(victim, "/v1/policy").json()["tokens_generated"]

    # A newcomer that computes something else has no say, and is not asked again for the same version.
    trainer.learner.asked, trainer.learner.wrong = 0, lambda _: True
    doubted = await trainer.publisher.bring_up(trainer.state, present)
    trainer.learner.wrong = lambda _: False
    unasked = await trainer.publisher.bring_up(trainer.state, present)
    next_version = (await trainer.publisher.publish(trainer.state)).version
    left_out, loads = live(victim), num_loads(survivor)
    brought = await trainer.publisher.bring_up(trainer.state, await trainer.fleet.present())
    again = await trainer.publisher.bring_up(trainer.state, await trainer.fleet.present())

    reason = f"waiting for version {version} of run r from the trainer"
    assert (awaited.status_code, awaited.json()["detail"]) == (503, reason)
    assert (refused.status_code, refused.json()["detail"]) == (503, reason)
    assert untouched == 0, "it left the groups to the other one"
    assert {t["policy"]["version_min"] for t in trajectories} == {version}
    assert (doubted, unasked, left_out) == (False, False, 0)
    assert (brought, again) == (True, False)
    assert live(victim) == live(survivor) == next_version == version + 1, "the same number"
    assert num_loads(survivor) == loads, "the other went on sampling"
    assert ask(victim, "/readyz").is_success
    later = await played(redis, "afterwards", 40)
    assert ask(victim, "/v1/policy").json()["tokens_generated"] > 0
    assert {t["policy"]["version_min"] for t in later} == {next_version}


async def test_a_replica_is_free_when_the_key_expires(pair: Fleet, redis: RedisClient) -> None:
    said = LivePolicy(run_id="dead", version=10**6).model_dump_json()
    replica = pair.rollouts[0]

    await redis.set(LIVE_POLICY, said, px=5_000)
    await asyncio.to_thread(wait_until, lambda: "of run dead" in ask(replica, "/readyz").text, "it does not wait")
    await asyncio.to_thread(replica.wait_ready)

    assert await redis.get(LIVE_POLICY) is None


async def played(redis: RedisClient, run_id: str, num_groups: int = 5) -> list[dict[str, Any]]:
    """Have groups of two played by whoever takes them, and scored."""
    producer = StreamProducer(redis, ROLLOUT_REQUESTS)
    for place in range(num_groups):
        await producer.publish(group(run_id, f"g{place}"))
    deadline = time.monotonic() + TIMEOUT_S
    while await redis.xlen(trajectories_scored(run_id)) < 2 * num_groups:
        assert time.monotonic() < deadline, f"not all episodes of {run_id} came back"
        await asyncio.sleep(0.05)
    entries: Any = await redis.xrange(trajectories_scored(run_id))
    return [json.loads(fields[b"body"])["trajectory"] for _, fields in entries]


def metrics_of(run: TrainerRun) -> str:
    return httpx.get(f"{run.url}/metrics", timeout=30, trust_env=False).text


def test_a_run_on_two_of_everything_takes_in_a_replica_that_comes_later(
    pair: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    late = pair.rollouts[1]
    late.stop()
    run = TrainerRun(pair, tmp_path, tiny_model, steps=400, sft="", max_staleness=1)
    run.start()
    run.wait_until(lambda: len(run.metrics("rl_step")) > 0, timeout_s=TIMEOUT_S)

    late.start()
    wait_until(lambda: engine_is_up(late), "the engine did not start")
    while (policy := ask(late, "/v1/policy").json())["live_version"] == 0:
        assert policy["tokens_generated"] == 0, "nothing is sampled from the initial weights"
        assert run.process is not None
        assert run.process.poll() is None, run.tail()
    joined_at = policy["live_version"]
    wait_until(lambda: int(ask(late, "/v1/policy").json()["tokens_generated"]) > 0, "it takes no part")
    wait_until(lambda: live(late) > joined_at, "it takes no part in the next publish")
    wait_until(lambda: 'gymfleet_trainer_replicas{state="current"} 2.0' in metrics_of(run), "it is not counted")
    run.kill(signal.SIGTERM)

    assert run.wait() == 128 + signal.SIGTERM
    state = run.state()
    assert state is not None
    assert not [reason for reason in state.dropped.values() if "version 0 " in reason]
    assert state.counts["republished"] >= 1
    versions = [line["version"] for line in run.metrics("publish")]
    assert versions == list(range(versions[0], versions[0] + len(versions))), "no number for the newcomer alone"
    assert joined_at in versions
    assert max(line["replicas"] for line in run.metrics("publish")) == 2
    assert all(int(ask(reward, "/metrics").text.count("gymfleet_reward_scored_total{")) for reward in pair.rewards)
