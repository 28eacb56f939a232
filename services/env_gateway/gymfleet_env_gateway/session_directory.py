"""Where each session lives, and what must be journaled so that it can be moved to another replica.

A session lives where its id says until it is moved. Without a journal, and for
environments that are not deterministic, nothing is written and nothing is moved.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from gymfleet_contracts import problems
from gymfleet_contracts.frames import RawReply
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.session import Step
from gymfleet_kit.recent import Recent
from gymfleet_kit.session_problems import SessionLost, UnknownSession
from redis.exceptions import RedisError

from gymfleet_env_gateway.errors import Unavailable
from gymfleet_env_gateway.journal import Journal, JournaledStep, JournalHeader, SessionLocation, Written, digest
from gymfleet_env_gateway.metrics import UNJOURNALED
from gymfleet_env_gateway.recovery import Caller, Recovery
from gymfleet_env_gateway.replica_registry import ReplicaRegistry
from gymfleet_env_gateway.session_ids import SessionRef
from gymfleet_env_gateway.settings import GatewaySettings


class _Step(msgspec.Struct):
    """The part of a step's body that the journal keeps."""

    index: int
    action: str


class _Result(msgspec.Struct):
    """The part of a step's result that a replay must reproduce."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool


_decode: Final = msgspec.msgpack.Decoder().decode
_decode_step: Final = msgspec.msgpack.Decoder(_Step).decode
_decode_result: Final = msgspec.msgpack.Decoder(_Result).decode


class SessionElsewhere(Exception):
    """The session is not at the expected location; `problem` is that replica's reply, or None when it is dead."""

    def __init__(self, problem: Problem | None = None) -> None:
        super().__init__()
        self.problem = problem

    @property
    def unknown(self) -> bool:
        """Whether the replica is alive but does not know the session: closed, reaped, or moved by another gateway."""
        return self.problem is not None and self.problem.type == problems.UNKNOWN_SESSION

    @property
    def culprit(self) -> bool:
        """Whether the session's process died while it worked on this very call."""
        return self.problem is not None and bool((self.problem.model_extra or {}).get(problems.IN_WORK))


