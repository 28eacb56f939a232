"""Which replica takes a call: the least loaded one for a new session, its own for every other."""

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from gymfleet_contracts.session import EnvironmentSpec
from gymfleet_kit.app import NotReady
from gymfleet_kit.discovery import Discovery
from gymfleet_kit.session_problems import UnknownEnvironment
from pydantic import JsonValue

from gymfleet_env_gateway.errors import Unavailable
from gymfleet_env_gateway.metrics import REPLICAS
from gymfleet_env_gateway.replica import Replica, ReplicaState
from gymfleet_env_gateway.settings import GatewaySettings

_REFRESH_AT_MOST_EVERY_S: Final = 1.0


class ReplicaRegistry:
    """All replicas: those that are configured, and those that discovery finds."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._discovery = Discovery(settings.discover, fixed=settings.replicas)
        self._replicas: dict[str, Replica] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._discovering: asyncio.Task[None] | None = None
        self._listeners: list[Callable[[], None]] = []
        self._news = asyncio.Event()
        self._specs: dict[str, EnvironmentSpec] = {}
        self._changing = asyncio.Lock()
        self._refreshed_at = -_REFRESH_AT_MOST_EVERY_S
        self._refreshing: asyncio.Task[None] | None = None
        self._joining: set[str] = set()
        """Replicas that were discovered and have yet to answer a first probe."""
        self._started_at = time.monotonic()
        for state in ReplicaState:
            REPLICAS.labels(state).set_function(partial(self._count, state))

    async def start(self) -> None:
        """Start watching; return when each replica has been probed once."""
        self._started_at = time.monotonic()
        await self._discover()
        if self._discovery.names:
            self._discovering = asyncio.create_task(self._keep_discovering())

    async def aclose(self) -> None:
        """Stop watching and close the connections."""
        tasks = [*self._watchers.values(), *filter(None, [self._discovering, self._refreshing])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.gather(*(replica.aclose() for replica in self._replicas.values()))

    def on_news(self, listener: Callable[[], None]) -> None:
        """Register a `listener` that is called when there may be new room."""
        self._listeners.append(listener)

    async def wait_for_news(self, timeout_s: float) -> None:
        """Wait until a replica was probed, a session ended, or the time is up."""
        news = self._news
        try:
            async with asyncio.timeout(timeout_s):
                await news.wait()
        except TimeoutError:
            return

    def environments(self) -> list[EnvironmentSpec]:
        """Return every environment that some replica serves or served, by name."""
        return list(self._specs.values())

    def environment(self, name: str) -> EnvironmentSpec:
        """Return an environment. Raises `UnknownEnvironment`; `Unavailable` until every replica said what it serves."""
        if (spec := self._specs.get(name)) is not None:
            return spec
        names: list[JsonValue] = list(self._specs)
        known = ", ".join(map(str, names))
        silent = [replica.url for replica in self._replicas.values() if not replica.specs]
        if silent or not self._replicas:
            raise Unavailable(
                f"no replica that has answered so far serves {name!r} (they serve: {known or 'none'}); "
                f"still silent: {len(silent)} of {len(self._replicas)} replicas"
            )
        raise UnknownEnvironment(f"no replica serves {name!r}; there are {known}", known=names)

    def spec(self, name: str) -> EnvironmentSpec | None:
        """Return the environment's spec, if any replica serves or served it."""
        return self._specs.get(name)

    def candidates(self, env: str) -> list[Replica]:
        """Return the replicas that can take a new session, the least loaded first; never empty.

        Raises `UnknownEnvironment` and `Unavailable`.
        """
        replicas = self.takers(env)
        if not replicas:
            self.environment(env)
            raise Unavailable(f"every replica of {env} is down or on its way out")
        return replicas

    def takers(self, env: str) -> list[Replica]:
        """Return the replicas that can take a new session, the least loaded first; empty when there is none."""
        replicas = [replica for replica in self._replicas.values() if replica.takes(env)]
        random.shuffle(replicas)
        return sorted(replicas, key=lambda replica: (replica.state is ReplicaState.SUSPECT, replica.load))

    def find(self, key: str) -> Replica | None:
        """Return the replica with this key; None for one that is gone or never existed."""
        replica = self._replicas.get(key)
        return None if replica is None or replica.state is ReplicaState.DOWN else replica

    def free_slots(self, env: str) -> int | None:
        """Return how many sessions of `env` the fleet can still take; None while no replica can take any."""
        slots = [replica.free_slots(env) for replica in self._replicas.values() if replica.takes(env)]
        return sum(slots) if slots else None

    def max_sessions(self, env: str) -> int:
        """Return how many sessions the replicas that accept `env` can hold, open ones included."""
        return sum(replica.max_sessions(env) for replica in self._replicas.values() if replica.takes(env))

    def max_opens(self, env: str) -> int:
        """Return how many opens of `env` may be under way at once.

        If no replica can take any, it is the number for one replica, so that the opens fail with that answer.
        """
        takers = sum(replica.takes(env) for replica in self._replicas.values())
        return max(takers, 1) * self._settings.max_opens_per_replica

    def held(self, env: str) -> dict[str, int]:
        """Return the number of open sessions of `env` by owner."""
        counts: dict[str, int] = {}
        for replica in self._replicas.values():
            for (name, owner), number in replica.held().items():
                if name == env:
                    counts[owner] = counts.get(owner, 0) + number
        return counts

    def held_by(self, owner: str) -> int:
        """Return the number of open sessions of `owner`, over all environments."""
        return sum(
            number
            for replica in self._replicas.values()
            for (_, name), number in replica.held().items()
            if name == owner
        )

    def open_sessions(self) -> Iterable[tuple[str, str, int]]:
        """Return open sessions as (environment, owner, number), for the metrics."""
        for spec in self.environments():
            for owner, number in self.held(spec.name).items():
                yield spec.name, owner, number

    def slots(self) -> Iterable[tuple[str, int]]:
        """Return (environment, free slots) for the metrics, with 0 where no replica takes sessions."""
        for spec in self.environments():
            yield spec.name, self.free_slots(spec.name) or 0

    async def check_ready(self) -> None:
        """Check that every environment has a replica that answers. Raises `NotReady`."""
        silent = [replica.url for replica in self._replicas.values() if not replica.specs]
        if silent and time.monotonic() - self._started_at < self._settings.startup_grace_s:
            raise NotReady(f"{len(silent)} of {len(self._replicas)} replicas have not answered yet")
        environments = self.environments()
        if not environments:
            refuses = any(replica.refuses_key for replica in self._replicas.values())
            raise NotReady("the replicas refuse GYMFLEET_GATEWAY_REPLICA_API_KEY" if refuses else "no replica answers")
        for spec in environments:
            if not any(r.state is ReplicaState.UP and spec.name in r.specs for r in self._replicas.values()):
                raise NotReady(f"no replica of {spec.name} answers")

    async def refresh(self, key: str) -> None:
        """Look again now for a session's replica that is down or unknown: another gateway may know better.

        Concurrent callers wait for the same answer: continuing without it would give their sessions up.
        """
        replica = self._replicas.get(key)
        if replica is not None and key not in self._joining:
            await replica.confirm()
            return
        if not self._discovery.names:
            return
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._refresh())
        await asyncio.shield(self._refreshing)

    async def _refresh(self) -> None:
        try:
            await asyncio.sleep(self._refreshed_at + _REFRESH_AT_MOST_EVERY_S - time.monotonic())
            self._refreshed_at = time.monotonic()
            await self._discover()
        finally:
            self._refreshing = None

    async def _keep_discovering(self) -> None:
        while True:
            await asyncio.sleep(self._settings.discover_interval_s)
            await self._discover()

    async def _discover(self) -> None:
        """Adopt new replicas after a first probe; drop those that are neither listed nor alive."""
        async with self._changing:
            await self._adopt(await self._discovery.urls())

    async def _adopt(self, urls: list[str]) -> None:
        new = [Replica(url, self._settings, on_probed=self._probed, on_room=self._heard) for url in urls]
        new = [replica for replica in new if replica.key not in self._replicas]
        known = {replica.key for replica in new}
        for replica in new:
            self._replicas[replica.key] = replica
        listed = {url.rstrip("/") for url in urls}
        for replica in list(self._replicas.values()):
            replica.listed = replica.url in listed
            if not replica.listed and replica.state is ReplicaState.DOWN and replica.key not in known:
                await self._drop(replica)
        first = [asyncio.create_task(replica.confirm()) for replica in new]
        await asyncio.sleep(0)  # each `confirm` now waits for the round that its watcher begins next
        for replica in new:
            self._watchers[replica.key] = asyncio.create_task(replica.watch())
        self._joining = known
        try:
            await asyncio.gather(*first)
        finally:
            self._joining = set()

    async def _drop(self, replica: Replica) -> None:
        del self._replicas[replica.key]
        watcher = self._watchers.pop(replica.key)
        watcher.cancel()
        await asyncio.wait([watcher])
        await replica.aclose()

    def _probed(self) -> None:
        specs = {name: spec for replica in self._by_trust() for name, spec in replica.specs.items()}
        self._specs = {name: specs[name] for name in sorted(specs)}
        self._heard()

    def _heard(self) -> None:
        self._news, news = asyncio.Event(), self._news
        news.set()
        for listener in self._listeners:
            listener()

    def _by_trust(self) -> Iterable[Replica]:
        """Return the replicas with live ones last, so that their specs override those of dead ones."""
        return sorted(self._replicas.values(), key=lambda replica: replica.state is ReplicaState.UP)

    def _count(self, state: ReplicaState) -> int:
        return sum(replica.state is state for replica in self._replicas.values())
