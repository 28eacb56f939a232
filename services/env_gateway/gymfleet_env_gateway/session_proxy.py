"""Forward each call to the replica that holds its session, and return the answer under the gateway's own ids.

Bodies pass through undecoded unless the gateway needs something from them: the env server
validates them. Answers that name a session (those to open, fork, get and lease) are
rewritten. The actions of sessions that can be replayed are written to the journal before
their results are sent.
"""

import math
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import structlog
from gymfleet_client.errors import DeadlinePassed, TransportError
from gymfleet_contracts import problems
from gymfleet_contracts.frames import MAX_BODY_BYTES, Op, RawReply
from gymfleet_contracts.problems import Problem
from gymfleet_kit.problems import PayloadTooLarge, RelayedProblem, ServiceError
from gymfleet_kit.retries import Retries
from gymfleet_kit.session_api.calls import decode_body, num_children
from gymfleet_kit.session_problems import InvalidRequest
from gymfleet_kit.trace import current_trace, working
from pydantic import ValidationError

from gymfleet_env_gateway.access import Tenant
from gymfleet_env_gateway.admission import Admission
from gymfleet_env_gateway.errors import Forbidden, QueueFull, RateLimited, Unavailable, UpstreamTimeout
from gymfleet_env_gateway.journal import SessionLocation
from gymfleet_env_gateway.metrics import record_call
from gymfleet_env_gateway.recovery import Caller
from gymfleet_env_gateway.replica import Replica, ReplicaState
from gymfleet_env_gateway.replica_registry import ReplicaRegistry
from gymfleet_env_gateway.session_directory import SessionDirectory, SessionElsewhere
from gymfleet_env_gateway.session_ids import SessionIds, SessionRef, label
from gymfleet_env_gateway.session_seats import call_from_seat, seats_of
from gymfleet_env_gateway.settings import GatewaySettings

log = structlog.get_logger()

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode
_TRY_ELSEWHERE: Final = frozenset({problems.ENVIRONMENT_FULL, problems.UNAVAILABLE})
_ENDED: Final = frozenset({problems.SESSION_LIMIT, problems.ENVIRONMENT_FAILED, problems.STEP_TIMEOUT})
_REWRITTEN: Final = frozenset({Op.FORK, Op.GET, Op.LEASE})
_OF_THE_EPISODE: Final = frozenset({problems.STEP_OUT_OF_ORDER, problems.EPISODE_OVER})
"""Problems that a stale copy of a session that has been moved would report as well."""
_VIEWS: Final = frozenset({Op.GET, Op.EXPERT, Op.ACTIONS, Op.IRREVERSIBLE, Op.TOOL, Op.IMAGE})
_PAUSE_S: Final = 0.2
_AFTER_TIMEOUT_S: Final = 5.0
"""Time for an env server to end a call that exceeds its task's limit, and to say so."""
_DONE: Final = msgspec.Raw(_encode(None))


class _Unconnected(Unavailable):
    """The connection broke, and the env server is alive."""


_RECONNECTING: Final = Retries(None, on=_Unconnected, first_pause_s=_PAUSE_S, longest_pause_s=_PAUSE_S)


class TenantCalls(NamedTuple):
    """The session API for one tenant: `gymfleet_kit.session_api.calls.SessionCalls`."""

    proxy: "SessionProxy"
    tenant: Tenant

    def call(self, op: str, session_id: str, body: msgspec.Raw) -> Coroutine[Any, Any, msgspec.Raw]:
        """Make a call. Raises `ServiceError`: the gateway's own, or the env server's unchanged."""
        # Not a coroutine itself: one more for each step would show in the gateway's processor time.
        if op == Op.OPEN:
            return self.proxy.open(self.tenant, body)
        return self.proxy.call(self.tenant, op, session_id, body)