class SessionDirectory:
    """The gateway's knowledge of its sessions; `journal` is None where there is no Redis."""

    def __init__(self, registry: ReplicaRegistry, journal: Journal | None, settings: GatewaySettings) -> None:
        self._registry = registry
        self._journal = journal
        self._recovery = None if journal is None else Recovery(registry, journal, settings)
        # A location that is dropped is looked up again when it is needed.
        self._moved: Recent[str, SessionLocation] = Recent(max_size=65_536)

    async def aclose(self) -> None:
        """Cancel the recoveries that are in progress."""
        if self._recovery is not None:
            await self._recovery.aclose()

    def of(self, session_id: str, ref: SessionRef) -> SessionLocation:
        """Return the location to try first."""
        return self._moved.get(session_id) or SessionLocation(ref.replica, ref.upstream)

    async def begin(
        self, session_id: str, location: SessionLocation, session: dict[str, Any], reply: RawReply, *, state_keys: bool
    ) -> None:
        """Record that `session`, as its env server returned it, was opened; `reply` is the server's whole answer.

        `state_keys` says that its caller asked for them.
        """
        task = session["task"]
        if (journal := self._journal_for(task["env"])) is None:
            return
        record = JournalHeader(
            env=task["env"],
            split=task["split"],
            level=task["level"],
            task_id=task["task_id"],
            seed=task["seed"],
            lease_s=session["lease_s"],
            observed=digest(session["observation"]),
            state=digest(reply.state),
            state_keys=state_keys,
            replies=reply.replies,
        )
        await journal.begin(session_id, location, record)

    async def stepped(
        self, session_id: str, env: str, location: SessionLocation, body: msgspec.Raw, reply: RawReply
    ) -> None:
        """Record a step. Raises `SessionElsewhere` when the session has moved: then this result does not count."""
        if (journal := self._journal_for(env)) is None:
            return
        step, result = _step(body), _decode_result(reply.ok)
        over = result.terminated or result.truncated
        played = JournaledStep(
            step.action, digest(result.observation), result.reward, over, digest(reply.state), reply.replies
        )
        written = await journal.step(session_id, location, step.index, played)
        if written is Written.MOVED:
            raise SessionElsewhere
        if written is Written.ABSENT:
            UNJOURNALED.inc()

    async def forked(
        self,
        session_id: str,
        env: str,
        location: SessionLocation,
        children: Sequence[tuple[str, SessionLocation, dict[str, Any]]],
    ) -> None:
        """Record new children, each as (id, location, session). Raises `SessionElsewhere` when the parent has moved."""
        if (journal := self._journal_for(env)) is None:
            return
        if await journal.check(session_id, location) is Written.MOVED:
            raise SessionElsewhere
        await asyncio.gather(  # concurrently, so that they share a round trip
            *(
                journal.copy(session_id, child_id, child_home, child["index"], child["lease_s"])
                for child_id, child_home, child in children
            )
        )

    def guards(self, env: str) -> bool:
        """Return whether steps of `env` may be of a kind that no replay must repeat."""
        spec = self._registry.spec(env)
        return spec is not None and spec.capabilities.irreversible and self._journal_for(env) is not None

    async def seal(self, session_id: str, env: str, location: SessionLocation) -> None:
        """Record, before it is taken, that an action cannot be taken back. Raises `SessionElsewhere`.

        Afterwards would be too late: the process may die at the action, or this gateway before the answer.
        """
        journal = self._journal_for(env)
        if journal is not None and await journal.seal(session_id, location) is Written.MOVED:
            raise SessionElsewhere

    async def has_moved(self, session_id: str, env: str, location: SessionLocation) -> bool:
        """Return whether the session has moved, so that answers from `location` no longer count."""
        journal = self._journal_for(env)
        return journal is not None and await journal.check(session_id, location) is Written.MOVED

    async def record_lease(self, session_id: str, env: str, location: SessionLocation, lease_s: float) -> None:
        """Record that the lease was renewed. Raises `SessionElsewhere` when the session has been moved."""
        journal = self._journal_for(env)
        if journal is not None and await journal.record_lease(session_id, location, lease_s) is Written.MOVED:
            raise SessionElsewhere

    async def forget(self, session_id: str) -> None:
        """Drop a session that is over for good."""
        self._moved.pop(session_id, None)
        if self._journal is not None:
            await self._journal.end(session_id)

    async def seek(
        self, session_id: str, env: str, caller: Caller, location: SessionLocation, missed: SessionElsewhere
    ) -> SessionLocation:
        """Find where a session lives that was not found at `location`, replaying it on another replica if necessary.

        Raises `UnknownSession`, `SessionLost`, `Unavailable`.
        """
        journal = self._journal_for(env)
        if journal is None or self._recovery is None:
            if missed.unknown:
                raise UnknownSession("the session was closed, or its lease ran out")
            why = f"{env} is not deterministic" if self._journal else "this gateway keeps no journal (no redis_url)"
            raise SessionLost(f"the process that held the session died; {why}: it cannot be replayed")
        if missed.unknown:
            found = await self._moved_to(journal, session_id)
            if found is None or found == location:
                await self.forget(session_id)
                raise UnknownSession("the session was closed, or its lease ran out")
        else:
            found = await self._recovery.relocate(session_id, env, caller, location, culprit=missed.culprit)
        self._moved[session_id] = found
        return found

    async def _moved_to(self, journal: Journal, session_id: str) -> SessionLocation | None:
        try:
            return await journal.location(session_id)
        except RedisError as error:
            raise Unavailable(f"the journal cannot be read: {error}") from None

    def _journal_for(self, env: str) -> Journal | None:
        """Return the journal if the environment can be replayed, else None."""
        spec = self._registry.spec(env)
        return self._journal if spec is not None and spec.capabilities.deterministic else None


def _step(body: msgspec.Raw) -> _Step:
    try:
        return _decode_step(body)
    except msgspec.ValidationError:  # the env server accepts more than this struct, such as an index in a string
        step = Step.model_validate(_decode(body))
        return _Step(step.index, step.action)
