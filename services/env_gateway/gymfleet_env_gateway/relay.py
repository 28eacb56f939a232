"""Carries one call to the replica that its session lives on, and the answer back under the gateway's own ids.

Bodies pass through undecoded: the env server validates them. Only what names a
session (the answers to open, fork, get and lease) is taken apart and rewritten.
"""

import time
from typing import Any, Final

import msgspec
import structlog
from gymfleet_client.errors import DeadlinePassed, TransportError
from gymfleet_client.multiplex import RawReply
from gymfleet_contracts import problems
from gymfleet_contracts.frames import Op
from gymfleet_contracts.problems import Problem
from gymfleet_kit.problems import RelayedProblem, ServiceError
from gymfleet_kit.session_problems import InvalidRequest, SessionLost, UnknownSession
from pydantic import ValidationError

from gymfleet_env_gateway.access import Tenant
from gymfleet_env_gateway.errors import Unavailable, UpstreamTimeout
from gymfleet_env_gateway.ids import SessionIds, SessionRef
from gymfleet_env_gateway.metrics import Metrics
from gymfleet_env_gateway.replica import Replica, ReplicaState
from gymfleet_env_gateway.routing import Fleet
from gymfleet_env_gateway.settings import GatewaySettings

log = structlog.get_logger()

_decode: Final = msgspec.msgpack.Decoder().decode
_encode: Final = msgspec.msgpack.Encoder().encode
_TRY_ELSEWHERE: Final = frozenset({problems.ENVIRONMENT_FULL, problems.UNAVAILABLE})
_NO_SESSION: Final = frozenset({problems.UNKNOWN_SESSION, problems.SESSION_LOST})


