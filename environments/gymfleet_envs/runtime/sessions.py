"""A shard's sessions: the session API's calls, leases and counts. One thread, no I/O."""

import heapq
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import structlog
from gymfleet_contracts.frames import Op
from gymfleet_contracts.session import ExpertMove, Fork, OpenSession, RenewLease, Session, Split, Step, StepResult
from gymfleet_kit.problems import ServiceError
from gymfleet_kit.session_problems import (
    EnvironmentFailed,
    ExpertUnavailable,
    InvalidRequest,
    UnknownEnvironment,
    UnknownSession,
)
from pydantic import BaseModel, ValidationError

from gymfleet_envs.runtime.catalogue import Entry
from gymfleet_envs.runtime.channel import Tally
from gymfleet_envs.runtime.episode import Episode, Limits
from gymfleet_envs.runtime.errors import ShardUnavailable
from gymfleet_envs.runtime.metrics import count_step, new_tally
from gymfleet_envs.runtime.tasks import SPLITS, Task

PROBE: Final = "probe"
_MAX_FAILED: Final = 1024
M = TypeVar("M", bound=BaseModel)
log = structlog.get_logger()


class _Lease:
    """A session's episode and the time until which it is kept."""

    __slots__ = ("duration_s", "episode", "expires")

    def __init__(self, episode: Episode, duration_s: float, now: float) -> None:
        self.episode = episode
        self.duration_s = duration_s
        self.expires = now + duration_s


