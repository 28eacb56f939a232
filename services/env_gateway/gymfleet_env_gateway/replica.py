"""One env server as the gateway sees it: its socket, its health, its environments, its load."""

import asyncio
import contextlib
import time
from enum import StrEnum
from typing import Final

import httpx
import structlog
from gymfleet_client.multiplex import FrameChannel
from gymfleet_contracts.session import EnvironmentSpec
from pydantic import TypeAdapter, ValidationError

from gymfleet_env_gateway.ids import replica_key
from gymfleet_env_gateway.metrics import Metrics
from gymfleet_env_gateway.settings import GatewaySettings

log = structlog.get_logger()

_SPECS: Final = TypeAdapter(list[EnvironmentSpec])
# Shorter than a process takes to start: whoever does not accept a connection by then is down.
_RECONNECT_S: Final = 0.5
_KEEP_ALIVE_S: Final = 4.0
_EXPIRY_SWEEP_S: Final = 5.0


class ReplicaState(StrEnum):
    """`SUSPECT` keeps its sessions and gets new ones only if nobody else can take them; those of `DOWN` are lost."""

    UP = "up"
    SUSPECT = "suspect"
    DOWN = "down"


class _NoProcess(Exception):
    """Nothing accepts connections under the URL, or it hangs up: the process is gone."""


class Replica:
    """Watches one env server and carries the calls to it."""

    def __init__(self, url: str, settings: GatewaySettings, metrics: Metrics) -> None:
        self.url = url.rstrip("/")
        self.key = replica_key(url)
        self.state = ReplicaState.DOWN
        self.specs: dict[str, EnvironmentSpec] = {}
        """Kept when the replica dies: its environments are then unavailable, not unknown."""
        self.opening = 0
        self.channel = FrameChannel(
            self.url,
            connect_timeout_s=_RECONNECT_S,
            connections=settings.connections_per_replica,
            on_loss=self._lost_contact,
        )
        self._settings = settings
        self._metrics = metrics
        self._http = httpx.AsyncClient(
            base_url=self.url,
            timeout=settings.probe_timeout_s,
            limits=httpx.Limits(keepalive_expiry=_KEEP_ALIVE_S),
            trust_env=False,
        )
        self._sessions: dict[str, tuple[str, float, float]] = {}  # upstream id: environment, lease, expiry
        self._swept_at = 0.0
        self._answered_at = time.monotonic()
        self._alarm = asyncio.Event()
        self._next_round = asyncio.Event()
        self._closing = False

    @property
    def load(self) -> int:
        """Sessions that were opened through this gateway and are not known to have ended."""
        return len(self._sessions) + self.opening

    async def watch(self) -> None:
        """Probe until cancelled: at an interval, and at once when someone lost contact."""
        while True:
            done, self._next_round = self._next_round, asyncio.Event()
            self._alarm.clear()
            try:
                await self._probe()
                self._sweep()
            except Exception:
                log.exception("replica.probe_failed", replica=self.url)
            finally:
                done.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._alarm.wait(), self._settings.probe_interval_s)

    async def confirm(self) -> ReplicaState:
        """The state after a probe that begins now."""
        done = self._next_round
        self._alarm.set()
        await done.wait()
        return self.state

    async def aclose(self) -> None:
        """Hang up."""
        self._closing = True
        await self.channel.aclose()
        await self._http.aclose()

    def opened(self, env: str, upstream: str, lease_s: float) -> None:
        """Count a session until it is closed or its lease runs out."""
        self._sessions[upstream] = (env, lease_s, time.monotonic() + lease_s)
        self._metrics.sessions.labels(env).inc()

    def touched(self, upstream: str, lease_s: float | None = None) -> None:
        """A call reached the session: its lease begins anew."""
        if (entry := self._sessions.get(upstream)) is not None:
            lease_s = lease_s or entry[1]
            self._sessions[upstream] = (entry[0], lease_s, time.monotonic() + lease_s)

    def ended(self, upstream: str) -> None:
        """The session is known to be gone."""
        if (entry := self._sessions.pop(upstream, None)) is not None:
            self._metrics.sessions.labels(entry[0]).dec()

    def _sweep(self) -> None:
        now = time.monotonic()
        if now - self._swept_at >= _EXPIRY_SWEEP_S:
            self._swept_at = now
            for upstream in [key for key, (_, _, expiry) in self._sessions.items() if expiry < now]:
                self.ended(upstream)

    def _lost_contact(self) -> None:
        if not self._closing:
            self._alarm.set()

    async def _probe(self) -> None:
        try:
            (await self._get("/healthz")).raise_for_status()
            if self.state is ReplicaState.DOWN:
                response = (await self._get("/v1/environments")).raise_for_status()
                self.specs = {spec.name: spec for spec in _SPECS.validate_json(response.content)}
        except _NoProcess as error:
            self._enter(ReplicaState.DOWN, str(error))
        except httpx.TimeoutException:
            silent_s = time.monotonic() - self._answered_at
            dead = self.state is ReplicaState.DOWN or silent_s >= self._settings.unresponsive_after_s
            self._enter(ReplicaState.DOWN if dead else ReplicaState.SUSPECT, f"no answer for {silent_s:.1f} s")
        except (httpx.HTTPError, ValidationError) as error:
            # Something answers, but it is no healthy env server: sessions that it may hold are not given up yet.
            self._enter(ReplicaState.SUSPECT if self.specs else ReplicaState.DOWN, str(error))
        else:
            self._answered_at = time.monotonic()
            self._enter(ReplicaState.UP, "it answers")

    async def _get(self, path: str) -> httpx.Response:
        """A refused or broken connection counts only when a second one fares the same."""
        with contextlib.suppress(httpx.NetworkError, httpx.RemoteProtocolError):
            return await self._http.get(path)
        try:
            return await self._http.get(path)
        except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
            raise _NoProcess(str(error) or type(error).__name__) from None

    def _enter(self, state: ReplicaState, reason: str) -> None:
        if state is self.state:
            return
        log.info("replica.state_changed", replica=self.url, before=self.state, after=state, reason=reason)
        if state is ReplicaState.DOWN:
            self._metrics.replica_losses.inc()
            for upstream in list(self._sessions):
                self.ended(upstream)
        self.state = state
