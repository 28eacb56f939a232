"""Costs of an episode in every service but the engine and the trainer: the figures of docs/capacity.md.

The rollout service's own player plays episodes of TextCraft through gateway and env server, with an
engine that answers at once; the trajectories then go over the streams, and the reward service scores
them. It counts the processor time of each process, the bytes that Redis keeps, writes and sends, and
the memory of each process before it has done any work.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
import uvloop
from gymfleet_client import GatewayClient, SessionStream
from gymfleet_contracts.reward import ScoreRequest
from gymfleet_contracts.rollout import EpisodeLimits, GroupRequest, Sampling
from gymfleet_contracts.session import OpenSession
from gymfleet_contracts.streams import TRAJECTORIES_RAW, trajectories_scored
from gymfleet_contracts.trajectory import Trajectory, sampled_by
from gymfleet_kit.chat.image_reader import PlacedImage
from gymfleet_kit.chat.tokens import ChatTokens
from gymfleet_kit.serve import calm_collector
from gymfleet_kit.streams import RedisClient, StreamProducer, connect, disconnect
from gymfleet_rollout.environments import Environments
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.inference.base import Generation
from gymfleet_rollout.player import Player

from benchmarks.command import BenchmarkCommand, Size
from benchmarks.playing import episodes
from benchmarks.processes import cpu_seconds, family, resident_bytes
from benchmarks.record import Row, record
from tests.fixtures import gateway_fleet
from tests.fixtures.gateway_fleet import ServiceProcess
from tests.fixtures.ports import free_port
from tests.fixtures.redis_server import RedisServer
from tests.models import build_tiny_model

ENV: Final = "textcraft"
ENVIRONMENTS: Final = ("textcraft", "sciworld", "os")
RUN_ID: Final = "bench-costs"
TURNS: Final = 10
REPLY: Final = "Thought: I look at what I have before I craft the next thing. Action: inventory"
SCORED_S: Final = 120.0
START_S: Final = 60.0
REFUSED: Final = "http://127.0.0.1:1"
"""An address at which no vLLM server listens."""
SIZES: Final = {
    "episodes": Size(1000, smoke=2),
    "sessions": Size(2000, smoke=4, help="held open at once"),
    "concurrency": Size(256, smoke=2),
}
_POLL_S: Final = 0.02
T = TypeVar("T")


class Instant:
    """A policy without an engine: it gives the same reply at once."""

    model = "instant"
    live_version = 0
    max_model_len = 32_768

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._reply = Generation(tuple(token_ids), (-0.5,) * len(token_ids), "stop", sampled_by(0, len(token_ids)))

    def timeout(self, seconds: float) -> asyncio.Timeout:
        """Return a plain timeout: no weights are ever replaced."""
        return asyncio.timeout(seconds)

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop_token_ids: tuple[int, ...],
        images: Sequence[PlacedImage] = (),
    ) -> Generation:
        """Return the reply; another task may run first, as with any engine."""
        del prompt_token_ids, max_tokens, sampling, stop_token_ids, images
        await asyncio.sleep(0)
        return self._reply


@dataclass(frozen=True)
class Stack:
    """The running services."""

    redis: RedisServer
    env: ServiceProcess
    gateway: ServiceProcess
    reward: ServiceProcess

    def processor_s(self) -> dict[str, float]:
        """Return the processor seconds used so far, by process."""
        front, *shards = family(self.env.pid)
        return {
            "gateway": cpu_seconds(self.gateway.pid),
            "env front": cpu_seconds(front),
            "env shard": sum(map(cpu_seconds, shards)),
            "reward": cpu_seconds(self.reward.pid),
            "redis": cpu_seconds(self.redis.pid),
            "rollout without engine": time.process_time(),
        }

    def resident_mb(self) -> dict[str, float]:
        """Return the resident memory now, by process."""
        return {
            "gateway": resident_bytes([self.gateway.pid]) / 1e6,
            "reward": resident_bytes([self.reward.pid]) / 1e6,
            "redis": resident_bytes([self.redis.pid]) / 1e6,
        }


@dataclass(frozen=True)
class Reading:
    """Counters at one moment."""

    processor_s: Mapping[str, float]
    memory: int
    file: int
    received: int
    sent: int

    @classmethod
    async def take(cls, stack: Stack, client: RedisClient) -> "Reading":
        """Read Redis's own counters, and the kernel's."""
        info: dict[str, Any] = await client.info()
        return cls(
            stack.processor_s(), info["used_memory"], info["aof_current_size"],
            info["total_net_input_bytes"], info["total_net_output_bytes"],
        )  # fmt: skip


@contextmanager
def running(directory: Path) -> Iterator[Stack]:
    """Run Redis, one env server, a gateway with its journal, and the reward service."""
    (directory / "redis").mkdir()
    with RedisServer(directory / "redis") as redis:
        env = gateway_fleet.env_server(directory, ENV, max_sessions="8192")
        gateway = gateway_fleet.gateway(directory, [env.url], redis_url=redis.url)
        port = free_port()
        settings = {"GYMFLEET_REWARD_PORT": str(port), "GYMFLEET_REWARD_REDIS_URL": redis.url}
        reward = ServiceProcess(["gymfleet-reward"], settings, port, directory / "reward.log")
        with gateway_fleet.running(env, gateway, reward):
            yield Stack(redis, env, gateway, reward)


async def held_sessions(stack: Stack, client: RedisClient, number: int, concurrency: int) -> list[Row]:
    """Measure the bytes that Redis keeps and writes for open sessions."""
    slots = asyncio.Semaphore(concurrency)

    async def in_turn(call: Callable[[], Awaitable[T]]) -> T:
        async with slots:
            return await call()

    async with SessionStream(stack.gateway.url) as stream:
        before = await Reading.take(stack, client)
        tasks = [OpenSession(env=ENV, task_index=index) for index in range(number)]
        opened = await asyncio.gather(*(in_turn(partial(stream.open, task)) for task in tasks))
        between = await Reading.take(stack, client)
        for index in range(TURNS):
            steps = (partial(stream.step, session.session_id, index, "inventory") for session in opened)
            await asyncio.gather(*map(in_turn, steps))
        after = await Reading.take(stack, client)
        await asyncio.gather(*(in_turn(partial(stream.close, session.session_id)) for session in opened))
    num_steps = number * TURNS
    return [
        Row.of("redis: memory of an open session", (between.memory - before.memory) / number, "bytes"),
        Row.of("redis: memory of a step in it", (after.memory - between.memory) / num_steps, "bytes"),
        Row.of("redis: written to its file, per step", (after.file - between.file) / num_steps, "bytes"),
        Row.of("redis: received, per step", (after.received - between.received) / num_steps, "bytes"),
        Row.of("redis: sent, per step", (after.sent - between.sent) / num_steps, "bytes"),
    ]


async def played(
    stack: Stack, client: RedisClient, model: Path, number: int, concurrency: int
) -> tuple[list[Row], list[Trajectory]]:
    """Play episodes; measure the processor time of a turn, including opening, closing and the record."""
    chat = ChatTokens.load(model)
    calm_collector()  # as every service does
    token_ids = chat.reply(REPLY)
    group = GroupRequest(
        run_id=RUN_ID, group_id="g", task=OpenSession(env=ENV, task_index=0), num_samples=number,
        limits=EpisodeLimits(max_turns=TURNS, max_context_tokens=32_768, max_response_tokens=64),
    )  # fmt: skip
    async with SessionStream(stack.gateway.url) as sessions, GatewayClient(stack.gateway.url) as specs:
        player = Player(Instant(token_ids), chat, sessions, Environments(specs), Formats(), max_episodes=concurrency)
        await episodes(player, group, range(concurrency))  # warm
        before = await Reading.take(stack, client)
        trajectories = await episodes(player, group, range(number))
        after = await Reading.take(stack, client)
    assert all(trajectory.status.trainable for trajectory in trajectories), trajectories[0].error
    turns = sum(len(trajectory.turns) for trajectory in trajectories)
    spent = {name: after.processor_s[name] - before.processor_s[name] for name in before.processor_s}
    del spent["reward"]
    return [
        *(Row.of(f"turn: processor time, {name}", 1e6 * s / turns, "us") for name, s in spent.items()),
        Row.of("turn: tokens of the reply", len(token_ids), "tokens"),
    ], trajectories


async def scored(stack: Stack, client: RedisClient, trajectories: Sequence[Trajectory]) -> list[Row]:
    """Send trajectories over both streams; nobody consumes the scored ones."""
    producer = StreamProducer(client, TRAJECTORIES_RAW)
    stream = trajectories_scored(RUN_ID)
    number = len(trajectories)
    requests = [ScoreRequest(trajectory=trajectory) for trajectory in trajectories]
    before = await Reading.take(stack, client)
    for request in requests:
        await producer.publish(request)
    deadline = time.monotonic() + SCORED_S
    while await client.xlen(stream) < number:
        assert time.monotonic() < deadline, "the reward service does not keep up"
        await asyncio.sleep(_POLL_S)
    after = await Reading.take(stack, client)
    size = sum(len(request.model_dump_json()) for request in requests) / number
    tokens = sum(len(t.prompt_token_ids) + len(t.response_token_ids) for one in trajectories for t in one.turns)
    spent = {name: after.processor_s[name] - before.processor_s[name] for name in ("reward", "redis")}
    return [
        Row.of("trajectory: turns", TURNS, "turns"),
        Row.of("trajectory: tokens", tokens / number, "tokens"),
        Row.of("trajectory: size as a message", size, "bytes"),
        Row.of("trajectory: size per token", size * number / tokens, "bytes"),
        *(Row.of(f"trajectory: processor time, {name}", 1e6 * s / number, "us") for name, s in spent.items()),
        Row.of("redis: memory of a scored trajectory", (after.memory - before.memory) / number, "bytes"),
        Row.of("redis: written to its file, per trajectory", (after.file - before.file) / number, "bytes"),
    ]


async def env_servers_at_rest(directory: Path) -> list[Row]:
    """Measure the memory of each kind of env server, its shard and the shard's children, with one session."""
    rows = []
    for env in ENVIRONMENTS:
        server = gateway_fleet.env_server(directory, env)
        with gateway_fleet.running(server):
            async with SessionStream(server.url) as stream:
                session = await stream.open(OpenSession(env=env, task_index=0))
                memory_mb = resident_bytes(family(server.pid)) / 1e6
                await stream.close(session.session_id)
        rows.append(Row.of(f"memory at rest: env server, {env}", memory_mb, "MB"))
    return rows


