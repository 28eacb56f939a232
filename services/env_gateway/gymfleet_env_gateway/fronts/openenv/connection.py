"""A client's connection to an environment: at most one gateway session at a time, and only ones it asked for."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from gymfleet_contracts import problems
from gymfleet_contracts.frames import NO_BODY, Op
from gymfleet_contracts.session import EnvironmentSpec
from gymfleet_kit.problems import ServiceError
from gymfleet_kit.session_api.calls import encode_body

from gymfleet_env_gateway.access import Tenant
from gymfleet_env_gateway.fronts.episode import (
    Episode,
    NoEpisode,
    OutcomeUnknown,
    counted,
    held_episode,
    intent,
)
from gymfleet_env_gateway.fronts.openenv.wire import ErrorCode, FrameError, ResetArguments, frame_error, observed
from gymfleet_env_gateway.state import Gateway
from gymfleet_env_gateway.store import NoEntry, Store, StoreFull

HANDLE_PREFIX: Final = "openenv-"
"""Prefix of the ids that `openenv/session/create` returns: they stay the same while sessions come and go."""
_RESET_REQUIRED: Final = "session lost, reset required"
_decode: Final = msgspec.msgpack.Decoder().decode
_encode: Final = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Client:
    """Who plays which environment, and the gateway and store that serve the calls."""

    gateway: Gateway
    tenant: Tenant
    spec: EnvironmentSpec
    store: Store


class OpenEnvEpisode(Episode):
    """An episode and the client's name for it."""

    episode_id: str = ""
    tenant: str = ""
    env: str = ""


_read_episode: Final = msgspec.msgpack.Decoder(OpenEnvEpisode).decode


class OpenEnvConnection:
    """One client's connection. `FrameError` is the only expected exception of its methods."""

    shared = False

    def __init__(self, client: Client, *, lease_s: float) -> None:
        self.tenant = client.tenant
        self.spec = client.spec
        self.lease_s = lease_s
        self._registry = client.gateway.registry
        self._proxy = client.gateway.proxy
        self._episode = OpenEnvEpisode(tenant=client.tenant.name, env=client.spec.name)
        self._busy = asyncio.Lock()

    @property
    def name(self) -> str:
        """The id by which another connection can take over this one; empty when there is nothing to take over."""
        return self._episode.session_id

    @property
    def lives_by_socket(self) -> bool:
        """Whether the socket must renew the lease, which is shorter than the time a client may take to think."""
        return bool(self._episode.session_id)

    async def reset(self, arguments: ResetArguments) -> dict[str, Any]:
        """End the previous episode, begin a new one and return the payload of its first observation."""
        async with self._held() as episode:
            try:
                session = await self._begun(episode, arguments)
            except ServiceError as error:
                raise self._refused(error) from None
            episode.episode_id = arguments.episode_id or _default_id(episode.session_id)
            return _opened(session, episode)

    async def _begun(self, episode: OpenEnvEpisode, arguments: ResetArguments) -> dict[str, Any]:
        draw = secrets.randbits(62)
        try:
            body = arguments.body(self.spec, self.lease_s, draw)
            return await episode.begin(self._proxy, self.tenant, body)
        except ServiceError as error:
            count = counted(error)
            if count is None or arguments.names_task:
                raise
        body = arguments.body(self.spec, self.lease_s, draw, count)
        return await episode.begin(self._proxy, self.tenant, body)

    async def give_up(self, session_id: str) -> None:
        """Drop this session once the current call has ended, because another connection continues it."""
        async with self._busy:
            if self._episode.session_id != session_id:  # it has begun another one
                return
            self._episode = OpenEnvEpisode(tenant=self.tenant.name, env=self.spec.name)

    async def resume(self, session_id: str) -> None:
        """Continue a session that another connection began."""
        async with self._held() as episode:
            session = await self._look(session_id)
            if session["task"]["env"] != self.spec.name:
                raise FrameError(ErrorCode.SESSION_ERROR, f"Unknown session_id: it plays {session['task']['env']}")
            episode.adopt(session)
            episode.episode_id = _default_id(session_id)

    async def step(self, message: str, index: int | None = None) -> dict[str, Any]:
        """Apply an action and return the observation payload. `index`, if the client knows it, makes a repeat safe."""
        async with self._held(message) as episode:
            if index is not None:
                episode.index, episode.pending = index, None
            try:
                result = await episode.step(self._proxy, self.tenant, message)
            except NoEpisode:
                raise FrameError(ErrorCode.SESSION_ERROR, _RESET_REQUIRED) from None
            except OutcomeUnknown:
                raise FrameError(
                    ErrorCode.SESSION_ERROR,
                    "the outcome of the last action is unknown: send the same action again, or reset",
                ) from None
            except ServiceError as error:
                raise frame_error(error) from None
            metadata = {
                "step_count": result["index"] + 1,
                "terminated": result["terminated"],
                "truncated": result["truncated"],
                "score": result["score"],
                "action_valid": result["action_valid"],
                "info": result["info"],
            }
            return observed(result["observation"], reward=result["reward"], done=episode.over, metadata=metadata)

    async def state(self) -> dict[str, Any]:
        """Return the episode's state as the session reports it; empty before the first reset."""
        async with self._held() as episode:
            if not episode.session_id:
                return {"episode_id": None, "step_count": 0}
            # While an answer is missing, it is unknown whether that step was taken.
            session = await self._look(episode.session_id, None if episode.pending else episode.index)
            return {
                "episode_id": episode.episode_id,
                "step_count": session["index"],
                "session_id": episode.session_id,
                "env": session["task"]["env"],
                "task_id": session["task"]["task_id"],
                "split": session["task"]["split"],
                "level": session["task"]["level"],
                "seed": session["task"]["seed"],
                "observation": session["observation"],
                "done": session["terminated"] or session["truncated"],
                "score": session["score"],
            }

    async def renew(self) -> None:
        """Renew the lease while the client thinks. A failure shows at its next step."""
        if self._episode.session_id:
            try:
                await self._proxy.call(self.tenant, Op.LEASE, self._episode.session_id, NO_BODY)
            except ServiceError:
                return

    async def leave(self) -> None:
        """Close the session."""
        async with self._held() as episode:
            await episode.end(self._proxy, self.tenant)

    @asynccontextmanager
    async def _held(self, action: str = "") -> AsyncIterator[OpenEnvEpisode]:  # noqa: ARG002 - nobody else's business
        async with self._busy:
            yield self._episode

    def _refused(self, error: ServiceError) -> FrameError:
        """Return why no session was opened; if there was no room, with OpenEnv's two capacity figures."""
        failure, registry = frame_error(error), self._registry
        if failure.code is ErrorCode.CAPACITY_REACHED:
            active = sum(registry.held(self.spec.name).values())
            free = registry.free_slots(self.spec.name) or 0
            if error.problem().type == problems.QUOTA_EXCEEDED:
                active, free = registry.held_by(self.tenant.name), 0
            failure.figures = {"active_sessions": active, "max_sessions": active + free, **failure.figures}
        return failure

    async def _look(self, session_id: str, index: int | None = None) -> dict[str, Any]:
        body = encode_body({"index": index})
        try:
            session: dict[str, Any] = _decode(await self._proxy.call(self.tenant, Op.GET, session_id, body))
        except ServiceError as error:
            raise frame_error(error) from None
        return session