class SessionProxy:
    """The session API: one method for opening a session and one for all later calls."""

    def __init__(
        self,
        registry: ReplicaRegistry,
        ids: SessionIds,
        directory: SessionDirectory,
        admission: Admission,
        settings: GatewaySettings,
    ) -> None:
        self._registry = registry
        self._ids = ids
        self._directory = directory
        self._admission = admission
        self._timeouts: Final[dict[str, float]] = {
            Op.STEP: settings.step_timeout_s,
            Op.FORK: settings.open_timeout_s,
            Op.LEASE: settings.call_timeout_s,
            Op.GET: settings.call_timeout_s,
            Op.CLOSE: settings.call_timeout_s,
            Op.EXPERT: settings.step_timeout_s,
            Op.ACTIONS: settings.step_timeout_s,
            Op.IRREVERSIBLE: settings.step_timeout_s,
            Op.TOOL: settings.step_timeout_s,
            Op.IMAGE: settings.call_timeout_s,
        }
        self._open_timeout_s = settings.open_timeout_s
        self._fronts_wait_s = settings.fronts_wait_s

    async def open(self, tenant: Tenant, body: msgspec.Raw) -> msgspec.Raw:
        """Open a session on the least loaded replica, once there is room and it is the tenant's turn."""
        started = time.perf_counter()
        _check_size(body)
        request = _opening(body)
        env = request["env"]
        self._registry.candidates(env)  # do not queue for an environment that no replica can open
        deadline = started + self._open_timeout_s
        raw = msgspec.Raw(_encode(self._upstream_request(request, tenant)))
        outcome = "cancelled"
        try:
            with working("gateway.open", env=env, op=Op.OPEN):
                async with self._admission.opening(tenant, env, self._patience_s(request)) as ticket:
                    keyed = request.get("state_keys") is True
                    while (session := await self._open_on_first(tenant, env, raw, deadline, keyed=keyed)) is None:
                        await ticket.refused()
            outcome = "ok"
        except ServiceError as error:
            outcome = _outcome(error)
            raise
        finally:
            record_call(env, tenant.name, Op.OPEN, outcome, started)
        return msgspec.Raw(_encode(session))

    async def open_patiently(self, tenant: Tenant, body: msgspec.Raw) -> msgspec.Raw:
        """Open a session for a client that would treat a 429 as a failure, retrying after the wait that each 429 gives.

        A client of a front may set `wait_s` to say that it has less time.
        """
        timeout_s = min(self._fronts_wait_s, _wait_s(_opening(body), math.inf))
        # Not a quota error: only the tenant can close a session.
        retries = Retries(None, on=(QueueFull, RateLimited), asked_s=lambda error: error.wait_s)
        return await retries.call(lambda: self.open(tenant, body), timeout_s=timeout_s)

    async def call(self, tenant: Tenant, op: str, session_id: str, body: msgspec.Raw) -> msgspec.Raw:
        """Make any call within a session. Raises `ServiceError`: the gateway's own, or the env server's unchanged."""
        _check_size(body)
        ref = self._ids.read(session_id, tenant.name)
        if ref.seat:
            whole = partial(self._call_whole, tenant, ref.session_id)
            return await call_from_seat(whole, op, session_id, ref, body)
        timeout_s = self._timeouts[op]
        if (spec := self._registry.spec(ref.env)) is not None and spec.step_timeout_s is not None:
            timeout_s = max(timeout_s, spec.step_timeout_s + _AFTER_TIMEOUT_S)
        started = time.perf_counter()
        outcome = "cancelled"
        try:
            with working(f"gateway.{op}", env=ref.env, session=label(session_id), op=op):
                if op == Op.STEP:
                    self._admission.step(tenant, ref.env)
                if op == Op.FORK:
                    ok = await self._fork(tenant, session_id, ref, body, started + timeout_s)
                else:
                    ok = await self._call_where_it_lives(tenant, op, session_id, ref, body, started + timeout_s)
            outcome = "ok"
        except ServiceError as error:
            outcome = _outcome(error)
            raise
        finally:
            record_call(ref.env, tenant.name, op, outcome, started)
        return ok

    async def seats(self, tenant: Tenant, session_id: str) -> dict[str, str]:
        """Return a session id for each player of a game. Raises `NoGame`, `Forbidden`, and what `call` raises."""
        if seat := self._ids.read(session_id, tenant.name).seat:
            raise Forbidden(f"the seat {seat} may look and act; seats are given by whoever opened the game")
        players = await seats_of(partial(self._call_whole, tenant, session_id))
        return {player: self._ids.seat(session_id, player, tenant.name) for player in players}

    async def _call_whole(self, tenant: Tenant, session_id: str, op: str, body: msgspec.Raw) -> msgspec.Raw:
        return await self.call(tenant, op, session_id, body)

    def _upstream_request(self, request: dict[str, Any], tenant: Tenant) -> dict[str, Any]:
        """Return the request to an env server: its fields that the gateway sets override whatever the caller sent."""
        asked = {**request, "owner": tenant.name, "recoveries": None}
        asked.pop("record_replies", None)
        spec = self._registry.spec(request["env"])
        return {**asked, "record_replies": True} if spec is not None and spec.models else asked

    def _patience_s(self, request: dict[str, Any]) -> float:
        """Return how long to queue: a caller that has given up would never learn of the session opened for it."""
        return min(self._open_timeout_s, _wait_s(request, math.inf))

    async def _open_on_first(
        self, tenant: Tenant, env: str, body: msgspec.Raw, deadline: float, *, keyed: bool
    ) -> dict[str, Any] | None:
        """Try the replicas in turn, skipping full and dying ones; return None when all live replicas are full."""
        full, why = False, "went away"
        for replica in self._registry.candidates(env):
            slots = replica.specs[env].slots
            replica.opening += slots
            replica.occupancy.begins(env, tenant.name)
            try:
                remaining_s = max(deadline - time.perf_counter(), 0.001)
                reply, _ = await replica.channel.request(
                    Op.OPEN, "", body, timeout_s=remaining_s, repeatable=False, trace=current_trace() or ""
                )
            except DeadlinePassed:
                raise UpstreamTimeout(f"{env} opened no session within {self._open_timeout_s:g} s") from None
            except TransportError as error:
                log.warning("session.open_failed", env=env, replica=replica.url, error=str(error))
                continue  # a session that it may have opened ends with it, or with the lease
            finally:
                replica.opening -= slots
                replica.occupancy.ends(env, tenant.name)
            if not reply.failed:
                session = _decode(reply.ok)
                adopted = self._adopt(tenant, replica, env, session)
                location = SessionLocation(replica.key, session["session_id"])
                await self._directory.begin(adopted["session_id"], location, session, reply, state_keys=keyed)
                return adopted
            problem = _problem(reply)
            if problem.type not in _TRY_ELSEWHERE:
                raise RelayedProblem(problem)
            full = full or problem.type == problems.ENVIRONMENT_FULL
            why = f"refused ({problem.detail})"
        if full:
            return None
        raise Unavailable(f"every replica of {env} was tried for the session; the last one {why}")

    async def _fork(
        self, tenant: Tenant, session_id: str, ref: SessionRef, body: msgspec.Raw, deadline: float
    ) -> msgspec.Raw:
        """Fork a session. The children need slots as new sessions do, on the parent's replica."""
        timeout_s = self._timeouts[Op.FORK]
        async with self._admission.opening(tenant, ref.env, timeout_s, slots=num_children(body)) as ticket:
            while True:
                try:
                    return await self._call_where_it_lives(tenant, Op.FORK, session_id, ref, body, deadline)
                except RelayedProblem as error:
                    if error.problem().type != problems.ENVIRONMENT_FULL:
                        raise
                await ticket.refused(everywhere=False)

    async def _call_where_it_lives(
        self, tenant: Tenant, op: str, session_id: str, ref: SessionRef, body: msgspec.Raw, deadline: float
    ) -> msgspec.Raw:
        """Make the call where the session lives, looking the location up again when the session is not there."""
        location = self._directory.of(session_id, ref)
        while True:
            try:
                return await self._call_there(tenant, op, session_id, ref.env, location, body, deadline)
            except SessionElsewhere as missed:
                if op == Op.CLOSE and not missed.unknown:
                    await self._directory.forget(session_id)  # it is gone, which is what the caller asked for
                    return _DONE
                location = await self._directory.seek(session_id, ref.env, _caller(tenant, op, body), location, missed)
            except RelayedProblem as error:
                kind = error.problem().type
                if kind in _ENDED:  # a replay would end the same way
                    await self._directory.forget(session_id)
                if kind not in _OF_THE_EPISODE or not await self._directory.has_moved(session_id, ref.env, location):
                    raise
                caller = _caller(tenant, op, body)
                location = await self._directory.seek(session_id, ref.env, caller, location, SessionElsewhere())
            if time.perf_counter() > deadline:
                raise UpstreamTimeout(f"no answer to {op} in time: its session had to be recovered")

    async def _call_there(
        self,
        tenant: Tenant,
        op: str,
        session_id: str,
        env: str,
        location: SessionLocation,
        body: msgspec.Raw,
        deadline: float,
    ) -> msgspec.Raw:
        replica = await self._replica(location)
        if op == Op.CLOSE:
            return await self._close(tenant, session_id, env, location, replica, body, deadline)
        if op == Op.STEP and self._directory.guards(env):
            asked = await self._call(Op.IRREVERSIBLE, env, location, replica, body, deadline)
            if _decode(asked.ok)["irreversible"]:
                await self._directory.seal(session_id, env, location)
        reply = await self._call(op, env, location, replica, body, deadline)
        if op == Op.STEP:
            await self._directory.stepped(session_id, env, location, body, reply)
        elif op in _VIEWS and await self._directory.has_moved(session_id, env, location):
            raise SessionElsewhere
        if op in _REWRITTEN:
            return await self._rewritten(tenant, op, session_id, env, location, replica, reply.ok)
        return reply.ok

    async def _close(
        self,
        tenant: Tenant,
        session_id: str,
        env: str,
        location: SessionLocation,
        replica: Replica,
        body: msgspec.Raw,
        deadline: float,
    ) -> msgspec.Raw:
        replica.occupancy.begins(env, tenant.name)
        try:
            reply = await self._call(Op.CLOSE, env, location, replica, body, deadline)
            replica.ended(env, tenant.name)
        finally:
            replica.occupancy.ends(env, tenant.name)
        await self._directory.forget(session_id)
        self._ids.forget(session_id, tenant.name)
        return reply.ok

    async def _replica(self, location: SessionLocation) -> Replica:
        """Return the session's replica. Raises `SessionElsewhere` when it is dead or unknown."""
        replica = self._registry.find(location.replica)
        if replica is None:
            # The replica may be back, or new: another gateway may have opened the session there a moment ago.
            await self._registry.refresh(location.replica)
            replica = self._registry.find(location.replica)
        if replica is None:
            raise SessionElsewhere
        return replica

    async def _call(
        self, op: str, env: str, location: SessionLocation, replica: Replica, body: msgspec.Raw, deadline: float
    ) -> RawReply:
        reply, sent_once = await self._answer(op, location, replica, body, deadline)
        if not reply.failed:
            return reply
        problem = _problem(reply)
        if problem.type == problems.UNKNOWN_SESSION and op == Op.CLOSE and not sent_once:
            return RawReply(0, ok=_DONE)  # the first try closed it and its answer was lost
        if problem.type in {problems.SESSION_LOST, problems.UNKNOWN_SESSION}:
            raise SessionElsewhere(problem)
        if problem.type in _ENDED:
            log.warning("session.failed", env=env, replica=replica.url, op=op, reason=problem.detail)
        raise RelayedProblem(problem)

    async def _answer(
        self, op: str, location: SessionLocation, replica: Replica, body: msgspec.Raw, deadline: float
    ) -> tuple[RawReply, bool]:
        """Return the env server's reply, and whether the request was sent only once.

        A server that is alive but takes no connections may be restarting, for example: ask until it answers or is dead.
        """
        lost = 0

        async def once() -> tuple[RawReply, int]:
            nonlocal lost
            timeout_s = max(deadline - time.perf_counter(), 0.001)
            try:
                return await replica.channel.request(
                    op,
                    location.upstream,
                    body,
                    timeout_s=timeout_s,
                    repeatable=op != Op.FORK,
                    trace=current_trace() or "",
                )
            except DeadlinePassed:
                if replica.state is ReplicaState.DOWN:
                    raise SessionElsewhere from None
                raise UpstreamTimeout(f"no answer to {op} within {self._timeouts[op]:g} s") from None
            except TransportError as error:
                if await replica.confirm() is ReplicaState.DOWN:
                    raise SessionElsewhere from None
                lost += 1
                broke = f"the connection to the session's env server broke: {error}"
                raise (Unavailable if op == Op.FORK or replica.closing else _Unconnected)(broke) from None

        reply, times_sent = await _RECONNECTING.call(once, timeout_s=deadline - time.perf_counter())
        return reply, lost + times_sent == 1

    async def _rewritten(
        self,
        tenant: Tenant,
        op: str,
        session_id: str,
        env: str,
        location: SessionLocation,
        replica: Replica,
        ok: msgspec.Raw,
    ) -> msgspec.Raw:
        """Return the answer with its session ids replaced by the gateway's ids."""
        body = _decode(ok)
        if op == Op.FORK:
            adopted = [self._adopt(tenant, replica, env, child) for child in body]
            children = [
                (child["session_id"], SessionLocation(replica.key, raw["session_id"]), raw)
                for raw, child in zip(body, adopted, strict=True)
            ]
            await self._directory.forked(session_id, env, location, children)
            return msgspec.Raw(_encode(adopted))
        if op == Op.LEASE:
            await self._directory.record_lease(session_id, env, location, body["lease_s"])
        return msgspec.Raw(_encode({**body, "session_id": session_id}))

    def _adopt(self, tenant: Tenant, replica: Replica, env: str, session: dict[str, Any]) -> dict[str, Any]:
        """Return a session that a replica has just made, under an id issued by this gateway."""
        replica.opened(env, tenant.name)
        session_id = self._ids.issue(env, replica.key, session["session_id"], tenant.name)
        return {**session, "session_id": session_id}


