"""Brings a session back whose process died: the same task and the same actions on another replica.

The replay must show what the journal says was shown; one that goes elsewhere is
given up. A session has one home, whoever brings it back: within a gateway the work
is shared, and among gateways the move in the journal succeeds for one alone.
"""

import asyncio
import time
from contextlib import suppress
from typing import Any, Final

import msgspec
import structlog
from gymfleet_client.errors import TransportError
from gymfleet_contracts import problems
from gymfleet_contracts.frames import Op
from gymfleet_contracts.session import EnvironmentSpec, OpenSession
from gymfleet_kit.session_problems import SessionLost
from redis.exceptions import RedisError

from gymfleet_env_gateway.errors import Unavailable
from gymfleet_env_gateway.ids import label
from gymfleet_env_gateway.journal import Home, Journal, Played, Record, Story, Written, digest
from gymfleet_env_gateway.metrics import Metrics
from gymfleet_env_gateway.replica import Replica
from gymfleet_env_gateway.routing import Fleet
from gymfleet_env_gateway.settings import GatewaySettings

log = structlog.get_logger()

_WAIT_FOR_ROOM_S: Final = 0.5
_MAX_AT_ONCE: Final = 64
_NO_ROOM: Final = frozenset({problems.ENVIRONMENT_FULL, problems.UNAVAILABLE})
_NO_BODY: Final = msgspec.Raw(msgspec.msgpack.encode({}))
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode


class _ReplicaFailed(Exception):
    """The replica that was to take the session did not: another may."""


class Recovery:
    """Finds the present home of sessions that are no longer where they were."""

    def __init__(self, fleet: Fleet, journal: Journal, metrics: Metrics, settings: GatewaySettings) -> None:
        self._fleet = fleet
        self._journal = journal
        self._metrics = metrics
        self._timeout_s = settings.recovery_timeout_s
        self._max_tries = settings.max_recoveries
        self._running: dict[str, asyncio.Task[Home]] = {}
        self._slots = asyncio.Semaphore(_MAX_AT_ONCE)

    async def relocate(self, session_id: str, env: str, owner: str, lost: Home) -> Home:
        """Where the session lives now that it is no longer at `lost`; replayed there if it was nowhere.

        Raises `SessionLost` when it is gone for good, `Unavailable` when no replica could take it in time.
        """
        task = self._running.get(session_id)
        if task is None:
            task = asyncio.create_task(self._relocate(session_id, env, owner, lost))
            self._running[session_id] = task
            task.add_done_callback(lambda _: self._running.pop(session_id, None))
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        """Give up what is in work: the next call begins it anew."""
        for task in self._running.values():
            task.cancel()
        if self._running:
            await asyncio.wait(list(self._running.values()))

    async def _relocate(self, session_id: str, env: str, owner: str, lost: Home) -> Home:
        started = time.monotonic()
        outcome = "failed"
        try:
            async with asyncio.timeout(self._timeout_s), self._slots:
                home, outcome = await self._find_or_replay(session_id, env, owner, lost)
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
            self._metrics.recovered(env, outcome, time.monotonic() - started)
        return home

    async def _find_or_replay(self, session_id: str, env: str, owner: str, lost: Home) -> tuple[Home, str]:
        story = await self._journal.read(session_id)
        if story is None:
            raise SessionLost("the process that held the session died, and there is no journal to replay it from")
        if story.home != lost and self._fleet.find(story.home.replica) is not None:
            return story.home, "found"
        spec = self._fleet.environment(env)
        tries = await self._journal.count_try(session_id, story.home)
        if tries >= self._max_tries:
            await self._journal.end(session_id)
            raise SessionLost(f"its processes died {tries + 1} times in a row without a step between")
        while True:
            for replica in self._fleet.takers(env):
                with suppress(_ReplicaFailed):
                    return await self._move(replica, session_id, spec, owner, story)
            await self._fleet.wait_for_news(_WAIT_FOR_ROOM_S)

    async def _move(
        self, replica: Replica, session_id: str, spec: EnvironmentSpec, owner: str, story: Story
    ) -> tuple[Home, str]:
        """Replay the session on `replica`, and make that its home unless another gateway was faster."""
        started = time.monotonic()
        home = await self._replay(replica, session_id, spec, owner, story)
        written = await self._journal.move(session_id, story.home, home)
        if written is Written.DONE:
            took_s = round(time.monotonic() - started, 3)
            steps = len(story.steps)
            log.info("session.recovered", env=spec.name, session=label(session_id), steps=steps, took_s=took_s)
            return home, "replayed"
        await self._close(replica, home, spec.name, owner)
        if written is Written.MOVED and (found := await self._journal.home(session_id)) is not None:
            return found, "found"
        raise SessionLost("the session was closed while it was replayed")

    async def _replay(self, replica: Replica, session_id: str, spec: EnvironmentSpec, owner: str, story: Story) -> Home:
        session = await self._ask(replica, Op.OPEN, "", _opening(story.record, owner))
        home = Home(replica.key, session["session_id"])
        replica.opened(spec.name, owner)
        stable = spec.capabilities.stable_observations
        try:
            if stable and digest(session["observation"]) != story.record.observed:
                raise self._diverged(session_id, spec, "the first observation")
            for index, played in enumerate(story.steps):
                body = {"index": index, "action": played.action}
                result = await self._ask(replica, Op.STEP, home.upstream, msgspec.Raw(_encode(body)))
                if not _same(result, played, stable=stable):
                    raise self._diverged(session_id, spec, f"step {index}")
        except BaseException:
            await self._close(replica, home, spec.name, owner)
            raise
        return home

    async def _ask(self, replica: Replica, op: Op, upstream: str, body: msgspec.Raw) -> dict[str, Any]:
        try:
            reply, _ = await replica.channel.request(
                op, upstream, body, timeout_s=self._timeout_s, repeatable=op != Op.OPEN
            )
        except TransportError as error:
            log.warning("recovery.replica_failed", replica=replica.url, op=op, error=str(error))
            raise _ReplicaFailed from None
        if not reply.failed:
            answer: dict[str, Any] = _decode(reply.ok)
            return answer
        problem = _decode(reply.problem)
        kind = problem.get("type")
        if kind in _NO_ROOM or kind == problems.SESSION_LOST:
            raise _ReplicaFailed
        raise SessionLost(f"it could not be replayed: {problem.get('detail') or problem.get('title')}")

    async def _close(self, replica: Replica, home: Home, env: str, owner: str) -> None:
        """Best effort: the lease ends what cannot be closed."""
        with suppress(TransportError):
            await replica.channel.request(Op.CLOSE, home.upstream, _NO_BODY, timeout_s=1.0, repeatable=True)
            replica.ended(env, owner)

    def _diverged(self, session_id: str, spec: EnvironmentSpec, where: str) -> SessionLost:
        log.error("session.replay_diverged", env=spec.name, version=spec.version, session=label(session_id), at=where)
        return SessionLost(f"the replay of its episode showed something else at {where}")


def _opening(record: Record, owner: str) -> msgspec.Raw:
    request = OpenSession.model_validate(
        {
            "env": record.env,
            "split": record.split,
            "level": record.level,
            "task_id": record.task_id,
            "seed": record.seed,
            "lease_s": record.lease_s,
            "owner": owner,
        }
    )
    return msgspec.Raw(_encode(request.model_dump(mode="json", exclude_none=True)))


def _same(result: dict[str, Any], played: Played, *, stable: bool) -> bool:
    over = bool(result["terminated"] or result["truncated"])
    told = (float(result["reward"]), over) == (played.reward, played.over)
    return told and (not stable or digest(result["observation"]) == played.observed)
