"""The front's pool of shards: placement, capacity, watching for hanging or growing shards, restart after death."""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec
import structlog
from gymfleet_contracts import problems
from gymfleet_contracts.frames import NO_BODY, Op
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.session import EnvironmentSpec, ServerLoad
from gymfleet_kit.problems import RelayedProblem, ServiceError
from gymfleet_kit.retries import Retries
from gymfleet_kit.session_api.calls import Done, Result, Stated, num_children
from gymfleet_kit.session_problems import EnvironmentFull, SessionLost, StepTimeout, UnknownSession
from gymfleet_kit.telemetry import span
from gymfleet_kit.trace import current_trace
from pydantic import JsonValue

from gymfleet_env_server.catalogue import EnvironmentUnavailable
from gymfleet_env_server.errors import Draining, ShardUnavailable
from gymfleet_env_server.metrics import DIED, HUNG, MEMORY, SessionMetrics
from gymfleet_env_server.sessions.ids import TAIL_CHARS, ShardId, new_instance, prefix, shard_of, slots_of
from gymfleet_env_server.sessions.sessions import ABANDON, PROBE
from gymfleet_env_server.settings import EnvServerSettings
from gymfleet_env_server.shards.channel import Answer, Call, Report, ShardConfig
from gymfleet_env_server.shards.handle import Opening, Pending, ShardHandle, cheapest
from gymfleet_env_server.shards.memory import MIB, ceiling_bytes, resident_bytes
from gymfleet_env_server.shards.process import Progress, ShardProcess

_QUICK_DEATH_S: Final = 5.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_WATCH_EVERY_S: Final = 0.25
_DRAIN_POLL_S: Final = 0.05
_MAX_STUCK: Final = 16
"""Number of calls in threads, with their environments, that may be stuck in one shard."""
_HEED_S: Final = 5.0
"""A shard that takes longer than this to notice that a call in a thread was given up counts as hanging itself."""


class _Env(msgspec.Struct):
    """The part of an open's body that says what a session needs."""

    env: str


_decode_env: Final = msgspec.msgpack.Decoder(_Env).decode
_decode: Final = msgspec.msgpack.Decoder().decode
log = structlog.get_logger()


