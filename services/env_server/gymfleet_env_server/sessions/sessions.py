"""A shard's sessions: the session API's calls, leases, limits and counts. One thread at a time, no I/O."""

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import structlog
from gymfleet_contracts.frames import Op
from gymfleet_contracts.observation import AskForImage
from gymfleet_contracts.session import (
    AdmissibleActions,
    AtIndex,
    ExpertMove,
    Fork,
    OpenSession,
    RenewLease,
    Session,
    Step,
    ToolCall,
)
from gymfleet_envs import tasks
from gymfleet_envs.tasks import Task
from gymfleet_kit.problems import ServiceError
from gymfleet_kit.session_api.calls import parse
from gymfleet_kit.session_problems import (
    EnvironmentFailed,
    ExpertUnavailable,
    InvalidRequest,
    SessionLimit,
    SessionLost,
    StepOutOfOrder,
    StepTimeout,
    UnknownEnvironment,
    UnknownSession,
    UnknownTask,
)

from gymfleet_env_server.catalogue import Entry
from gymfleet_env_server.errors import ShardUnavailable
from gymfleet_env_server.metrics import count_step
from gymfleet_env_server.sessions.counts import Counts
from gymfleet_env_server.sessions.endings import Endings
from gymfleet_env_server.sessions.episode import Episode
from gymfleet_env_server.sessions.ids import new_id
from gymfleet_env_server.sessions.leases import Lease, Leases
from gymfleet_env_server.sessions.limits import Limits
from gymfleet_env_server.sessions.probe import probe
from gymfleet_env_server.sessions.world import Seal, World
from gymfleet_env_server.shards.channel import Call
from gymfleet_env_server.wire import decode

PROBE: Final = "probe"
PROBE_WAITING: Final = "probe-waiting"
"""The second part of a probe, where there are threads: it covers the environments that wait."""
ABANDON: Final = "abandon"
"""The op by which the front gives up a call in a thread: the session is over, whatever the call's outcome."""
_BUSY_S: Final = 0.1
"""How soon an expired session is checked again while one of its calls is in progress."""
T = TypeVar("T")
log = structlog.get_logger()


