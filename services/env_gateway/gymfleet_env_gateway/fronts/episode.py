"""One episode as a front tracks it from call to call, for clients that do not use step indices."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import msgspec
import structlog
from gymfleet_contracts import problems
from gymfleet_contracts.frames import NO_BODY, Op
from gymfleet_kit.problems import ServiceError
from gymfleet_kit.session_api.calls import encode_body
from gymfleet_kit.session_problems import InvalidRequest

from gymfleet_env_gateway.access import Tenant
from gymfleet_env_gateway.session_ids import label
from gymfleet_env_gateway.session_proxy import SessionProxy
from gymfleet_env_gateway.store import Store

log = structlog.get_logger()
E = TypeVar("E", bound="Episode")

_decode: Final = msgspec.msgpack.Decoder().decode
_encode: Final = msgspec.msgpack.Encoder().encode
_NOT_EXECUTED: Final = frozenset(
    {
        problems.ACTION_TOO_LARGE,
        problems.PAYLOAD_TOO_LARGE,
        problems.VALIDATION,
        problems.RATE_LIMITED,
        problems.QUOTA_EXCEEDED,
        problems.ENVIRONMENT_FULL,
        problems.EPISODE_OVER,
    }
)
_UNCERTAIN: Final = frozenset({problems.UNAVAILABLE, problems.UPSTREAM_TIMEOUT})
_GONE: Final = frozenset(
    {problems.UNKNOWN_SESSION, problems.SESSION_LOST, problems.ENVIRONMENT_FAILED, problems.STEP_TIMEOUT}
)


def intent(action: str) -> bytes:
    """Return the action as it is noted before it is sent. Raises `InvalidRequest`: JSON can hold invalid Unicode."""
    try:
        return action.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("the text holds a lone surrogate; send valid Unicode") from None


def counted(error: ServiceError) -> int | None:
    """Return the number of tasks that there are, from the refusal of a drawn task; None if it does not say.

    The spec counts those of the default level alone.
    """
    problem = error.problem()
    count = (problem.model_extra or {}).get("count")
    found = problem.type == problems.UNKNOWN_TASK and type(count) is int and count > 0
    return count if found else None


@asynccontextmanager
async def held_episode(
    store: Store, key: str, read: Callable[[bytes], E], *, ttl_s: float, intent: bytes = b""
) -> AsyncIterator[E]:
    """Hold a kept episode exclusively for one call; its changes are kept, whether the call succeeds or fails.

    Arguments and errors are those of `Store.hold`; `read` decodes the entry.
    """
    async with store.hold(key, ttl_s=ttl_s, intent=intent) as held:
        episode = read(held.value)
        episode.recover(held.left)
        try:
            yield episode
        finally:
            held.value = _encode(episode)


class NoEpisode(Exception):
    """There is no episode to continue: none was begun, or it was lost."""


class OutcomeUnknown(Exception):
    """The outcome of the last action is unknown, and this action is a different one."""


class Episode(msgspec.Struct):
    """A gateway session and how far it has been played.

    `pending` is the action whose answer did not arrive: the step may have been
    executed. The same action is sent again under the same index, which makes the
    repeat safe; a different one would be refused if the step was executed, and played if not.
    """

    session_id: str = ""
    index: int = 0
    observation: str = ""
    total_reward: float = 0.0
    over: bool = False
    pending: str | None = None

    async def begin(self, proxy: SessionProxy, tenant: Tenant, body: Mapping[str, Any]) -> dict[str, Any]:
        """End the last episode, which frees its slot, and open a session. Raises `ServiceError`."""
        await self.end(proxy, tenant)
        session: dict[str, Any] = _decode(await proxy.open_patiently(tenant, encode_body(body)))
        self.adopt(session)
        return session

    def adopt(self, session: Mapping[str, Any]) -> None:
        """Continue from the current state of a session."""
        self.session_id = session["session_id"]
        self.index = session["index"]
        self.observation = session["observation"]
        self.total_reward = 0.0
        self.over = bool(session["terminated"] or session["truncated"])
        self.pending = None

    async def step(self, proxy: SessionProxy, tenant: Tenant, action: str) -> dict[str, Any]:
        """Apply an action. Raises `NoEpisode`, `OutcomeUnknown`, `ServiceError`.

        An episode that is kept outside of this process must be held with the action as its intent (`Store.hold`).
        """
        if not self.session_id:
            raise NoEpisode
        if self.pending not in {None, action}:
            raise OutcomeUnknown
        self.pending = action
        body = encode_body({"index": self.index, "action": action})
        try:
            result: dict[str, Any] = _decode(await proxy.call(tenant, Op.STEP, self.session_id, body))
        except ServiceError as error:
            await self._refused(proxy, tenant, error.problem().type)
            raise
        self.pending = None
        self.index += 1
        self.observation = result["observation"]
        self.total_reward += result["reward"]
        self.over = bool(result["terminated"] or result["truncated"])
        return result

    def recover(self, left: bytes) -> None:
        """Take over the intended action of a holder that died: it may have been executed."""
        if left and self.session_id and self.pending is None:
            self.pending = left.decode()

    async def end(self, proxy: SessionProxy, tenant: Tenant) -> None:
        """Close the session, if there is one. If that fails, the session's lease ends it."""
        session_id, self.session_id, self.pending = self.session_id, "", None
        if not session_id:
            return
        try:
            await proxy.call(tenant, Op.CLOSE, session_id, NO_BODY)
        except ServiceError as error:
            log.info("session.not_closed", session=label(session_id), reason=error.detail)

    async def _refused(self, proxy: SessionProxy, tenant: Tenant, kind: str) -> None:
        if kind in _NOT_EXECUTED:
            self.pending = None
        elif kind in _GONE or kind == problems.STEP_OUT_OF_ORDER:  # out of order: another client plays it now
            self.session_id, self.pending = "", None
        elif kind not in _UNCERTAIN:
            await self.end(proxy, tenant)