class SharedConnection(OpenEnvConnection):
    """A connection that several clients use, through any gateway: a WebSocket and HTTP's `/mcp` at once."""

    shared = True

    def __init__(self, client: Client, handle: str) -> None:
        super().__init__(client, lease_s=client.gateway.settings.openenv_idle_s)
        self._store = client.store
        self.handle = handle

    @classmethod
    async def create(cls, client: Client) -> "SharedConnection":
        """Create one with an episode of a random train task; `reset` begins another one. Raises `FrameError`."""
        connection = cls(client, HANDLE_PREFIX + secrets.token_urlsafe(18))
        episode, proxy, tenant = connection._episode, client.gateway.proxy, client.tenant
        limit = client.gateway.settings.openenv_max_handles
        try:
            body = ResetArguments().body(client.spec, connection.lease_s, secrets.randbits(62))
            await episode.begin(proxy, tenant, body)
            episode.episode_id = _default_id(episode.session_id)
            added = await client.store.add(connection.handle, _encode(episode), ttl_s=connection.lease_s, limit=limit)
        except ServiceError as error:
            await episode.end(proxy, tenant)
            raise connection._refused(error) from None
        except StoreFull:
            added = False
        if not added:
            await episode.end(proxy, tenant)
            raise FrameError(
                ErrorCode.CAPACITY_REACHED,
                f"{limit} sessions of OpenEnv's MCP clients are in use; close one, or try later",
                active_sessions=limit,
                max_sessions=limit,
            )
        return connection

    @property
    def name(self) -> str:
        """The handle."""
        return self.handle

    @property
    def lives_by_socket(self) -> bool:
        """False: its calls keep it alive, since other connections may have continued it meanwhile."""
        return False

    async def check(self) -> None:
        """Check that the handle exists and belongs to this tenant and environment. Raises `FrameError` otherwise."""
        try:
            stored = await self._store.get(self.handle)
        except ServiceError as error:
            raise frame_error(error) from None
        episode = None if stored is None else _read_episode(stored)
        if episode is None or (episode.tenant, episode.env) != (self.tenant.name, self.spec.name):
            raise self._unknown()

    async def forget(self) -> None:
        """Delete the handle and close its session."""
        async with self._held() as episode:
            try:
                await self._store.delete(self.handle)
            except ServiceError as error:
                raise frame_error(error) from None
            await episode.end(self._proxy, self.tenant)

    @asynccontextmanager
    async def _held(self, action: str = "") -> AsyncIterator[OpenEnvEpisode]:
        await self.check()  # another tenant's entry is neither held nor prolonged
        try:
            noted = intent(action)
            async with held_episode(
                self._store, self.handle, _read_episode, ttl_s=self.lease_s, intent=noted
            ) as episode:
                yield episode
        except NoEntry:
            raise self._unknown() from None
        except ServiceError as error:
            raise frame_error(error) from None

    def _unknown(self) -> FrameError:
        return FrameError(
            ErrorCode.SESSION_ERROR,
            f"Unknown session_id: {self.handle[:64]}",
            type=problems.UNKNOWN_SESSION,
            status=404,
        )


def _opened(session: dict[str, Any], episode: OpenEnvEpisode) -> dict[str, Any]:
    task = session["task"]
    metadata = {
        "session_id": session["session_id"],
        "lease_s": session["lease_s"],
        "episode_id": episode.episode_id,
        "env": task["env"],
        "task_id": task["task_id"],
        "split": task["split"],
        "level": task["level"],
        "seed": task["seed"],
        "step_count": session["index"],
        "terminated": session["terminated"],
        "truncated": session["truncated"],
        "score": session["score"],
    }
    return observed(session["observation"], reward=None, done=episode.over, metadata=metadata)


def _default_id(session_id: str) -> str:
    """Return an episode's name where the client gave none: the same after a resume, and useless as a session id."""
    return hashlib.sha256(session_id.encode()).hexdigest()[:32]