class Relay:
    """The session API, one method for opening and one for all that follows."""

    def __init__(self, fleet: Fleet, ids: SessionIds, metrics: Metrics, settings: GatewaySettings) -> None:
        self._fleet = fleet
        self._ids = ids
        self._metrics = metrics
        self._timeouts: Final[dict[str, float]] = {
            Op.STEP: settings.step_timeout_s,
            Op.FORK: settings.open_timeout_s,
            Op.LEASE: settings.call_timeout_s,
            Op.GET: settings.call_timeout_s,
            Op.CLOSE: settings.call_timeout_s,
            Op.EXPERT: settings.step_timeout_s,
        }
        self._open_timeout_s = settings.open_timeout_s

    async def open(self, tenant: Tenant, body: msgspec.Raw) -> msgspec.Raw:
        """Open a session on the least loaded replica; a full or dying one passes the call on to the next."""
        started = time.perf_counter()
        env = _environment(body)
        candidates = self._fleet.candidates(env)
        deadline = started + self._open_timeout_s
        outcome = "cancelled"
        try:
            session = await self._open_on_first(tenant, candidates, env, body, deadline)
            outcome = "ok"
        except ServiceError as error:
            outcome = _outcome(error)
            raise
        finally:
            self._metrics.record(env, Op.OPEN, outcome, started)
        return msgspec.Raw(_encode(session))

    async def call(self, tenant: Tenant, op: str, session_id: str, body: msgspec.Raw) -> msgspec.Raw:
        """Any call within a session. Raises `ServiceError`: the gateway's own, or the env server's as it is."""
        timeout_s = self._timeouts.get(op)
        if timeout_s is None:
            raise InvalidRequest(f"unknown op {op[:32]!r}; known: {', '.join(Op)}")
        ref = self._ids.read(session_id, tenant.name)
        started = time.perf_counter()
        outcome = "cancelled"
        try:
            ok = await self._call(op, ref, body, timeout_s)
            if op in {Op.FORK, Op.GET, Op.LEASE}:
                ok = self._rewrite(tenant, op, ref, session_id, ok)
            outcome = "ok"
        except ServiceError as error:
            outcome = _outcome(error)
            raise
        finally:
            self._metrics.record(ref.env, op, outcome, started)
        return ok

    async def _open_on_first(
        self, tenant: Tenant, candidates: list[Replica], env: str, body: msgspec.Raw, deadline: float
    ) -> dict[str, Any]:
        refusal: ServiceError = Unavailable(f"every replica of {env} went away while the session was opened")
        for replica in candidates:
            replica.opening += 1
            try:
                remaining_s = max(deadline - time.perf_counter(), 0.001)
                reply, _ = await replica.channel.request(Op.OPEN, "", body, timeout_s=remaining_s, repeatable=False)
            except DeadlinePassed:
                raise UpstreamTimeout(f"{env} opened no session within {self._open_timeout_s:g} s") from None
            except TransportError as error:
                log.warning("session.open_failed", env=env, replica=replica.url, error=str(error))
                continue  # a session that it may have opened dies with it, or with its lease
            finally:
                replica.opening -= 1
            if not reply.failed:
                return self._adopt(tenant, replica, env, _decode(reply.ok))
            problem = _problem(reply)
            if problem.type not in _TRY_ELSEWHERE:
                raise RelayedProblem(problem)
            refusal = RelayedProblem(problem)
        raise refusal

    async def _call(self, op: str, ref: SessionRef, body: msgspec.Raw, timeout_s: float) -> msgspec.Raw:
        replica = self._fleet.home(ref)
        try:
            reply, times_sent = await replica.channel.request(
                op, ref.upstream, body, timeout_s=timeout_s, repeatable=op != Op.FORK
            )
        except DeadlinePassed:
            self._fleet.home(ref)  # a replica that died meanwhile is the better reason
            raise UpstreamTimeout(f"no answer to {op} within {timeout_s:g} s") from None
        except TransportError as error:
            if await replica.confirm() is ReplicaState.DOWN:
                raise SessionLost("the env server that held the session died") from None
            raise Unavailable(f"the connection to the session's env server broke: {error}") from None
        if reply.failed:
            problem = _problem(reply)
            if op == Op.CLOSE and times_sent > 1 and problem.type == problems.UNKNOWN_SESSION:
                replica.ended(ref.upstream)  # the first try closed it, its answer was lost
                return msgspec.Raw()
            raise self._translated(replica, ref, problem)
        if op == Op.CLOSE:
            replica.ended(ref.upstream)
        else:
            replica.touched(ref.upstream)
        return reply.ok

    def _translated(self, replica: Replica, ref: SessionRef, problem: Problem) -> ServiceError:
        """The env server's problem; about its own session ids it speaks in ours."""
        if problem.type in _NO_SESSION:
            replica.ended(ref.upstream)
        if problem.type == problems.UNKNOWN_SESSION:
            return UnknownSession("the session was closed, or its lease ran out")
        return RelayedProblem(problem)

    def _rewrite(self, tenant: Tenant, op: str, ref: SessionRef, session_id: str, ok: msgspec.Raw) -> msgspec.Raw:
        replica = self._fleet.home(ref)
        body = _decode(ok)
        if op == Op.FORK:
            return msgspec.Raw(_encode([self._adopt(tenant, replica, ref.env, child) for child in body]))
        replica.touched(ref.upstream, body["lease_s"])
        return msgspec.Raw(_encode({**body, "session_id": session_id}))

    def _adopt(self, tenant: Tenant, replica: Replica, env: str, session: dict[str, Any]) -> dict[str, Any]:
        """A session that a replica has just made, under an id of ours."""
        upstream = session["session_id"]
        replica.opened(env, upstream, session["lease_s"])
        return {**session, "session_id": self._ids.issue(env, replica.key, upstream, tenant.name)}


def _environment(body: msgspec.Raw) -> str:
    decoded = _decode(body)
    env = decoded.get("env") if isinstance(decoded, dict) else None
    if not isinstance(env, str):
        raise InvalidRequest("/body/env: give the name of an environment", errors=[{"pointer": "/body/env"}])
    return env


def _problem(reply: RawReply) -> Problem:
    try:
        return Problem.model_validate(_decode(reply.problem))
    except ValidationError:
        return Problem(title="The env server failed", status=502, detail="its answer is not a problem document")


def _outcome(error: ServiceError) -> str:
    return error.problem().type.rsplit("/", 1)[-1]
