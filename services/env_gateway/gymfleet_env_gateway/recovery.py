"""Recover a session whose process died by replaying its task and its actions on another replica.

The replay must produce the observations and the states that the journal recorded; a session
whose replay diverges is given up. So is a session whose own call killed a process twice, and
one with an action that reached the outside world. A journal that cannot be shown to be complete
is not replayed: the session would go back to an earlier state. A session has one location,
whoever recovers it: within a gateway the work is shared, and among gateways only one succeeds
with the move in the journal.
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog
from gymfleet_client.errors import TransportError
from gymfleet_contracts import problems
from gymfleet_contracts.frames import NO_BODY, Op
from gymfleet_contracts.session import EnvironmentSpec, OpenSession
from gymfleet_kit.session_problems import SessionLost
from redis.exceptions import RedisError

from gymfleet_env_gateway.errors import Unavailable
from gymfleet_env_gateway.journal import Journal, JournaledStep, JournalEntries, SessionLocation, Written, digest
from gymfleet_env_gateway.metrics import RECOVERIES, RECOVERY_SECONDS
from gymfleet_env_gateway.replica import Replica
from gymfleet_env_gateway.replica_registry import ReplicaRegistry
from gymfleet_env_gateway.session_ids import label
from gymfleet_env_gateway.settings import GatewaySettings

log = structlog.get_logger()

_WAIT_FOR_ROOM_S: Final = 0.5
_MAX_AT_ONCE: Final = 64
_MAX_KILLED: Final = 2
"""Number of processes that one call may kill: the first death may have had another cause."""
_NO_ROOM: Final = frozenset({problems.ENVIRONMENT_FULL, problems.UNAVAILABLE})
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode


class _ReplicaFailed(Exception):
    """The chosen replica did not take the session, but another may. `killed` says that the replay may be the cause."""

    def __init__(self, *, killed: bool = False) -> None:
        super().__init__()
        self.killed = killed


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller that found the session gone, and what it knows about the session."""

    owner: str
    index: int | None
    """Number of steps that the caller knows of, or number of the step that it wants to take; None when not stated."""
    stepping: bool

    def agrees_with(self, story: JournalEntries) -> bool:
        """Return whether the journal is known to be complete, from the caller's index or else from its Redis server."""
        played = len(story.steps)
        if self.index is not None:
            if self.index > played:
                return False
            if self.index == played or (self.stepping and self.index == played - 1):
                return True
        return story.vouched_for