def rollout_at_rest(directory: Path, stack: Stack, model: Path) -> Row:
    """Measure the memory of a rollout service that waits for engines, which are separate servers."""
    port = free_port()
    settings = {
        "PORT": str(port), "MODEL": str(model), "BACKEND": "server", "SERVER_URLS": json.dumps([REFUSED]),
        "REDIS_URL": stack.redis.url, "GATEWAY_URL": stack.gateway.url,
    }  # fmt: skip
    environment = {f"GYMFLEET_ROLLOUT_{name}": value for name, value in settings.items()}
    rollout = ServiceProcess(["gymfleet-rollout"], environment, port, directory / "rollout.log")
    rollout.start()
    try:
        deadline = time.monotonic() + START_S
        while not is_up(f"{rollout.url}/healthz"):
            assert rollout.alive, rollout.log()
            assert time.monotonic() < deadline, rollout.log()
            time.sleep(_POLL_S)
        return Row.of("memory at rest: rollout", resident_bytes(family(rollout.pid)) / 1e6, "MB")
    finally:
        rollout.stop()


def is_up(url: str) -> bool:
    """Return whether a GET succeeds."""
    try:
        return httpx.get(url, timeout=5, trust_env=False).is_success
    except httpx.TransportError:
        return False


async def measure(episodes: int, sessions: int, concurrency: int) -> list[Row]:
    """Take all measurements."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        model = build_tiny_model(directory / "model", tie_embeddings=False, seed=0)
        with running(directory) as stack:
            client = connect(stack.redis.url)
            try:
                memory = [Row.of(f"memory at rest: {name}", mb, "MB") for name, mb in stack.resident_mb().items()]
                held = await held_sessions(stack, client, sessions, concurrency)
                turns, trajectories = await played(stack, client, model, episodes, concurrency)
                trajectory_rows = await scored(stack, client, trajectories)
                memory.append(await asyncio.to_thread(rollout_at_rest, directory, stack, model))
            finally:
                await disconnect(client)
        return [*turns, *trajectory_rows, *held, *memory, *await env_servers_at_rest(directory)]


def main() -> None:
    """Measure and record."""
    options = BenchmarkCommand(__doc__, SIZES).options()
    record("costs", uvloop.run(measure(options.episodes, options.sessions, options.concurrency)), options)


if __name__ == "__main__":
    main()
