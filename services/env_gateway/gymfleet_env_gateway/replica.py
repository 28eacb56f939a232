"""One env server as the gateway sees it: its socket, its health, its environments, its load."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Final

import httpx
import structlog
from gymfleet_client.multiplex import FrameChannel
from gymfleet_contracts.session import EnvironmentSpec, ServerLoad
from pydantic import TypeAdapter, ValidationError

from gymfleet_env_gateway.metrics import REPLICA_LOSSES
from gymfleet_env_gateway.occupancy import Occupancy
from gymfleet_env_gateway.session_ids import replica_key
from gymfleet_env_gateway.settings import GatewaySettings

log = structlog.get_logger()

_SPECS: Final = TypeAdapter(list[EnvironmentSpec])
_LOAD: Final = TypeAdapter(ServerLoad)
_NO_LOAD: Final = ServerLoad(max_sessions=0)
# Shorter than a process takes to start: a server that accepts no connection by then is down.
_RECONNECT_S: Final = 0.5
_KEEP_ALIVE_S: Final = 4.0
_KEY_REFUSED: Final = (401, 403)


class ReplicaState(StrEnum):
    """`SUSPECT` keeps its sessions and gets new ones only if no other can take them; those of `DOWN` are lost."""

    UP = "up"
    SUSPECT = "suspect"
    DOWN = "down"


class _NoProcess(Exception):
    """Nothing accepts connections at the URL, or connections are broken off: the process is gone."""


class Replica:
    """Watches one env server and carries the calls to it.

    Args:
        url: its base URL.
        on_probed: called after each probe.
        on_room: called when a session has ended.
    """

    def __init__(
        self,
        url: str,
        settings: GatewaySettings,
        *,
        on_probed: Callable[[], None],
        on_room: Callable[[], None],
    ) -> None:
        self.url = url.rstrip("/")
        self.key = replica_key(url)
        self.state = ReplicaState.DOWN
        self.specs: dict[str, EnvironmentSpec] = {}
        """Kept when the replica dies: its environments are then unavailable, not unknown."""
        self.listed = True
        """False once discovery no longer names it: it keeps its sessions and gets no new ones."""
        self.opening = 0
        key = None if settings.replica_api_key is None else settings.replica_api_key.get_secret_value()
        self.channel = FrameChannel(
            self.url,
            api_key=key,
            connect_timeout_s=_RECONNECT_S,
            connections=settings.connections_per_replica,
            on_loss=self._lost_contact,
        )
        self._settings = settings
        self._on_probed = on_probed
        self._on_room = on_room
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
            timeout=settings.probe_timeout_s,
            limits=httpx.Limits(keepalive_expiry=_KEEP_ALIVE_S),
            trust_env=False,
        )
        self.occupancy = Occupancy()
        self._load = _NO_LOAD
        self._answered_at = time.monotonic()
        self._alarm = asyncio.Event()
        self._next_round = asyncio.Event()
        self.refuses_key = False
        """True while it answers but requires a key other than `replica_api_key`."""
        self.closing = False
        """True once it was dropped: nothing watches it any more."""

    @property
    def load(self) -> int:
        """The number of slots taken: the server's last figure, corrected by what happened here since."""
        return self.occupancy.slots(self.specs) + self.opening

    def max_sessions(self, env: str) -> int:
        """Return how many sessions of `env` it can hold if it holds no others."""
        return self._load.max_sessions // self.specs[env].slots

    def free_slots(self, env: str) -> int:
        """Return how many sessions of `env` it can still take, not counting those that are being opened."""
        free = self._load.max_sessions - self.occupancy.slots(self.specs)
        return max(free, 0) // self.specs[env].slots

    @property
    def draining(self) -> bool:
        """Whether it is shutting down, so that it takes no new sessions."""
        return self._load.draining

    def takes(self, env: str) -> bool:
        """Return whether a new session of `env` may be opened here."""
        return self.listed and self.state is not ReplicaState.DOWN and not self.draining and env in self.specs

    def held(self) -> dict[tuple[str, str], int]:
        """Return the number of open sessions by environment and owner."""
        return self.occupancy.counts()

    async def watch(self) -> None:
        """Probe until cancelled: at an interval, and immediately when a connection was lost."""
        while True:
            done, self._next_round = self._next_round, asyncio.Event()
            self._alarm.clear()
            try:
                await self._probe()
                self._on_probed()
            except Exception:
                log.exception("replica.probe_failed", replica=self.url)
            finally:
                done.set()
            with contextlib.suppress(TimeoutError):
                # Not `asyncio.wait_for`: in Python 3.11 it swallows a cancellation that comes with the alarm.
                async with asyncio.timeout(self._settings.probe_interval_s):
                    await self._alarm.wait()

    async def confirm(self) -> ReplicaState:
        """Return the state after a probe that begins now; for a replica that was dropped, its last state."""
        if self.closing:
            return self.state
        done = self._next_round
        self._alarm.set()
        await done.wait()
        return self.state

    async def aclose(self) -> None:
        """Close the connections."""
        self.closing = True
        self._next_round.set()  # no probe will end any more, so release those that wait for one
        await self.channel.aclose()
        await self._http.aclose()

    def opened(self, env: str, owner: str) -> None:
        """Count a session that was opened here through this gateway."""
        self.occupancy.add(env, owner, 1)

    def ended(self, env: str, owner: str) -> None:
        """Count a session that was closed through this gateway."""
        self.occupancy.add(env, owner, -1)
        self._on_room()

    def _lost_contact(self) -> None:
        if not self.closing:
            self._alarm.set()

    async def _probe(self) -> None:
        self.occupancy.asks()
        try:
            response = (await self._get("/v1/load")).raise_for_status()
            load = _LOAD.validate_json(response.content)
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
            # Something answers, but not a healthy env server: sessions that it may hold are not given up yet.
            self._note_key(error)
            self._enter(ReplicaState.SUSPECT if self.specs else ReplicaState.DOWN, str(error))
        else:
            self._answered_at = time.monotonic()
            self.refuses_key = False
            self._load = load
            self.occupancy.hears(load)
            self._enter(ReplicaState.UP, "it answers")

    def _note_key(self, error: Exception) -> None:
        refuses = isinstance(error, httpx.HTTPStatusError) and error.response.status_code in _KEY_REFUSED
        if refuses and not self.refuses_key:
            log.error("replica.key_refused", replica=self.url, reason="GYMFLEET_ENV_API_KEY is another key there")
        self.refuses_key = refuses

    async def _get(self, path: str) -> httpx.Response:
        """Make a GET request; a refused or broken connection counts only if a second attempt fails the same way."""
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
            REPLICA_LOSSES.inc()
            self._load = _NO_LOAD
            self.occupancy.clear()
        self.state = state