class Sessions:
    """All sessions of one shard.

    Args:
        prefix: begins every session id and names the shard.
        entries: the environments, by name.
        lease_s: for sessions that ask for no lease of their own.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prefix = prefix
        self._entries = entries
        self._limits = limits
        self._lease_s = lease_s
        self._expert_splits = expert_splits
        self._clock = clock
        self._leases: dict[str, _Lease] = {}
        self._expiries: list[tuple[float, str]] = []
        # Kept for a while, so that a repeated step gets the reason and not `unknown-session`.
        self._failed: OrderedDict[str, EnvironmentFailed] = OrderedDict()
        self._tallies = {name: new_tally() for name in entries}
        self._open = dict.fromkeys(entries, 0)
        self._changed: set[str] = set()
        self._calls: dict[str, Callable[[str, Any], Any]] = {
            Op.STEP: lambda session_id, body: self._step(session_id, _parse(Step, body)).model_dump(),
            Op.OPEN: lambda _, body: self._open_session(_parse(OpenSession, body)).model_dump(),
            Op.GET: lambda session_id, _: self._view(self._lease(session_id, touch=False)).model_dump(),
            Op.LEASE: lambda session_id, body: self._renew(session_id, _parse(RenewLease, body)).model_dump(),
            Op.FORK: self._fork_sessions,
            Op.EXPERT: lambda session_id, _: self._expert(session_id).model_dump(),
            Op.CLOSE: lambda session_id, _: self._close(session_id),
            PROBE: lambda *_: self._probe(),
        }

    def __len__(self) -> int:
        return len(self._leases)

    def handle(self, op: str, session_id: str, body: Any) -> Any:
        """One call: what is answered, ready to be encoded. Raises `ServiceError`."""
        if (do := self._calls.get(op)) is None:
            raise InvalidRequest(f"unknown op; known: {', '.join(Op)}")
        return do(session_id, body)

    def touch(self, session_id: str) -> None:
        """Renew the lease of a session that a call is waiting for."""
        if (lease := self._leases.get(session_id)) is not None:
            lease.expires = self._clock() + lease.duration_s

    def reap(self) -> float | None:
        """Close every session whose lease ran out; the seconds until the next may, None without sessions."""
        now = self._clock()
        while self._expiries:
            due, session_id = self._expiries[0]
            if due > now:
                return due - now
            heapq.heappop(self._expiries)
            lease = self._leases.get(session_id)
            if lease is None:
                continue
            if lease.expires > now:  # touched since: look again when that runs out
                heapq.heappush(self._expiries, (lease.expires, session_id))
                continue
            env = lease.episode.entry.spec.name
            log.info("session.reaped", env=env, session_id=session_id, lease_s=lease.duration_s)
            self._tally(env).reaped += 1
            self._close(session_id)
        return None

    def take_tallies(self) -> dict[str, Tally]:
        """The counts since the last call, of the environments in which something happened."""
        taken = {}
        for name in self._changed:
            tally = self._tallies[name]
            tally.open = self._open[name]
            taken[name] = tally
            self._tallies[name] = new_tally()
        self._changed.clear()
        return taken

    @property
    def has_news(self) -> bool:
        """Whether `take_tallies` would give something."""
        return bool(self._changed)

    def _open_session(self, request: OpenSession) -> Session:
        entry = self._entries.get(request.env)
        if entry is None:
            raise UnknownEnvironment(f"{request.env!r} is not served here; served: {', '.join(sorted(self._entries))}")
        task = self._task(entry, request)
        episode = Episode(self._new_id(), entry, task, request.seed, self._limits)
        try:
            episode.begin()
        except EnvironmentFailed:
            self._tally(entry.spec.name).failures += 1
            raise
        return self._view(self._keep(episode, request.lease_s or self._lease_s))

    def _task(self, entry: Entry, request: OpenSession) -> Task[Any]:
        level = request.level or entry.tasks.default_level
        try:
            if request.task_id is not None:
                return entry.tasks.by_id(request.task_id)
            return entry.tasks.by_index(request.split, level, request.task_index or 0)
        except ServiceError:
            raise
        except Exception as error:
            name = type(error).__name__
            log.exception("tasks.failed", env=entry.spec.name, exception=name)
            self._tally(entry.spec.name).failures += 1
            detail = f"the task source of {entry.spec.name} raised {name}"
            raise EnvironmentFailed(detail, env=entry.spec.name, exception=name) from None

    def _step(self, session_id: str, step: Step) -> StepResult:
        episode = self._lease(session_id).episode
        if (stored := episode.repeated(step)) is not None:
            return stored
        env = episode.entry.spec.name
        began = time.perf_counter()
        try:
            result = episode.step(step)
        except EnvironmentFailed as error:
            self._bury(episode, error)
            raise
        count_step(self._tally(env), time.perf_counter() - began)
        return result

    def _renew(self, session_id: str, request: RenewLease) -> Session:
        lease = self._lease(session_id)
        lease.duration_s = request.lease_s or lease.duration_s
        lease.expires = self._clock() + lease.duration_s
        # The new lease may end before the one that the heap knows of.
        heapq.heappush(self._expiries, (lease.expires, session_id))
        return self._view(lease)

    def _fork_sessions(self, session_id: str, body: Any) -> list[dict[str, Any]]:
        return [child.model_dump() for child in self._fork(session_id, _parse(Fork, body))]

    def _fork(self, session_id: str, request: Fork) -> list[Session]:
        lease = self._lease(session_id)
        children: list[Episode] = []
        try:
            for _ in range(request.count):
                children.append(lease.episode.fork(self._new_id()))  # noqa: PERF401 - those made are closed on failure
        except ServiceError as error:
            for child in children:
                child.close()
            if isinstance(error, EnvironmentFailed):
                self._bury(lease.episode, error)
            raise
        return [self._view(self._keep(child, lease.duration_s)) for child in children]

    def _expert(self, session_id: str) -> ExpertMove:
        episode = self._lease(session_id).episode
        env = episode.entry.spec.name
        if not episode.entry.spec.capabilities.expert:
            raise ExpertUnavailable(f"{env} has no expert")
        if episode.ref.split not in self._expert_splits:
            raise ExpertUnavailable(
                f"expert moves are not served on the {episode.ref.split} split", splits=list(self._expert_splits)
            )
        try:
            return episode.expert()
        except EnvironmentFailed as error:
            self._bury(episode, error)
            raise

    def _close(self, session_id: str) -> dict[str, Any]:
        self._failed.pop(session_id, None)
        if (lease := self._leases.pop(session_id, None)) is not None:
            env = lease.episode.entry.spec.name
            self._open[env] -= 1
            self._changed.add(env)
            lease.episode.close()
        return {}

    def _probe(self) -> dict[str, Any]:
        """Begin and close an episode of every environment. Raises `ShardUnavailable`."""
        for name, entry in self._entries.items():
            split: Split | None = next((s for s in SPLITS if entry.spec.splits.get(s)), None)
            if split is None:
                raise ShardUnavailable(f"{name} has no task")
            episode = Episode("probe", entry, entry.tasks.by_index(split, entry.spec.default_level, 0), 0, self._limits)
            try:
                episode.begin()
            except EnvironmentFailed as error:
                raise ShardUnavailable(f"a probe of {name} failed: {error.detail}") from None
            episode.close()
        return {}

    def _keep(self, episode: Episode, lease_s: float) -> _Lease:
        lease = _Lease(episode, lease_s, self._clock())
        self._leases[episode.session_id] = lease
        heapq.heappush(self._expiries, (lease.expires, episode.session_id))
        env = episode.entry.spec.name
        self._open[env] += 1
        self._tally(env).opened += 1
        return lease

    def _lease(self, session_id: str, *, touch: bool = True) -> _Lease:
        lease = self._leases.get(session_id)
        if lease is None:
            if (failed := self._failed.get(session_id)) is not None:
                raise failed
            raise UnknownSession("the session was never opened here, was closed, or its lease ran out")
        if touch:
            lease.expires = self._clock() + lease.duration_s
        return lease

    def _bury(self, episode: Episode, error: EnvironmentFailed) -> None:
        self._tally(episode.entry.spec.name).failures += 1
        self._close(episode.session_id)
        self._failed[episode.session_id] = error
        if len(self._failed) > _MAX_FAILED:
            self._failed.popitem(last=False)

    def _view(self, lease: _Lease) -> Session:
        return lease.episode.view(lease_s=lease.duration_s, expires_in_s=max(lease.expires - self._clock(), 0.0))

    def _tally(self, env: str) -> Tally:
        self._changed.add(env)
        return self._tallies[env]

    def _new_id(self) -> str:
        return f"{self._prefix}-{secrets.token_hex(16)}"


def _parse(model: type[M], body: Any) -> M:
    try:
        return model.model_validate(body)
    except ValidationError as error:
        fields = [
            {"pointer": "/" + "/".join(str(part) for part in item["loc"]), "detail": str(item["msg"])}
            for item in error.errors(include_input=False, include_url=False)
        ]
        detail = "; ".join(f"{field['pointer']}: {field['detail']}" for field in fields)
        raise InvalidRequest(detail, errors=[dict(field) for field in fields]) from None
