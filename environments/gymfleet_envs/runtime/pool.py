"""The front's pool of shards: placement, capacity, the watch over hanging calls, rebirth after death."""

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
import structlog
from gymfleet_contracts.frames import Op
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.session import EnvironmentSpec, Fork
from gymfleet_kit.problems import RelayedProblem, ServiceError
from gymfleet_kit.session_problems import EnvironmentFull, InvalidRequest, SessionLost, StepTimeout, UnknownSession
from pydantic import ValidationError

from gymfleet_envs.runtime.catalogue import EnvironmentUnavailable
from gymfleet_envs.runtime.channel import Answer, Call, Report, ShardConfig
from gymfleet_envs.runtime.errors import ShardUnavailable
from gymfleet_envs.runtime.metrics import SessionMetrics
from gymfleet_envs.runtime.session_ids import Home, home_of, new_instance, prefix
from gymfleet_envs.runtime.sessions import PROBE
from gymfleet_envs.runtime.settings import EnvServerSettings
from gymfleet_envs.runtime.shard_process import ShardProcess

Done = Callable[["msgspec.Raw | ServiceError"], None]
"""Called once with the encoded result, or with what went wrong."""

EMPTY: Final = msgspec.Raw(msgspec.msgpack.encode({}))
_QUICK_DEATH_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 5.0
_decode: Final = msgspec.msgpack.Decoder().decode
log = structlog.get_logger()


class _Pending:
    """A call that waits for its answer. `slots` are reserved for the sessions that it may make."""

    __slots__ = ("done", "session_id", "slots")

    def __init__(self, done: Done, session_id: str, slots: int) -> None:
        self.done = done
        self.session_id = session_id
        self.slots = slots