class Recovery:
    """Finds the current location of sessions that are no longer where they were."""

    def __init__(self, registry: ReplicaRegistry, journal: Journal, settings: GatewaySettings) -> None:
        self._registry = registry
        self._journal = journal
        self._timeout_s = settings.recovery_timeout_s
        self._max_tries = settings.max_recoveries
        # Keyed by caller too: a caller that cannot show that the journal is complete must not fail one that can.
        self._running: dict[tuple[str, Caller], asyncio.Task[SessionLocation]] = {}
        self._slots = asyncio.Semaphore(_MAX_AT_ONCE)

    async def relocate(
        self, session_id: str, env: str, caller: Caller, lost: SessionLocation, *, culprit: bool = False
    ) -> SessionLocation:
        """Return where a session lives that is no longer at `lost`, replaying it if it lives nowhere.

        `culprit` says that its process died in this very call. Raises `SessionLost` when it cannot be replayed,
        `Unavailable` when no replica could take it in time.
        """
        key = (session_id, caller)
        task = self._running.get(key)
        if task is None:
            task = asyncio.create_task(self._relocate(session_id, env, caller, lost, culprit))
            self._running[key] = task
            task.add_done_callback(lambda _: self._running.pop(key, None))
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        """Cancel the recoveries in progress; the next call starts them again."""
        for task in self._running.values():
            task.cancel()
        if self._running:
            await asyncio.wait(list(self._running.values()))

    async def _relocate(
        self, session_id: str, env: str, caller: Caller, lost: SessionLocation, culprit: bool
    ) -> SessionLocation:
        started = time.monotonic()
        outcome = "failed"
        try:
            async with asyncio.timeout(self._timeout_s), self._slots:
                location, outcome = await self._find_or_replay(session_id, env, caller, lost, culprit)
        except TimeoutError:
            outcome = "no-room"
            raise Unavailable(f"no replica could take the session over within {self._timeout_s:g} s") from None
        except RedisError as error:
            outcome = "journal-away"
            raise Unavailable(f"the journal cannot be read: {error}") from None
        except SessionLost as error:
            outcome = "lost"
            log.warning("session.lost", env=env, session=label(session_id), reason=error.detail)
            raise
        finally:
            RECOVERIES.labels(env, outcome).inc()
            RECOVERY_SECONDS.labels(env).observe(time.monotonic() - started)
        return location

    async def _find_or_replay(
        self, session_id: str, env: str, caller: Caller, lost: SessionLocation, culprit: bool
    ) -> tuple[SessionLocation, str]:
        story = await self._journal.read(session_id)
        if story is None:
            raise SessionLost("the process that held the session died, and there is no journal to replay it from")
        if story.location != lost and self._registry.find(story.location.replica) is not None:
            return story.location, "found"
        spec = self._registry.environment(env)
        _check_replayable(story, caller, spec)
        killed = story.killed + culprit
        if story.tries >= self._max_tries:
            raise await self._given_up(session_id, f"{story.tries + 1} processes died under it without a step between")
        while killed < _MAX_KILLED:
            for replica in self._registry.takers(env):
                try:
                    return await self._move(replica, session_id, spec, caller.owner, story, culprit=culprit)
                except _ReplicaFailed as failed:
                    killed += failed.killed
                    if failed.killed:
                        break
            else:
                await self._registry.wait_for_news(_WAIT_FOR_ROOM_S)
        why = f"{killed} of its own calls in a row ended what it needs: process, engine or model"
        raise await self._given_up(session_id, why)

    async def _given_up(self, session_id: str, why: str) -> SessionLost:
        """End the journal of a session whose replay would end the same way, and return the error to raise."""
        await self._journal.end(session_id)
        return SessionLost(why)

    async def _move(
        self,
        replica: Replica,
        session_id: str,
        spec: EnvironmentSpec,
        owner: str,
        story: JournalEntries,
        *,
        culprit: bool,
    ) -> tuple[SessionLocation, str]:
        """Replay the session on `replica`, and make that its location unless another gateway was faster."""
        started = time.monotonic()
        location = await self._replay(replica, session_id, spec, owner, story)
        written = await self._journal.move(session_id, story.location, location, culprit=culprit)
        if written is Written.DONE:
            took_s = round(time.monotonic() - started, 3)
            steps = len(story.steps)
            log.info("session.recovered", env=spec.name, session=label(session_id), steps=steps, took_s=took_s)
            return location, "replayed"
        await self._close(replica, location, spec.name, owner)
        if written is Written.MOVED and (found := await self._journal.location(session_id)) is not None:
            return found, "found"
        raise SessionLost("the session was closed while it was replayed")

    async def _replay(
        self, replica: Replica, session_id: str, spec: EnvironmentSpec, owner: str, story: JournalEntries
    ) -> SessionLocation:
        opening = _opening(story, owner)
        session, state = await self._ask(session_id, replica, Op.OPEN, "", opening, story.record.replies)
        location = SessionLocation(replica.key, session["session_id"])
        replica.opened(spec.name, owner)
        stable = spec.capabilities.stable_observations
        try:
            seen_as_before = not stable or digest(session["observation"]) == story.record.observed
            if not seen_as_before or digest(state) != story.record.state:
                raise await self._diverged(session_id, spec, "its beginning")
            for index, played in enumerate(story.steps):
                body = {"index": index, "action": played.action}
                raw = msgspec.Raw(_encode(body))
                result, state = await self._ask(session_id, replica, Op.STEP, location.upstream, raw, played.replies)
                if not _same(result, played, stable=stable) or digest(state) != played.state:
                    raise await self._diverged(session_id, spec, f"step {index}")
        except BaseException:
            await self._close(replica, location, spec.name, owner)
            raise
        return location

    async def _ask(
        self, session_id: str, replica: Replica, op: Op, upstream: str, body: msgspec.Raw, replies: bytes
    ) -> tuple[dict[str, Any], str]:
        """Send one call of the replay; return the replica's answer and the digest of the state behind it."""
        try:
            reply, _ = await replica.channel.request(
                op, upstream, body, timeout_s=self._timeout_s, repeatable=op != Op.OPEN, replies=replies
            )
        except TransportError as error:
            log.warning("recovery.replica_failed", replica=replica.url, op=op, error=str(error))
            raise _ReplicaFailed from None
        if not reply.failed:
            answer: dict[str, Any] = _decode(reply.ok)
            return answer, reply.state
        problem = _decode(reply.problem)
        kind = problem.get("type")
        if kind in _NO_ROOM or kind == problems.SESSION_LOST:
            raise _ReplicaFailed(killed=bool(problem.get(problems.IN_WORK)))
        reason = problem.get("detail") or problem.get("title")
        raise await self._given_up(session_id, f"it could not be replayed: {reason}")

    async def _close(self, replica: Replica, location: SessionLocation, env: str, owner: str) -> None:
        """Close a session if possible; the lease ends one that cannot be closed."""
        with suppress(TransportError):
            await replica.channel.request(Op.CLOSE, location.upstream, NO_BODY, timeout_s=1.0, repeatable=True)
            replica.ended(env, owner)

    async def _diverged(self, session_id: str, spec: EnvironmentSpec, where: str) -> SessionLost:
        log.error("session.replay_diverged", env=spec.name, version=spec.version, session=label(session_id), at=where)
        return await self._given_up(session_id, f"the replay of its episode led elsewhere at {where}")


def _opening(story: JournalEntries, owner: str) -> msgspec.Raw:
    record = story.record
    request = OpenSession.model_validate(
        {
            "env": record.env,
            "split": record.split,
            "level": record.level,
            "task_id": record.task_id,
            "seed": record.seed,
            "lease_s": record.lease_s,
            "owner": owner,
            "recoveries": story.recoveries + 1,
            "state_keys": record.state_keys or None,
            "record_replies": True if record.replies else None,
        }
    )
    return msgspec.Raw(_encode(request.model_dump(mode="json", exclude_none=True)))


def _check_replayable(story: JournalEntries, caller: Caller, spec: EnvironmentSpec) -> None:
    """Raise `SessionLost` if a replay would repeat what cannot be taken back, or would be another episode."""
    if story.sealed:
        raise SessionLost("an action of the session cannot be taken back, and a replay would repeat it")
    if not caller.agrees_with(story):
        raise SessionLost(
            f"its journal knows of {len(story.steps)} steps, and that these are all cannot be shown; "
            "say the index that the session has"
        )
    # An env server that records replies sends a record with each answer, if only an empty one.
    if spec.models and not all((story.record.replies, *(step.replies for step in story.steps))):
        raise SessionLost("what models replied in the episode was not recorded, and asked again they would differ")


def _same(result: dict[str, Any], played: JournaledStep, *, stable: bool) -> bool:
    over = bool(result["terminated"] or result["truncated"])
    told = (float(result["reward"]), over) == (played.reward, played.over)
    return told and (not stable or digest(result["observation"]) == played.observed)
