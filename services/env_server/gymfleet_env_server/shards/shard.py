"""A shard: one process that plays the sessions assigned to it.

It is started by `process.ShardProcess` as `python -m gymfleet_env_server.shards.shard`. One thread
makes all calls except those of environments that wait, which `threads` makes. A shard never
outlives the front, and neither do the processes that it started.
"""

import contextlib
import mmap
import os
import resource
import select
import socket
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from gymfleet_contracts.frames import Op
from gymfleet_envs.environment import AsyncEnvironment
from gymfleet_kit.logs import configure_logs
from gymfleet_kit.problems import ServiceError, internal_problem
from gymfleet_kit.session_problems import EnvironmentFailed, InvalidRequest

from gymfleet_env_server.catalogue import Entry, EnvironmentUnavailable, load_entry
from gymfleet_env_server.models.answering import answered
from gymfleet_env_server.sessions.limits import Limits
from gymfleet_env_server.sessions.sessions import ABANDON, PROBE, PROBE_WAITING, Sessions
from gymfleet_env_server.sessions.world import Seal
from gymfleet_env_server.shards.channel import (
    Answer,
    Call,
    FrameBuffer,
    Hello,
    Report,
    ShardConfig,
    decode_calls,
    decode_config,
    pack,
)
from gymfleet_env_server.shards.lifeline import die_with_front
from gymfleet_env_server.shards.progress import PROGRESS, ShardProgress, ThreadedProgress
from gymfleet_env_server.shards.threads import STACK_BYTES, SessionThreads
from gymfleet_env_server.wire import MAX_RESULT_BYTES, decode, decode_step, encode

_RECV_BYTES: Final = 1 << 18
_FLUSH_AFTER_S: Final = 0.002
_TALLIES_EVERY_S: Final = 0.1
_TELLING: Final = (Op.OPEN, Op.STEP)
_MAKING: Final = (Op.OPEN, Op.FORK)
CLOSE_S: Final = 2.0
"""Time for closing the environments of open sessions when the server ends."""
log = structlog.get_logger()


