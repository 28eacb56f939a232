"""Signs of life of a stack that trains: sessions are played, trajectories arrive, training steps end.

Three loops poll repeatedly, whatever dies meanwhile; each keeps the latest time of its sign. The third also records the
produced samples from Redis, because a run deletes them at its end.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self

from gymfleet_cli.run_directory import RunDataError, RunFiles
from gymfleet_client import ClientError, GatewayClient
from gymfleet_contracts.session import OpenSession
from gymfleet_contracts.streams import (
    ROLLOUT_REQUESTS,
    TRAJECTORIES_RAW,
    dead_letters,
    produced_samples,
    trajectories_scored,
)
from gymfleet_kit.streams import RedisClient, connect, disconnect
from redis.exceptions import RedisError

from benchmarks.stacks import Kind, Stack

PAUSE_S: Final = 0.25
SESSION_S: Final = 5.0
"""Time limit for opening, stepping and closing a session; then a new one is tried."""


@dataclass
class Signs:
    """The latest signs of life, in seconds since the epoch; 0 for never."""

    session: float = 0.0
    """When the latest session that was opened, stepped and closed began."""
    trajectory: float = 0.0
    step: float = 0.0
    produced: dict[str, set[int]] = field(default_factory=dict)
    """The samples that the rollout service has produced, by group id."""
    dead: int = 0
    """The highest count of dead letters of all streams."""


class Watch:
    """A context in which the loops run."""

    def __init__(self, stack: Stack, run_id: str, task: OpenSession, signs: Signs) -> None:
        self.signs = signs
        self._stack = stack
        self._run_id = run_id
        self._task = task
        self._loops: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._loops = [asyncio.create_task(_again(look)) for look in (self._play, self._read_redis, self._read_steps)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)

    async def _play(self) -> None:
        gateway = await asyncio.to_thread(self._stack.service, Kind.GATEWAY)
        if gateway is None:
            return
        began = time.time()
        with suppress(ClientError, TimeoutError):
            client = GatewayClient(gateway.url, api_key=self._stack.api_key, timeout_s=SESSION_S, max_concurrency=1)
            async with asyncio.timeout(SESSION_S), client:
                session = await client.open(self._task)
                await client.step(session.session_id, 0, "look")
                await client.close(session.session_id)
                self.signs.session = began

    async def _read_redis(self) -> None:
        process = await asyncio.to_thread(self._stack.service, Kind.REDIS)
        if process is None:
            return
        client = connect(process.url)
        scored = trajectories_scored(self._run_id)
        try:
            if await client.exists(scored):
                newest = (await client.xinfo_stream(scored))["last-generated-id"]
                self.signs.trajectory = max(self.signs.trajectory, int(newest.split(b"-")[0]) / 1000)
            streams = (ROLLOUT_REQUESTS, TRAJECTORIES_RAW, scored)
            dead = sum([await client.xlen(dead_letters(stream)) for stream in streams])
            self.signs.dead = max(self.signs.dead, dead)
            await self._read_produced(client)
        except RedisError:  # away, or loading its file
            return
        finally:
            await disconnect(client)

    async def _read_produced(self, client: RedisClient) -> None:
        keys = [key async for key in client.scan_iter(match=produced_samples(self._run_id, "*"), count=1000)]
        async with client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.smembers(key)
            members = await pipe.execute()
        for key, samples in zip(keys, members, strict=True):
            group_id = key.decode().rpartition(":")[2]
            # "2.1" is sample 2, played again.
            numbers = {int(member.partition(b".")[0]) for member in samples}
            self.signs.produced.setdefault(group_id, set()).update(numbers)

    async def _read_steps(self) -> None:
        # A trainer that resumes truncates the file first; a line may be incomplete.
        with suppress(RunDataError):
            for line in RunFiles(self._stack.run_dir).metrics("rl_step")[-1:]:
                self.signs.step = max(self.signs.step, line["time"])


async def _again(look: Callable[[], Awaitable[None]]) -> None:
    while True:
        await look()
        await asyncio.sleep(PAUSE_S)