def _check_size(body: msgspec.Raw) -> None:
    if len(body) > MAX_BODY_BYTES:
        raise PayloadTooLarge(f"the body exceeds {MAX_BODY_BYTES} bytes", limit_bytes=MAX_BODY_BYTES)


def _opening(body: msgspec.Raw) -> dict[str, Any]:
    decoded = decode_body(body)
    if not isinstance(decoded, dict) or not isinstance(decoded.get("env"), str):
        raise InvalidRequest("/body/env: give the name of an environment", errors=[{"pointer": "/body/env"}])
    return decoded


def _wait_s(request: dict[str, Any], otherwise: float) -> float:
    wait_s = request.get("wait_s")
    return wait_s if isinstance(wait_s, int | float) else otherwise


def _caller(tenant: Tenant, op: str, body: msgspec.Raw) -> Caller:
    """Return who calls and which session index the call states. A body that cannot be read states none."""
    try:
        index = decode_body(body).get("index")
    except (InvalidRequest, AttributeError):
        index = None
    return Caller(tenant.name, index if isinstance(index, int) else None, stepping=op == Op.STEP)


def _problem(reply: RawReply) -> Problem:
    try:
        return Problem.model_validate(_decode(reply.problem))
    except ValidationError:
        return Problem(title="The env server failed", status=502, detail="its answer is not a problem document")


def _outcome(error: ServiceError) -> str:
    return error.problem().type.rsplit("/", 1)[-1]
