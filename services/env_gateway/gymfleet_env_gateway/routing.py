"""Which replica takes a call: the least loaded one for a new session, its own for every other."""

import asyncio
import random
import time
from collections.abc import Iterable
from functools import partial

from gymfleet_contracts.session import EnvironmentSpec
from gymfleet_kit.app import NotReady
from gymfleet_kit.session_problems import SessionLost, UnknownEnvironment
from pydantic import JsonValue

from gymfleet_env_gateway.errors import Unavailable
from gymfleet_env_gateway.ids import SessionRef
from gymfleet_env_gateway.metrics import Metrics
from gymfleet_env_gateway.replica import Replica, ReplicaState
from gymfleet_env_gateway.settings import GatewaySettings


class Fleet:
    """All replicas."""

    def __init__(self, settings: GatewaySettings, metrics: Metrics) -> None:
        self._settings = settings
        self._replicas = {
            replica.key: replica for replica in (Replica(str(url), settings, metrics) for url in settings.replicas)
        }
        self._watchers: list[asyncio.Task[None]] = []
        self._started_at = time.monotonic()
        for state in ReplicaState:
            metrics.replicas.labels(state).set_function(partial(self._count, state))

    async def start(self) -> None:
        """Begin to watch; returns when each replica was probed once."""
        self._started_at = time.monotonic()
        first = [asyncio.create_task(replica.confirm()) for replica in self._replicas.values()]
        await asyncio.sleep(0)  # each `confirm` now waits for the round that its watcher begins next
        self._watchers = [asyncio.create_task(replica.watch()) for replica in self._replicas.values()]
        await asyncio.gather(*first)

    async def aclose(self) -> None:
        """Stop watching and hang up."""
        for watcher in self._watchers:
            watcher.cancel()
        if self._watchers:
            await asyncio.wait(self._watchers)
        await asyncio.gather(*(replica.aclose() for replica in self._replicas.values()))

    def environments(self) -> list[EnvironmentSpec]:
        """Every environment that some replica serves or served, by name."""
        specs = {name: spec for replica in self._by_trust() for name, spec in replica.specs.items()}
        return [specs[name] for name in sorted(specs)]

    def environment(self, name: str) -> EnvironmentSpec:
        """Raises `UnknownEnvironment`; `Unavailable` while some replica has yet to say what it serves."""
        for spec in self.environments():
            if spec.name == name:
                return spec
        names: list[JsonValue] = [spec.name for spec in self.environments()]
        known = ", ".join(map(str, names))
        silent = [replica.url for replica in self._replicas.values() if not replica.specs]
        if silent:
            raise Unavailable(
                f"no replica that has answered so far serves {name!r} (they serve: {known or 'none'}); "
                f"still silent: {len(silent)} of {len(self._replicas)} replicas"
            )
        raise UnknownEnvironment(f"no replica serves {name!r}; there are {known}", known=names)

    def candidates(self, env: str) -> list[Replica]:
        """Replicas that can take a new session, the least loaded first; never empty.

        Raises `UnknownEnvironment` and `Unavailable`.
        """
        replicas = [r for r in self._replicas.values() if r.state is not ReplicaState.DOWN and env in r.specs]
        if not replicas:
            self.environment(env)
            raise Unavailable(f"every replica of {env} is down")
        random.shuffle(replicas)
        return sorted(replicas, key=lambda replica: (replica.state is ReplicaState.SUSPECT, replica.load))

    def home(self, ref: SessionRef) -> Replica:
        """The replica that holds a session. Raises `SessionLost` when it is gone."""
        replica = self._replicas.get(ref.replica)
        if replica is None:
            raise SessionLost("the session's env server is no longer part of this fleet")
        if replica.state is ReplicaState.DOWN:
            raise SessionLost("the env server that held the session died")
        return replica

    async def check_ready(self) -> None:
        """Every environment has a replica that answers. Raises `NotReady`."""
        silent = [replica.url for replica in self._replicas.values() if not replica.specs]
        if silent and time.monotonic() - self._started_at < self._settings.startup_grace_s:
            raise NotReady(f"{len(silent)} of {len(self._replicas)} replicas have not answered yet")
        environments = self.environments()
        if not environments:
            raise NotReady("no replica answers")
        for spec in environments:
            if not any(r.state is ReplicaState.UP and spec.name in r.specs for r in self._replicas.values()):
                raise NotReady(f"no replica of {spec.name} answers")

    def _by_trust(self) -> Iterable[Replica]:
        """Live replicas last, so that what they say of an environment overrides what the dead said."""
        return sorted(self._replicas.values(), key=lambda replica: replica.state is ReplicaState.UP)

    def _count(self, state: ReplicaState) -> int:
        return sum(replica.state is state for replica in self._replicas.values())