class _Seat:
    """A place for a shard, and the calls to the one that has it now."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.life = 0
        self.process: ShardProcess | None = None
        self.alive = False
        self.born_at = 0.0
        self.quick_deaths = 0
        self.num_sessions = 0
        self.reserved = 0
        self.pending: dict[int, _Pending] = {}
        self.outbox: list[Call] = []
        self.seen: tuple[int, int] = (0, 0)
        self.progress_at = 0.0
        self.hung_number = 0

    @property
    def load(self) -> int:
        """Sessions open or about to be."""
        return self.num_sessions + self.reserved


class ShardPool:
    """Takes the session API's calls to the shards. `start` blocks; the rest belongs to one event loop."""

    def __init__(self, references: tuple[str, ...], settings: EnvServerSettings) -> None:
        self._references = references
        self._settings = settings
        self._instance = new_instance()
        self._numbers = itertools.count(1)
        self._seats = [_Seat(index) for index in range(settings.shards)]
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self.specs: dict[str, EnvironmentSpec] = {}
        self.metrics = SessionMetrics(())

    @property
    def pids(self) -> list[int]:
        """The shards' process ids, by shard; 0 for one that is being started."""
        return [seat.process.pid if seat.process is not None and seat.alive else 0 for seat in self._seats]

    def start(self) -> None:
        """Start every shard and wait until all are ready. Raises `EnvironmentUnavailable`."""
        for seat in self._seats:
            seat.process = self._spawn(seat)
        try:
            for seat in self._seats:
                if seat.process is not None:
                    specs = seat.process.wait_ready(self._settings.start_timeout_s)
                    self.specs = {spec.name: spec for spec in specs}
        except EnvironmentUnavailable:
            for seat in self._seats:
                if seat.process is not None:
                    seat.process.kill()
                    seat.process.release()
            raise
        self.metrics = SessionMetrics(tuple(self.specs))

    async def attach(self) -> None:
        """Take part in the running event loop."""
        for seat in self._seats:
            await self._attach(seat)
        self._background(self._watch())

    async def aclose(self) -> None:
        """End every shard."""
        self._closing = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        processes = [seat.process for seat in self._seats if seat.process is not None]
        for process in processes:
            process.detach()
        await asyncio.gather(*(asyncio.to_thread(process.release) for process in processes))

    def submit(self, op: str, session_id: str, body: msgspec.Raw, done: Done) -> None:
        """Send a call on its way; `done` is called once, now or later."""
        try:
            if op == Op.OPEN:
                self._send(self._freest(), op, "", body, done, slots=self._reservable(1))
            elif (seat := self._seat_of(session_id)) is None:
                if op != Op.CLOSE:
                    raise SessionLost("the process that held this session died", session_id=session_id)
                done(EMPTY)  # it is gone, as was asked
            else:
                slots = self._reservable(_fork_count(body)) if op == Op.FORK else 0
                self._send(seat, op, session_id, body, done, slots=slots)
        except ServiceError as error:
            done(error)

    async def call(self, op: str, session_id: str, body: Any) -> msgspec.Raw:
        """The same for one caller: the encoded result. Raises `ServiceError`."""
        answer: asyncio.Future[msgspec.Raw | ServiceError] = asyncio.get_running_loop().create_future()
        try:
            raw = msgspec.Raw(msgspec.msgpack.encode(body))
        except UnicodeEncodeError:  # JSON can write what is no text
            raise InvalidRequest("the text holds a lone surrogate; send valid Unicode") from None
        self.submit(op, session_id, raw, _resolver(answer))
        result = await answer
        if isinstance(result, ServiceError):
            raise result
        return result

    async def probe(self) -> None:
        """Play the first moment of an episode of every environment on every shard. Raises `ServiceError`."""
        answers = []
        for seat in self._seats:
            answer: asyncio.Future[msgspec.Raw | ServiceError] = asyncio.get_running_loop().create_future()
            if not seat.alive:
                raise ShardUnavailable(f"shard {seat.index} is being started")
            self._send(seat, PROBE, "", EMPTY, _resolver(answer), slots=0)
            answers.append(answer)
        for result in await asyncio.gather(*answers):
            if isinstance(result, ServiceError):
                raise result

    def _reservable(self, count: int) -> int:
        taken = sum(seat.load for seat in self._seats)
        if taken + count > self._settings.max_sessions:
            raise EnvironmentFull(
                f"{taken} of {self._settings.max_sessions} sessions are open", max_sessions=self._settings.max_sessions
            )
        return count

    def _freest(self) -> _Seat:
        alive = [seat for seat in self._seats if seat.alive]
        if not alive:
            raise ShardUnavailable("every shard is being started; try again")
        return min(alive, key=lambda seat: seat.load)

    def _seat_of(self, session_id: str) -> _Seat | None:
        """Where the session lives; None when its process died. Raises `UnknownSession`."""
        home = home_of(session_id)
        if home is None:
            raise UnknownSession("this is not the id of a session of this server")
        if home.instance != self._instance:
            return None
        if home.shard >= len(self._seats) or home.life > self._seats[home.shard].life:
            raise UnknownSession("this is not the id of a session of this server")
        seat = self._seats[home.shard]
        return seat if home.life == seat.life and seat.alive else None

    def _send(self, seat: _Seat, op: str, session_id: str, body: msgspec.Raw, done: Done, *, slots: int) -> None:
        if not seat.pending:
            seat.progress_at = time.monotonic()
        number = next(self._numbers)
        seat.pending[number] = _Pending(done, session_id, slots)
        seat.reserved += slots
        if not seat.outbox:  # one write for all calls of this turn of the loop
            asyncio.get_running_loop().call_soon(self._flush, seat)
        seat.outbox.append(Call(number, op, session_id, body))

    def _flush(self, seat: _Seat) -> None:
        calls, seat.outbox = seat.outbox, []
        if calls and seat.process is not None:
            seat.process.send(calls)

    def _reported(self, seat: _Seat, report: Report) -> None:
        seat.progress_at = time.monotonic()
        seat.num_sessions = report.num_sessions
        self.metrics.add(seat.index, report.tallies)
        for answer in report.answers:
            pending = seat.pending.pop(answer.number)
            seat.reserved -= pending.slots
            pending.done(_outcome(answer))

    def _spawn(self, seat: _Seat) -> ShardProcess:
        settings = self._settings
        return ShardProcess(
            ShardConfig(
                prefix=prefix(Home(self._instance, seat.index, seat.life)),
                references=self._references,
                data={name: str(path) for name, path in settings.data.items()},
                lease_s=settings.lease_s,
                max_observation_chars=settings.max_observation_chars,
                expert_splits=settings.expert_splits,
                log_level=settings.log_level,
            )
        )

    async def _attach(self, seat: _Seat) -> None:
        process = seat.process
        if process is None:
            return
        life = seat.life
        await process.attach(
            lambda report: self._reported(seat, report) if seat.life == life else None,
            lambda: self._died(seat) if seat.life == life else None,
        )
        seat.alive = True
        seat.born_at = time.monotonic()

    def _died(self, seat: _Seat) -> None:
        """Answer what was pending, and start a successor."""
        process, pending, hung = seat.process, seat.pending, seat.hung_number
        seat.life += 1
        seat.alive = False
        seat.process = None
        seat.num_sessions = seat.reserved = seat.hung_number = 0
        seat.pending, seat.outbox = {}, []
        if not self._closing:
            log.error("shard.died", shard=seat.index, pid=process.pid if process else None, hung=hung != 0)
            self.metrics.shard_died(seat.index)
            self._background(self._revive(seat, process))
        for number, call in pending.items():
            call.done(self._verdict(call, hung=number == hung))

    def _verdict(self, call: _Pending, *, hung: bool) -> ServiceError:
        extensions = {"session_id": call.session_id} if call.session_id else {}
        if hung:
            limit_s = self._settings.step_timeout_s
            return StepTimeout(f"no answer within {limit_s:g} s; the session is closed", **extensions)
        if call.session_id:
            return SessionLost("the process that held this session died", **extensions)
        return ShardUnavailable("the process that was to hold the session died; try again")

    async def _revive(self, seat: _Seat, dead: ShardProcess | None) -> None:
        if dead is not None:
            dead.kill()  # it may have closed the channel without ending
            await asyncio.to_thread(dead.release)
        quick = time.monotonic() - seat.born_at < _QUICK_DEATH_S
        seat.quick_deaths = seat.quick_deaths + 1 if quick else 0
        while True:
            if seat.quick_deaths > 1:
                await asyncio.sleep(min(0.1 * 2**seat.quick_deaths, _LONGEST_PAUSE_S))
            process = self._spawn(seat)
            seat.process = process
            try:
                await asyncio.to_thread(process.wait_ready, self._settings.start_timeout_s)
            except EnvironmentUnavailable as error:
                log.error("shard.unavailable", shard=seat.index, reason=str(error))
                process.kill()
                await asyncio.to_thread(process.release)
                seat.process = None
                seat.quick_deaths += 1
                continue
            await self._attach(seat)
            log.info("shard.revived", shard=seat.index, pid=process.pid)
            return

    async def _watch(self) -> None:
        """Kill a shard that has worked on one call of an environment for too long."""
        limit_s = self._settings.step_timeout_s
        while True:
            await asyncio.sleep(min(max(limit_s / 10, 0.02), 0.5))
            now = time.monotonic()
            for seat in self._seats:
                if not seat.alive or seat.process is None or not seat.pending:
                    continue
                progress = seat.process.progress()
                if progress != seat.seen:
                    seat.seen, seat.progress_at = progress, now
                elif now - seat.progress_at > limit_s:
                    log.error("shard.hung", shard=seat.index, pid=seat.process.pid, limit_s=limit_s)
                    seat.hung_number = progress[0]
                    seat.process.kill()
                    seat.progress_at = now

    def _background(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _resolver(answer: "asyncio.Future[msgspec.Raw | ServiceError]") -> Done:
    def done(result: msgspec.Raw | ServiceError) -> None:
        if not answer.done():  # the caller may have gone away
            answer.set_result(result)

    return done


def _outcome(answer: Answer) -> msgspec.Raw | ServiceError:
    if answer.ok:
        return answer.payload
    return RelayedProblem(Problem.model_validate(_decode(answer.payload)))


def _fork_count(body: msgspec.Raw) -> int:
    try:
        return Fork.model_validate(_decode(body)).count
    except (ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest('a fork takes {"count": 1 to 64}') from None