class ShardPool:
    """Dispatches the session API's calls to the shards. `start` blocks; all else belongs to one event loop."""

    def __init__(self, references: tuple[str, ...], settings: EnvServerSettings) -> None:
        self._references = references
        self._settings = settings
        self._instance = new_instance()
        self._numbers = itertools.count(1)
        self._handles = [ShardHandle(index) for index in range(settings.shards)]
        self._homes: dict[str, ShardHandle] = {}
        self._waiting: deque[Opening] = deque()
        """Opens that wait because no shard was alive."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self.draining = False
        self.specs: dict[str, EnvironmentSpec] = {}
        self.metrics = SessionMetrics(())

    @property
    def pids(self) -> list[int]:
        """The shards' process ids, by shard; 0 for one that is being started."""
        return [handle.process.pid if handle.process is not None and handle.alive else 0 for handle in self._handles]

    @property
    def load(self) -> ServerLoad:
        """Return how many sessions each owner has open; the figures are at most a tenth of a second old."""
        return ServerLoad(
            max_sessions=self._settings.max_sessions, draining=self.draining, sessions=self.metrics.sessions()
        )

    @property
    def max_outbox_bytes(self) -> int:
        """Bytes of answers that one socket may leave unread."""
        return self._settings.max_outbox_mb * MIB

    def start(self) -> None:
        """Start every shard and wait until all are ready. Raises `EnvironmentUnavailable`."""
        processes = [self._spawn(handle) for handle in self._handles]
        for handle, process in zip(self._handles, processes, strict=True):
            handle.process = process
        try:
            for process in processes:
                specs = process.wait_ready(self._settings.start_timeout_s)
                self.specs = {spec.name: spec for spec in specs}
            self._check_memory(processes)
            self._check_slots()
        except EnvironmentUnavailable:
            for process in processes:
                process.kill()
                process.release()
            raise
        self.metrics = SessionMetrics(tuple(self.specs))

    async def attach(self) -> None:
        """Attach the shards to the running event loop."""
        for handle in self._handles:
            await self._attach(handle)
        self._background(self._watch())

    async def aclose(self) -> None:
        """End every shard."""
        self._closing = True
        self._turn_away(lambda _: True, Draining("the server has ended"))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        processes = [handle.process for handle in self._handles if handle.process is not None]
        for process in processes:
            process.detach()
        await asyncio.gather(*(asyncio.to_thread(process.release) for process in processes))

    async def drain(self, timeout_s: float) -> None:
        """Open no more sessions, and wait until all open ones are closed, at most for `timeout_s`."""
        self.draining = True
        self._turn_away(lambda _: True, _draining())
        began = time.monotonic()
        log.info("server.draining", slots=self._num_slots, drain_s=timeout_s)
        while time.monotonic() - began < timeout_s and any(handle.load or handle.pending for handle in self._handles):  # noqa: ASYNC110 - counts, no event
            await asyncio.sleep(_DRAIN_POLL_S)
        log.info("server.drained", slots=self._num_slots, waited_s=round(time.monotonic() - began, 3))

    def submit(
        self, op: str, session_id: str, body: msgspec.Raw, done: Done, trace: str = "", replies: bytes = b""
    ) -> None:
        """Start a call; `done` is called once, now or later. `replies` are what a replay repeats."""
        if trace:
            work = span(f"env.{op}", trace, session=session_id, op=op)
            trace, done = work.trace, work.ending(done)
        try:
            if op == Op.OPEN:
                deadline = time.monotonic() + self._settings.open_wait_s
                self._open(Opening(body, done, trace, deadline, self._slots(body), replies))
            elif (handle := self._homes.get(session_id[:-TAIL_CHARS]) or self._handle_of(session_id)) is None:
                if op != Op.CLOSE:
                    raise SessionLost("the process that held this session died", session_id=session_id)
                done(NO_BODY)  # it is gone, which is what the caller asked for
            else:
                slots = self._reservable(num_children(body) * slots_of(session_id)) if op == Op.FORK else 0
                self._send(handle, op, session_id, body, done, trace, slots=slots, replies=replies)
        except ServiceError as error:
            done(error)

    async def call(self, op: str, session_id: str, body: msgspec.Raw) -> msgspec.Raw:
        """Make a call and return its encoded result. Raises `ServiceError`."""
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.submit(op, session_id, body, _resolver(answer), current_trace() or "")
        result = await answer
        if isinstance(result, ServiceError):
            raise result
        return result.ok if isinstance(result, Stated) else result

    async def probe(self) -> None:
        """Begin an episode of every environment on every shard. Raises `ServiceError`."""
        if self.draining:
            raise Draining(f"draining: sessions in {self._num_slots} slots are left")
        answers = []
        for handle in self._handles:
            answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
            if not handle.alive:
                raise ShardUnavailable(f"shard {handle.index} is being started")
            self._send(handle, PROBE, "", NO_BODY, _resolver(answer), "", slots=0)
            answers.append(answer)
        for result in await asyncio.gather(*answers):
            if isinstance(result, ServiceError):
                raise result

    @property
    def _num_slots(self) -> int:
        return sum(handle.load for handle in self._handles)

    def _slots(self, opening: msgspec.Raw) -> int:
        """Return how many slots the session would take; 1 for an open that a shard is about to refuse."""
        try:
            return self.specs[_decode_env(opening).env].slots
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
            return 1

    def _reservable(self, count: int) -> int:
        taken = self._num_slots + sum(opening.slots for opening in self._waiting)
        if taken + count > (most := self._settings.max_sessions):
            raise EnvironmentFull(f"{taken} of {most} slots are taken, and {count} needed", max_sessions=most)
        return count

    def _open(self, opening: Opening) -> None:
        """Open a session on the cheapest shard, as soon as one is alive. Raises `ServiceError`."""
        if self.draining:
            raise _draining()
        slots = self._reservable(opening.slots)
        if (handle := cheapest(self._handles)) is None:
            self._waiting.append(opening)
        else:
            self._send(
                handle, Op.OPEN, "", opening.body, opening.done, opening.trace,
                slots=slots, opening=opening, replies=opening.replies,
            )  # fmt: skip

    def _reopen(self, opening: Opening) -> None:
        """Open a session for an open that has waited, passing an error to its callback."""
        try:
            self._open(opening)
        except ServiceError as error:
            opening.done(error)

    def _turn_away(self, which: Callable[[Opening], bool], error: ServiceError) -> None:
        waiting, self._waiting = self._waiting, deque()
        for opening in waiting:
            if which(opening):
                opening.done(error)
            else:
                self._waiting.append(opening)

    def _handle_of(self, session_id: str) -> ShardHandle | None:
        """Return the shard that holds the session; None when its process died. Raises `UnknownSession`."""
        place = shard_of(session_id)
        if place is None:
            raise UnknownSession("this is not the id of a session of this server")
        if place.instance != self._instance:
            return None
        if place.shard >= len(self._handles) or place.life > self._handles[place.shard].life:
            raise UnknownSession("this is not the id of a session of this server")
        handle = self._handles[place.shard]
        return handle if place.life == handle.life and handle.alive else None

    def _send(
        self,
        handle: ShardHandle,
        op: str,
        session_id: str,
        body: msgspec.Raw,
        done: Done,
        trace: str,
        *,
        slots: int,
        opening: Opening | None = None,
        replies: bytes = b"",
    ) -> None:
        if not handle.pending:
            handle.progress_at = time.monotonic()
        number = next(self._numbers)
        handle.pending[number] = Pending(done, session_id, slots, opening)
        handle.reserved += slots
        if not handle.outbox:  # one write for all calls of this turn of the loop
            asyncio.get_running_loop().call_soon(self._flush, handle)
        handle.outbox.append(Call(number, op, session_id, body, trace, replies))

    def _flush(self, handle: ShardHandle) -> None:
        calls, handle.outbox = handle.outbox, []
        if calls and handle.process is not None:
            handle.process.send(calls)

    def _reported(self, handle: ShardHandle, report: Report) -> None:
        handle.progress_at = time.monotonic()
        handle.slots = report.slots
        handle.stuck = report.stuck
        if report.tallies:
            self.metrics.add(handle.index, report.tallies)
        for answer in report.answers:
            pending = handle.pending.pop(answer.number, None)
            if pending is None:  # the call was given up while its answer was on the way
                self._close_made(answer)
                continue
            handle.reserved -= pending.slots
            if not answer.ok:
                pending.done(_problem(answer))
            else:
                aside = answer.state or answer.replies
                pending.done(Stated(answer.payload, answer.state, answer.replies) if aside else answer.payload)

    def _close_made(self, answer: Answer) -> None:
        """Close the sessions made by a call that nobody waits for any more: their ids are known to nobody."""
        made = _decode(answer.payload) if answer.ok else []
        for session in made if isinstance(made, list) else [made]:
            if "session_id" in session:
                self.submit(Op.CLOSE, session["session_id"], NO_BODY, lambda _: None)

    def _spawn(self, handle: ShardHandle) -> ShardProcess:
        settings = self._settings
        memory_mb = settings.shard_memory_mb
        handle.prefix = prefix(ShardId(self._instance, handle.index, handle.life))
        return ShardProcess(
            ShardConfig(
                prefix=handle.prefix,
                references=self._references,
                data={name: str(path) for name, path in settings.data.items()},
                options=dict(settings.options),
                models={
                    env: {role: endpoint.model_dump(mode="json") for role, endpoint in roles.items()}
                    for env, roles in settings.models.items()
                },
                lease_s=settings.lease_s,
                max_observation_chars=settings.max_observation_chars,
                expert_splits=settings.expert_splits,
                seal_key=settings.seal_key,
                expert_s=min(settings.expert_timeout_s, settings.step_timeout_s / 2),
                log_level=settings.log_level,
                step_timeout_s=settings.step_timeout_s,
                max_threads=settings.threads or settings.max_sessions,
                session_cpu_s=settings.session_cpu_s,
                session_wall_s=settings.session_wall_s,
                memory_ceiling_bytes=None if memory_mb is None else ceiling_bytes(memory_mb),
            )
        )

    def _check_memory(self, processes: list[ShardProcess]) -> None:
        """Reject a memory limit that a shard exceeds even without sessions: it would be recycled forever."""
        limit_mb = self._settings.shard_memory_mb
        held = max(resident_bytes([process.pid for process in processes]).values(), default=0) / MIB
        if limit_mb is not None and held > limit_mb:
            raise EnvironmentUnavailable(
                f"a shard holds {held:.0f} MiB before its first session; raise GYMFLEET_ENV_SHARD_MEMORY_MB={limit_mb}"
            )

    def _check_slots(self) -> None:
        """Reject an environment of which the server could not hold a single session."""
        for spec in self.specs.values():
            if spec.slots > self._settings.max_sessions:
                raise EnvironmentUnavailable(
                    f"a session of {spec.name} takes {spec.slots} slots; raise GYMFLEET_ENV_MAX_SESSIONS"
                )

    async def _attach(self, handle: ShardHandle) -> None:
        process = handle.process
        if process is None:
            return
        life = handle.life
        await process.attach(
            lambda report: self._reported(handle, report) if handle.life == life else None,
            lambda: self._died(handle) if handle.life == life else None,
        )
        handle.occupy(process, time.monotonic())
        self._homes[handle.prefix] = handle
        waiting, self._waiting = self._waiting, deque()
        for opening in waiting:
            self._reopen(opening)

    def _died(self, handle: ShardHandle) -> None:
        """Answer the calls that were pending, and start a successor."""
        process, cause = handle.process, handle.condemned or DIED
        pending = handle.vacate()
        self._homes.pop(handle.prefix, None)
        progress = None if process is None or self._closing else process.progress()
        if not self._closing:
            env = self._env_of(progress)
            self.metrics.shard_died(handle.index, cause, failed_env=env if cause == HUNG else "")
            call = pending.get(progress.number) if progress is not None else None
            found = {"cause": cause, "env": env, "session_id": "" if call is None else call.session_id}
            self._background(self._revive(handle, process, found))
        for number, call in pending.items():
            # With several calls in threads, it is unknown which one killed the process.
            known = progress is not None and (not progress.since_us or len(pending) == 1)
            in_work = known and progress is not None and number == progress.number
            opening = call.opening
            if opening is None or opening.again or self._closing or (in_work and cause == HUNG):
                call.done(self._verdict(call, cause, progress, in_work=in_work))
            else:
                opening.again = True
                self._reopen(opening)

    def _env_of(self, progress: Progress | None) -> str:
        """Return the environment that was being played; empty between calls."""
        if progress is None or not progress.number or progress.place >= len(self.specs):
            return ""
        return list(self.specs)[progress.place]

    def _verdict(self, call: Pending, cause: str, progress: Progress | None, *, in_work: bool) -> ServiceError:
        extensions: dict[str, JsonValue] = {"session_id": call.session_id} if call.session_id else {}
        if progress is not None and in_work and cause == HUNG:
            limit_s = progress.limit_s(self._settings.step_timeout_s)
            return StepTimeout(f"no answer within {limit_s:g} s; the session is closed", **extensions)
        if call.session_id:
            if in_work:
                extensions[problems.IN_WORK] = True
            return SessionLost("the process that held this session died", **extensions)
        return ShardUnavailable("the process that was to hold the session died; try again")

    async def _revive(self, handle: ShardHandle, dead: ShardProcess | None, found: dict[str, str]) -> None:
        if dead is not None:
            dead.kill()  # it may have closed the channel without exiting
            code = await asyncio.to_thread(dead.release)
            log.error("shard.died", shard=handle.index, pid=dead.pid, exit_code=code, **found)
        quick = time.monotonic() - handle.born_at < _QUICK_DEATH_S
        handle.quick_deaths = handle.quick_deaths + 1 if quick else 0
        if handle.quick_deaths > 1:
            await asyncio.sleep(min(_FIRST_PAUSE_S * 2**handle.quick_deaths, _LONGEST_PAUSE_S))
        process = await Retries(
            "shard.unavailable", on=EnvironmentUnavailable, first_pause_s=_FIRST_PAUSE_S,
            longest_pause_s=_LONGEST_PAUSE_S, level="error", bound={"shard": handle.index},
        ).call(partial(self._start_again, handle))  # fmt: skip
        await self._attach(handle)
        log.info("shard.revived", shard=handle.index, pid=process.pid)

    async def _start_again(self, handle: ShardHandle) -> ShardProcess:
        process = handle.process = self._spawn(handle)
        try:
            await asyncio.to_thread(process.wait_ready, self._settings.start_timeout_s)
        except EnvironmentUnavailable:
            process.kill()
            handle.process = None
            await asyncio.to_thread(process.release)
            handle.quick_deaths += 1
            raise
        return process

    async def _watch(self) -> None:
        """Kill a shard that has worked on one call of an environment for too long, or has grown too large."""
        limit_s, limit_mb = self._settings.step_timeout_s, self._settings.shard_memory_mb
        while True:
            await asyncio.sleep(min(max(limit_s / 10, 0.02), _WATCH_EVERY_S))
            now = time.monotonic()
            self._turn_away(partial(_is_late, now), ShardUnavailable("every shard is being started; try again"))
            handles = [handle for handle in self._handles if handle.alive and handle.process is not None]
            for handle in handles:
                handle.look(now)
                if handle.hangs(now, limit_s) and not handle.heeds(now):
                    self._end_hang(handle, now)
            if limit_mb is not None:
                await self._watch_memory(handles, limit_mb)

    def _end_hang(self, handle: ShardHandle, now: float) -> None:
        """Give up a hanging call in a thread, with its session; for any other call, kill the shard."""
        seen = handle.seen
        limit_s, number, env = seen.limit_s(self._settings.step_timeout_s), seen.number, self._env_of(seen)
        call = handle.give_up(now, min(self._settings.threads or _MAX_STUCK, _MAX_STUCK), _HEED_S)
        if call is None:
            log.error("shard.hung", shard=handle.index, limit_s=limit_s, env=env)
            handle.condemn(HUNG)
            return
        log.error("call.overdue", shard=handle.index, limit_s=limit_s, env=env, session_id=call.session_id)
        body = msgspec.Raw(msgspec.msgpack.encode(number))
        self._send(handle, ABANDON, call.session_id, body, lambda _: None, "", slots=0)
        call.done(self._verdict(call, HUNG, seen, in_work=True))

    async def _watch_memory(self, handles: list[ShardHandle], limit_mb: int) -> None:
        lives = {handle.process.pid: (handle, handle.life) for handle in handles if handle.process is not None}
        for pid, size in (await asyncio.to_thread(resident_bytes, lives.keys())).items():
            handle, life = lives[pid]
            if size > limit_mb * MIB and handle.life == life and not handle.condemned:
                log.error(
                    "shard.recycled",
                    shard=handle.index, pid=pid, rss_mb=size // MIB, limit_mb=limit_mb, slots=handle.slots,
                )  # fmt: skip
                handle.condemn(MEMORY)

    def _background(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _draining() -> Draining:
    return Draining("draining: the server ends when its sessions are closed; open elsewhere")


def _is_late(now: float, opening: Opening) -> bool:
    return opening.deadline < now


def _resolver(answer: "asyncio.Future[Result]") -> Done:
    def done(result: Result) -> None:
        if not answer.done():  # the caller may have gone away
            answer.set_result(result)

    return done


def _problem(answer: Answer) -> ServiceError:
    return RelayedProblem(Problem.model_validate(_decode(answer.payload)))