class Shard:
    """The loop: take a batch of calls, do them in order or hand them to the threads, report."""

    def __init__(self, channel: socket.socket, sessions: Sessions, limits: Limits, progress: ShardProgress) -> None:
        self._channel = channel
        self._sessions = sessions
        self._limits = limits
        self._progress = progress
        self._threads = limits.threads
        self._turn = contextlib.nullcontext() if self._threads is None else self._threads.lock
        self._take = self._do if self._threads is None else partial(self._do_or_hand_over, self._threads)
        self._answers: list[Answer] = []
        self._apart: set[int] = set()
        """Numbers of the calls that are running in threads."""
        self._given_up: set[int] = set()
        """Numbers of those calls that nobody waits for any more."""
        self._reported = 0
        self._flushed_at = 0.0
        self._tallied_at = 0.0

    def run(self, buffer: FrameBuffer, pending: list[bytes]) -> None:
        """Work until the front closes the channel. `pending` holds messages that arrived with the configuration."""
        # One reused buffer: blocks of this size among the sessions' blocks would fragment the heap and make it grow.
        received = memoryview(bytearray(_RECV_BYTES))
        threads = self._threads
        sources = [self._channel.fileno(), *([] if threads is None else [threads.wake_fd])]
        while True:
            with self._turn:
                wait_s = self._work(pending)
            readable, _, _ = select.select(sources, [], [], wait_s)
            pending = []
            if threads is not None and threads.wake_fd in readable:
                threads.woken()
            if sources[0] in readable:
                size = self._channel.recv_into(received)
                if not size:
                    return
                pending = buffer.feed(received[:size])

    def close(self, within_s: float) -> None:
        """Let the environments release their resources, for at most `within_s`; queued calls are dropped."""
        ends_at = time.monotonic() + within_s

        def late() -> bool:
            return time.monotonic() > ends_at

        with self._turn:
            if self._threads is not None:
                self._threads.drop()
            self._sessions.close_all(late)
        if self._threads is not None:
            self._threads.wait_idle(late)

    def _work(self, messages: list[bytes]) -> float | None:
        """Do the requested calls and whatever is due; return the seconds until something is due next."""
        began = self._flushed_at = time.monotonic()
        calls = [call for message in messages for call in decode_calls(message)]
        self._sessions.touch(calls)  # before any of them runs: a session with a queued call is not idle
        for call in calls:
            self._take(call)
        self._progress.working_on(0)
        wait_s = self._sessions.reap()
        self._flush()
        self._progress.worked(time.monotonic() - began)
        if self._sessions.counts.has_news:
            return _TALLIES_EVERY_S if wait_s is None else min(wait_s, _TALLIES_EVERY_S)
        return wait_s

    def _do(self, call: Call) -> None:
        self._progress.working_on(call.number)
        self._answers.append(self._answer(call))
        if time.monotonic() - self._flushed_at > _FLUSH_AFTER_S:
            self._flush()

    def _do_or_hand_over(self, threads: SessionThreads, call: Call) -> None:
        """Hand a call that may wait to a thread, after the session's earlier calls; do any other call here."""
        if call.op == PROBE:
            self._probe(threads, call)
        elif call.op == ABANDON:
            self._abandon(threads, call)
        elif call.op == Op.OPEN and self._sessions.opens_blocking(env := _env_of(call)):
            threads.submit_open(_opening(call.number), partial(self._do_apart, call), str(env))
        elif threads.busy(call.session_id) or self._sessions.blocking(call.session_id):
            threads.submit(call.session_id, partial(self._do_apart, call), self._sessions.env_of(call.session_id))
        else:
            self._do(call)

    def _probe(self, threads: SessionThreads, call: Call) -> None:
        """Probe the environments that are called on this thread first, then the others."""
        self._progress.working_on(call.number)
        answer = self._answer(call)
        if answer.ok:
            rest = Call(call.number, PROBE_WAITING, "", call.body, call.trace)
            threads.submit_probe(f"probe {call.number}", partial(self._do_apart, rest))
        else:
            self._answers.append(answer)

    def _abandon(self, threads: SessionThreads, call: Call) -> None:
        """End only the session of a call that takes too long, which the front has already answered."""
        stuck = decode(call.body)
        if stuck in self._apart:
            self._given_up.add(stuck)
            self._sessions.abandon(call.session_id)
            heeded = partial(self._progress.abandon, stuck)
            for job in threads.abandon(call.session_id or _opening(stuck), heeded):
                job()
        elif call.session_id:  # the call has just ended, and its answer was discarded
            env = self._sessions.env_of(call.session_id)
            self._sessions.abandon(call.session_id)
            threads.submit(call.session_id, partial(self._sessions.release, call.session_id), env)
        self._answers.append(Answer(call.number, True, msgspec.Raw(encode({}))))

    def _do_apart(self, call: Call) -> None:
        """Do a call in a thread or on a stack of its own; the answer is sent when the loop is woken."""
        self._progress.working_on(call.number)
        self._apart.add(call.number)
        answer = self._answer(call)
        self._apart.discard(call.number)
        if call.number in self._given_up:
            self._clear_away(call, answer)
            self._given_up.discard(call.number)
        else:
            self._sessions.touch((call,))  # a call may last longer than the lease
            self._answers.append(answer)
        self._progress.working_on(0)

    def _clear_away(self, call: Call, answer: Answer) -> None:
        """Close the session of a call that was given up, and the sessions that the call has made."""
        if call.session_id:
            self._sessions.release(call.session_id)
        if answer.ok:
            self._release_made(call.op, decode(answer.payload))

    def _release_made(self, op: str, made: Any) -> None:
        """Close the sessions that a call has made: nobody learns their ids."""
        if op in _MAKING:
            for session in made if isinstance(made, list) else [made]:
                self._sessions.release(session["session_id"])

    def _answer(self, call: Call) -> Answer:
        self._limits.trace = call.trace
        try:
            result, state, replies = self._result(call)
            return Answer(call.number, True, msgspec.Raw(result), state, replies)
        except ServiceError as error:
            problem = error.problem()
        except Exception:
            log.exception("call.failed", op=call.op, session_id=call.session_id)
            problem = internal_problem()
        encoded = encode(problem.model_dump(mode="json", exclude_none=True))
        return Answer(call.number, False, msgspec.Raw(encoded))

    def _result(self, call: Call) -> tuple[bytes, str, bytes]:
        """Return the encoded answer, the digest of the state after the call, and the replies of models during it."""
        if call.op == Op.STEP:
            try:
                step = decode_step(call.body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass  # pydantic may still accept it, or says what is wrong
            else:
                result = self._sessions.step(call.session_id, step.index, step.action, call.replies)
                return result, *self._sessions.asides(call.session_id)
        answer = self._sessions.handle(call.op, call.session_id, self._body(call), call.replies)
        try:
            ok = _encoded(call.op, answer)
        except Exception:
            self._release_made(call.op, answer)
            raise
        if call.op not in _TELLING:
            return ok, "", b""
        return ok, *self._sessions.asides(answer["session_id"] if call.op == Op.OPEN else call.session_id)

    def _body(self, call: Call) -> object:
        try:
            return decode(call.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"the body is not msgpack: {error}") from None

    def _flush(self) -> None:
        now = time.monotonic()
        news = self._sessions.counts.has_news and now - self._tallied_at >= _TALLIES_EVERY_S
        if not (self._answers or news or self._sessions.counts.slots != self._reported):
            return
        tallies = self._sessions.counts.take() if news else {}
        if news:
            self._tallied_at = now
        self._reported = self._sessions.counts.slots
        self._channel.sendall(pack(Report(self._answers, self._reported, tallies, len(self._given_up))))
        self._answers = []
        self._flushed_at = now


def load_entries(config: ShardConfig) -> dict[str, Entry]:
    """Return the configured environments by name. Raises `EnvironmentUnavailable`."""
    data = {name: Path(path) for name, path in config.data.items()}
    entries: dict[str, Entry] = {}
    for reference in config.references:
        entry = load_entry(reference, data, config.options)
        if entry.spec.name in entries:
            raise EnvironmentUnavailable(f"two environments are called {entry.spec.name!r}; serve one of them")
        if (longest_s := entry.kind.longest_call_s()) >= config.step_timeout_s:
            raise EnvironmentUnavailable(
                f"environment {entry.spec.name} may take {longest_s:g} s for a call by its options, and a shard is "
                f"killed after {config.step_timeout_s:g} s: raise GYMFLEET_ENV_STEP_TIMEOUT_S, or lower its limits"
            )
        entries[entry.spec.name] = answered(entry, config.models.get(entry.spec.name, {}))
    for variable, named in (("DATA", data), ("OPTIONS", config.options), ("MODELS", config.models)):
        if unknown := sorted(set(named) - set(entries)):
            raise EnvironmentUnavailable(
                f"GYMFLEET_ENV_{variable} names {', '.join(unknown)}, but served are {', '.join(entries)}"
            )
    return entries


def _encoded(op: str, answer: Any) -> bytes:
    """Encode an answer. Raises `EnvironmentFailed`, and `InvalidRequest` for more children than an answer holds."""
    ok = encode(answer)
    if len(ok) <= MAX_RESULT_BYTES:
        return ok
    detail = f"the result has {len(ok)} bytes; {MAX_RESULT_BYTES} is the limit"
    if op == Op.FORK and len(answer) > 1:
        raise InvalidRequest(f"/count: {detail}: ask for fewer children at once", errors=[{"pointer": "/count"}])
    raise EnvironmentFailed(detail)


def _opening(number: int) -> str:
    return f"open {number}"


def _env_of(call: Call) -> object:
    try:
        body = decode(call.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # the call itself is about to be refused
    return body.get("env") if isinstance(body, dict) else None


def _first_message(channel: socket.socket, buffer: FrameBuffer) -> list[bytes]:
    while True:
        data = channel.recv(_RECV_BYTES)
        if not data:
            raise SystemExit(0)
        if messages := buffer.feed(data):
            return messages


def main() -> None:
    """Entry point: `shard CHANNEL_FD LIFELINE_FD PROGRESS_FD`."""
    channel_fd, lifeline_fd, progress_fd = map(int, sys.argv[1:4])
    for fd in (channel_fd, lifeline_fd, progress_fd):
        os.set_inheritable(fd, False)  # an engine that kept the channel open would hide the shard's death
    die_with_front(lifeline_fd)
    channel = socket.socket(fileno=channel_fd)
    buffer = FrameBuffer()
    first, *pending = _first_message(channel, buffer)
    config = decode_config(first)
    if config.memory_ceiling_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (config.memory_ceiling_bytes, config.memory_ceiling_bytes))
    configure_logs("env-shard", level=config.log_level)
    structlog.contextvars.bind_contextvars(shard=config.prefix)
    try:
        entries = load_entries(config)
    except EnvironmentUnavailable as error:
        channel.sendall(pack(Hello(error=str(error))))
        raise SystemExit(2) from None
    shard = _make_shard(config, channel, entries, mmap.mmap(progress_fd, PROGRESS.size))
    specs = tuple(entry.spec.model_dump(mode="json") for entry in entries.values())
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the front is gone
        channel.sendall(pack(Hello(specs=specs)))
        shard.run(buffer, pending)
    shard.close(CLOSE_S)


def _make_shard(config: ShardConfig, channel: socket.socket, entries: dict[str, Entry], shared: mmap.mmap) -> Shard:
    progress: ShardProgress
    threads = None
    if any(entry.kind.is_blocking() for entry in entries.values()):
        progress = threaded = ThreadedProgress(shared, entries, config.step_timeout_s)
        threading.stack_size(STACK_BYTES)
        at_once = {name: most for name, entry in entries.items() if (most := entry.kind.calls_at_once) is not None}
        awaiting = {name for name, entry in entries.items() if issubclass(entry.kind, AsyncEnvironment)}
        threads = SessionThreads(config.max_threads, threaded, at_once, awaiting)
    else:
        progress = ShardProgress(shared, entries)
    limits = Limits(
        config.max_observation_chars,
        progress.beat,
        session_cpu_s=config.session_cpu_s,
        session_wall_s=config.session_wall_s,
        expert_s=config.expert_s,
        step_timeout_s=config.step_timeout_s,
        threads=threads,
    )
    sessions = Sessions(
        config.prefix,
        entries,
        limits,
        lease_s=config.lease_s,
        expert_splits=config.expert_splits,
        seal=_seal_for(config.seal_key),
    )
    return Shard(channel, sessions, limits, progress)


def _seal_for(public_key: str | None) -> Seal | None:
    if public_key is None:
        return None
    from gymfleet_kit.sealing import Sealer  # noqa: PLC0415 - needs a package that most env servers do without

    return Sealer(public_key).seal


if __name__ == "__main__":
    main()