class Sessions:
    """All sessions of one shard.

    Args:
        prefix: begins every session id and names the shard.
        entries: the environments, by name.
        lease_s: lease of sessions that do not request one.
        seal: seals the environments' data for the reward service alone; without it, this data goes nowhere.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        prefix: str,
        entries: Mapping[str, Entry],
        limits: Limits,
        *,
        lease_s: float,
        expert_splits: tuple[str, ...],
        seal: Seal | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prefix = prefix
        self._entries = entries
        self._limits = limits
        self._lease_s = lease_s
        self._expert_splits = expert_splits
        self._seal = seal
        self._clock = clock
        self._leases = Leases()
        self._endings = Endings()
        # Sessions that are over while one of their calls is stuck: they are closed when it returns.
        self._stuck: dict[str, Episode] = {}
        self.counts = Counts(entries)
        self._replayable: dict[str, Callable[[str, Any, bytes], Any]] = {
            Op.STEP: self._step_loosely,
            Op.OPEN: lambda _, body, replies: self._open_session(parse(OpenSession, body), replies).model_dump(),
        }
        self._calls: dict[str, Callable[[str, Any], Any]] = {
            Op.GET: lambda session_id, body: self._view(self._at(session_id, body, touch=False)).model_dump(),
            Op.LEASE: lambda session_id, body: self._renew(session_id, parse(RenewLease, body)).model_dump(),
            Op.FORK: self._fork_sessions,
            Op.EXPERT: lambda session_id, body: self._expert(self._at(session_id, body)).model_dump(),
            Op.ACTIONS: lambda session_id, body: self._admissible(self._at(session_id, body)).model_dump(),
            Op.IRREVERSIBLE: self._irreversible,
            Op.TOOL: self._tool_action,
            Op.IMAGE: self._image,
            Op.CLOSE: lambda session_id, _: self._close(session_id),
            PROBE: lambda *_: probe(self._entries, self._limits, here=True),
            PROBE_WAITING: lambda *_: probe(self._entries, self._limits, here=False),
        }

    def __len__(self) -> int:
        return len(self._leases)

    def handle(self, op: str, session_id: str, body: Any, replies: bytes = b"") -> Any:
        """Make one call and return its answer, ready to be encoded; `replies` as in `step`. Raises `ServiceError`."""
        if (play := self._replayable.get(op)) is not None:
            return play(session_id, body, replies)
        if (do := self._calls.get(op)) is None:
            raise InvalidRequest(f"unknown op; known: {', '.join(Op)}")
        return do(session_id, body)

    def step(self, session_id: str, index: int, action: str, replies: bytes = b"") -> bytes:
        """Return the encoded `StepResult`, the stored one if the step was taken before. Raises `ServiceError`.

        `replies` are those that were recorded, in a replay; models are then not asked.
        """
        lease = self._lease(session_id)
        episode = lease.episode
        if stored := episode.repeated(index, action):
            return stored
        if replies:
            _check_replies(told=bool(episode.told_replies))
        began = time.perf_counter()
        try:
            result = episode.step(index, action, replies)
        except (EnvironmentFailed, SessionLost) as error:
            self._bury(episode, error)
            raise
        count_step(self.counts.of(episode.name), time.perf_counter() - began)
        self._check_cpu(episode)
        if episode.task.step_timeout_s is not None:  # else a lease is longer than a step
            lease.touch(self._clock())
        return result

    def asides(self, session_id: str) -> tuple[str, bytes]:
        """Return what a gateway's journal keeps in addition to the last answer to `open` or `step`.

        That is the digest of the session's state, empty if its environment reports none, and the replies of models,
        empty in a session that was opened without `record_replies`.
        """
        lease = self._leases.get(session_id)
        return ("", b"") if lease is None else (lease.episode.state, lease.episode.told_replies)

    def abandon(self, session_id: str) -> None:
        """End a session whose environment is in use by a stuck call: `release` closes the environment."""
        if (lease := self._leases.get(session_id)) is None:
            return
        episode = self._stuck[session_id] = lease.episode
        self.counts.of(episode.entry.spec.name).failures += 1
        detail = "the environment did not answer in time; the session is closed"
        self._endings.remember(session_id, StepTimeout(detail, session_id=session_id))
        self._drop(session_id)

    def release(self, session_id: str) -> None:
        """Close a session that was abandoned, or that was made by an abandoned call."""
        if (episode := self._stuck.pop(session_id, None)) is not None:
            episode.close()
        else:
            self._close(session_id)

    def touch(self, calls: Iterable[Call]) -> None:
        """Renew the leases of the sessions with waiting calls."""
        now = self._clock()
        for call in calls:
            if call.op != Op.GET and (lease := self._leases.get(call.session_id)) is not None:
                lease.touch(now)

    def reap(self) -> float | None:
        """Close every expired session; return the seconds until the next may expire, None without sessions."""
        now, threads = self._clock(), self._limits.threads
        while True:
            session_id, wait_s = self._leases.next_due(now)
            if not session_id:
                return wait_s
            if threads is None or not self.blocking(session_id):
                self._expire(session_id)
            elif threads.busy(session_id):
                self._leases.look_again(session_id, now + _BUSY_S)
            else:
                threads.submit(session_id, partial(self._expire, session_id), self.env_of(session_id))

    def blocking(self, session_id: str) -> bool:
        """Return whether the session's calls must run in a thread."""
        lease = self._leases.get(session_id)
        return lease is not None and lease.episode.entry.kind.is_blocking()

    def env_of(self, session_id: str) -> str:
        """Return the environment that the session plays; empty without such a session."""
        lease = self._leases.get(session_id)
        return "" if lease is None else lease.episode.entry.spec.name

    def opens_blocking(self, env: object) -> bool:
        """Return whether the calls of a session of this environment would have to run in a thread."""
        entry = self._entries.get(env) if isinstance(env, str) else None
        return entry is not None and entry.kind.is_blocking()

    def close_all(self, until: Callable[[], bool]) -> None:
        """Close every session until `until` says to stop, using threads for environments that wait."""
        threads = self._limits.threads
        for session_id in list(self._leases):
            if until():
                return
            if threads is not None and self.blocking(session_id):
                threads.submit(session_id, partial(self._close, session_id), self.env_of(session_id))
            else:
                self._close(session_id)

    def _step_loosely(self, session_id: str, body: Any, replies: bytes) -> Any:
        """Step with pydantic's conversions and its error messages."""
        step = parse(Step, body)
        return decode(self.step(session_id, step.index, step.action, replies))

    def _open_session(self, request: OpenSession, replies: bytes) -> Session:
        entry = self._entries.get(request.env)
        if entry is None:
            raise UnknownEnvironment(f"{request.env!r} is not served here; served: {', '.join(sorted(self._entries))}")
        if replies:
            _check_replies(told=bool(request.record_replies and entry.spec.models))
        task = self._task(entry, request)
        owner = sys.intern(request.owner or "")
        world = World(
            entry, task, request.seed, self._limits, state_keys=bool(request.state_keys), seal=self._seal,
            models=entry.model_calls(told=bool(request.record_replies)),
        )  # fmt: skip
        episode = Episode(self._new_id(entry), world, self._limits, owner=owner, recoveries=request.recoveries or 0)
        try:
            episode.begin(replies)
        except EnvironmentFailed:
            self.counts.of(entry.spec.name).failures += 1
            raise
        except ShardUnavailable:
            self.counts.of(entry.spec.name).engines_lost += 1
            raise
        lease = self._keep(episode, request.lease_s or self._lease_s)
        self._check_cpu(episode)
        return self._view(lease)

    def _task(self, entry: Entry, request: OpenSession) -> Task[Any]:
        level = request.level or entry.tasks.default_level
        try:
            if request.task_id is not None:
                return entry.tasks.by_id(request.task_id)
            return entry.tasks.by_index(request.split, level, request.task_index or 0)
        except tasks.UnknownTask as error:
            told = {} if error.count is None else {"count": error.count}
            raise UnknownTask(error.detail, **told) from None
        except Exception as error:
            name = type(error).__name__
            log.exception("tasks.failed", env=entry.spec.name, exception=name)
            self.counts.of(entry.spec.name).failures += 1
            detail = f"the task source of {entry.spec.name} raised {name}"
            raise EnvironmentFailed(detail, env=entry.spec.name, exception=name) from None

    def _renew(self, session_id: str, request: RenewLease) -> Session:
        lease = self._lease(session_id)
        lease.duration_s = request.lease_s or lease.duration_s
        lease.touch(self._clock())
        # The new lease may end before the one that is in the heap.
        self._leases.expect(lease)
        return self._view(lease)

    def _fork_sessions(self, session_id: str, body: Any) -> list[dict[str, Any]]:
        request = parse(Fork, body)
        lease = self._at(session_id, {"index": request.index})
        return [child.model_dump() for child in self._fork(lease, request)]

    def _fork(self, lease: Lease, request: Fork) -> list[Session]:
        children: list[Episode] = []
        try:
            for _ in range(request.count):
                children.append(lease.episode.fork(self._new_id(lease.episode.entry)))  # noqa: PERF401 - those made are closed on failure
            self._check_cpu(lease.episode)
        except ServiceError as error:
            for child in children:
                child.close()
            if isinstance(error, EnvironmentFailed | SessionLost):
                self._bury(lease.episode, error)
            elif isinstance(error, ShardUnavailable):
                self.counts.of(lease.episode.entry.spec.name).engines_lost += 1
            raise
        return [self._view(self._keep(child, lease.duration_s)) for child in children]

    def _expert(self, lease: Lease) -> ExpertMove:
        episode = lease.episode
        env = episode.entry.spec.name
        if not episode.entry.spec.capabilities.expert:
            raise ExpertUnavailable(f"{env} has no expert")
        if episode.task.split not in self._expert_splits:
            raise ExpertUnavailable(
                f"expert moves are not served on the {episode.task.split} split", splits=list(self._expert_splits)
            )
        return self._asked(episode, episode.expert)

    def _admissible(self, lease: Lease) -> AdmissibleActions:
        return self._asked(lease.episode, lease.episode.admissible_actions)

    def _irreversible(self, session_id: str, body: Any) -> dict[str, bool]:
        """Answer for a step without taking it; a step that was taken before would not be taken again."""
        step = parse(Step, body)
        episode = self._lease(session_id).episode
        if episode.repeated(step.index, step.action):
            return {"irreversible": False}
        return {"irreversible": self._asked(episode, partial(episode.irreversible, step.index, step.action))}

    def _tool_action(self, session_id: str, body: Any) -> dict[str, str]:
        call = parse(ToolCall, body)
        episode = self._lease(session_id).episode
        return {"action": self._asked(episode, partial(episode.action_of, call))}

    def _image(self, session_id: str, body: Any) -> dict[str, Any]:
        return self._lease(session_id).episode.image(parse(AskForImage, body).sha256).model_dump()

    def _asked(self, episode: Episode, question: Callable[[], T]) -> T:
        """Return the environment's answer to a question; a failure to answer ends the session."""
        try:
            answer = question()
        except (EnvironmentFailed, SessionLost) as error:
            self._bury(episode, error)
            raise
        self._check_cpu(episode)
        return answer

    def _expire(self, session_id: str) -> None:
        """Close a session whose lease ran out or which exceeded its time limit."""
        if (lease := self._leases.get(session_id)) is None:
            return
        now = self._clock()
        if lease.expires > now:  # a call renewed the lease in the meantime
            self._leases.expect(lease)
            return
        if now >= lease.ends_at:
            self._limit(lease.episode, *self._wall(lease.episode))
            return
        env = lease.episode.entry.spec.name
        log.info("session.reaped", env=env, session_id=session_id, lease_s=lease.duration_s)
        self.counts.of(env).reaped += 1
        self._close(session_id)

    def _close(self, session_id: str) -> dict[str, Any]:
        self._endings.forget(session_id)
        if (episode := self._drop(session_id)) is not None:
            episode.close()
        return {}

    def _drop(self, session_id: str) -> Episode | None:
        """Forget the session and stop counting it."""
        if (lease := self._leases.pop(session_id, None)) is None:
            return None
        self.counts.closed(lease.episode)
        return lease.episode

    def _keep(self, episode: Episode, lease_s: float) -> Lease:
        now = self._clock()
        _, wall_s = self._wall(episode)
        lease = Lease(episode, lease_s, now, now + wall_s)
        self._leases.keep(lease)
        self.counts.opened(episode)
        return lease

    def _at(self, session_id: str, body: Any, *, touch: bool = True) -> Lease:
        """Return the session if it is at the index that the caller states. Raises `StepOutOfOrder` if it is not."""
        believed = parse(AtIndex, {} if body is None else body).index
        lease = self._lease(session_id, touch=touch)
        stands = lease.episode.index
        if believed not in {None, stands}:
            raise StepOutOfOrder(f"the session has taken {stands} steps, not {believed}", expected=stands)
        return lease

    def _lease(self, session_id: str, *, touch: bool = True) -> Lease:
        lease = self._leases.get(session_id)
        if lease is None:
            if (reason := self._endings.reason(session_id)) is not None:
                raise reason
            raise UnknownSession("the session was never opened here, was closed, or its lease ran out")
        now = self._clock()
        if now >= lease.ends_at:
            raise self._limit(lease.episode, *self._wall(lease.episode))
        if touch:
            lease.touch(now)
        return lease

    def _check_cpu(self, episode: Episode) -> None:
        """Raise `SessionLimit` after a call that exceeded the limit on processor time: its answer is not given."""
        limit_s = self._limits.session_cpu_s
        if limit_s is not None and episode.cpu_s > limit_s:
            raise self._limit(episode, "session_cpu_s", limit_s)

    def _wall(self, episode: Episode) -> tuple[str, float]:
        """Return the limit on the session's age and its name: the server's or, if it is shorter, the task's."""
        own_s, usual_s = episode.task.episode_timeout_s or math.inf, self._limits.session_wall_s or math.inf
        return ("episode_timeout_s", own_s) if own_s < usual_s else ("session_wall_s", usual_s)

    def _limit(self, episode: Episode, limit: str, limit_s: float) -> SessionLimit:
        env, session_id = episode.entry.spec.name, episode.session_id
        log.warning(
            "session.limited", env=env, session_id=session_id, limit=limit, limit_s=limit_s, cpu_s=episode.cpu_s
        )
        self.counts.of(env).limited += 1
        error = SessionLimit(
            f"the session exceeded {limit} = {limit_s:g}; it is closed",
            env=env, session_id=session_id, limit=limit, limit_s=limit_s,
        )  # fmt: skip
        self._end(episode, error)
        return error

    def _bury(self, episode: Episode, error: EnvironmentFailed | SessionLost) -> None:
        tally = self.counts.of(episode.entry.spec.name)
        if isinstance(error, SessionLost):
            tally.engines_lost += 1
        else:
            tally.failures += 1
        self._end(episode, error)

    def _end(self, episode: Episode, error: ServiceError) -> None:
        """Close the session and remember why."""
        if episode.session_id in self._stuck:  # the reason is already recorded, and `release` is about to close it
            return
        self._close(episode.session_id)
        self._endings.remember(episode.session_id, error)

    def _view(self, lease: Lease) -> Session:
        return lease.episode.view(lease_s=lease.duration_s, expires_in_s=max(lease.expires - self._clock(), 0.0))

    def _new_id(self, entry: Entry) -> str:
        return new_id(self._prefix, entry.spec.slots)


def _check_replies(*, told: bool) -> None:
    """Refuse replies in a session whose opener was sent none: they would be made up."""
    if not told:
        raise InvalidRequest("replies are for sessions that ask models and were opened with record_replies")
