"""A shard: one process with one thread that plays the sessions it was given.

Started by `shard_process.ShardProcess` as `python -m gymfleet_envs.runtime.shard`. A second
thread only waits for the front's death: a shard never outlives it.
"""

import ctypes
import mmap
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
import structlog
from gymfleet_contracts.frames import Op
from gymfleet_kit.logs import configure_logs
from gymfleet_kit.problems import ServiceError, internal_problem
from gymfleet_kit.session_problems import EnvironmentFailed, InvalidRequest

from gymfleet_envs.runtime.catalogue import Entry, EnvironmentUnavailable, load_entry
from gymfleet_envs.runtime.channel import (
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
from gymfleet_envs.runtime.episode import Limits
from gymfleet_envs.runtime.sessions import Sessions
from gymfleet_envs.runtime.wire import MAX_RESULT_BYTES, decode, decode_step, encode

PROGRESS: Final = struct.Struct("=QQQQ")
"""In shared memory: the number of the call in work (0: none), a count of calls into environments,
the place of the environment that was called last, and the microseconds spent on calls so far."""
_BUSY: Final = struct.Struct("=Q")
_BUSY_OFFSET: Final = PROGRESS.size - _BUSY.size
_WORK: Final = struct.Struct("=QQQ")
_RECV_BYTES: Final = 1 << 18
_FLUSH_AFTER_S: Final = 0.002
_TALLIES_EVERY_S: Final = 0.1
_PR_SET_PDEATHSIG: Final = 1
log = structlog.get_logger()


class _Progress:
    """What the front reads to tell a hanging call from a busy shard."""

    def __init__(self, shared: mmap.mmap, environments: Iterable[str]) -> None:
        self._shared = shared
        self._places = {name: place for place, name in enumerate(environments)}
        self._place = 0
        self._number = 0
        self._beats = 0
        self._busy_s = 0.0

    def working_on(self, number: int) -> None:
        self._number = number
        _WORK.pack_into(self._shared, 0, number, self._beats, self._place)

    def beat(self, env: str) -> None:
        self._beats += 1
        self._place = self._places[env]
        _WORK.pack_into(self._shared, 0, self._number, self._beats, self._place)

    def worked(self, seconds: float) -> None:
        self._busy_s += seconds
        _BUSY.pack_into(self._shared, _BUSY_OFFSET, int(1e6 * self._busy_s))


class Shard:
    """The loop: take a batch of calls, do them in order, report."""

    def __init__(self, channel: socket.socket, sessions: Sessions, limits: Limits, progress: _Progress) -> None:
        self._channel = channel
        self._sessions = sessions
        self._limits = limits
        self._progress = progress
        self._answers: list[Answer] = []
        self._reported = 0
        self._flushed_at = 0.0
        self._tallied_at = 0.0

    def run(self, buffer: FrameBuffer, pending: list[bytes]) -> None:
        """Work until the front closes the channel. `pending` came along with the configuration."""
        # One buffer for all: blocks of this size among those of the sessions would leave holes, and the heap grow.
        received = memoryview(bytearray(_RECV_BYTES))
        while True:
            began = self._flushed_at = time.monotonic()
            calls = [call for message in pending for call in decode_calls(message)]
            self._sessions.touch(calls)  # before any of them runs: waiting in line is no idleness
            for call in calls:
                self._do(call)
            self._progress.working_on(0)
            wait_s = self._sessions.reap()
            self._flush()
            self._progress.worked(time.monotonic() - began)
            if self._sessions.has_news:
                wait_s = _TALLIES_EVERY_S if wait_s is None else min(wait_s, _TALLIES_EVERY_S)
            readable, _, _ = select.select([self._channel], [], [], wait_s)
            if not readable:
                pending = []
                continue
            size = self._channel.recv_into(received)
            if not size:
                return
            pending = buffer.feed(received[:size])

    def _do(self, call: Call) -> None:
        self._progress.working_on(call.number)
        self._answers.append(self._answer(call))
        if time.monotonic() - self._flushed_at > _FLUSH_AFTER_S:
            self._flush()

    def _answer(self, call: Call) -> Answer:
        self._limits.trace = call.trace
        try:
            return Answer(call.number, True, msgspec.Raw(self._result(call)))
        except ServiceError as error:
            problem = error.problem()
        except Exception:
            log.exception("call.failed", op=call.op, session_id=call.session_id)
            problem = internal_problem()
        encoded = encode(problem.model_dump(mode="json", exclude_none=True))
        return Answer(call.number, False, msgspec.Raw(encoded))

    def _result(self, call: Call) -> bytes:
        if call.op == Op.STEP:
            try:
                step = decode_step(call.body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass  # pydantic accepts it after all, or says what is wrong
            else:
                return self._sessions.step(call.session_id, step.index, step.action)
        ok = encode(self._sessions.handle(call.op, call.session_id, self._body(call)))
        if len(ok) > MAX_RESULT_BYTES:
            raise EnvironmentFailed(f"the result has {len(ok)} bytes; {MAX_RESULT_BYTES} is the limit")
        return ok

    def _body(self, call: Call) -> object:
        try:
            return decode(call.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"the body is not msgpack: {error}") from None

    def _flush(self) -> None:
        now = time.monotonic()
        news = self._sessions.has_news and now - self._tallied_at >= _TALLIES_EVERY_S
        if not (self._answers or news or len(self._sessions) != self._reported):
            return
        tallies = self._sessions.take_tallies() if news else {}
        if news:
            self._tallied_at = now
        self._reported = len(self._sessions)
        self._channel.sendall(pack(Report(self._answers, self._reported, tallies)))
        self._answers = []
        self._flushed_at = now


def load_entries(config: ShardConfig) -> dict[str, Entry]:
    """The configured environments by name. Raises `EnvironmentUnavailable`."""
    data = {name: Path(path) for name, path in config.data.items()}
    entries: dict[str, Entry] = {}
    for reference in config.references:
        entry = load_entry(reference, data)
        if entry.spec.name in entries:
            raise EnvironmentUnavailable(f"two environments are called {entry.spec.name!r}; serve one of them")
        entries[entry.spec.name] = entry
    if unknown := sorted(set(data) - set(entries)):
        raise EnvironmentUnavailable(
            f"GYMFLEET_ENV_DATA names {', '.join(unknown)}, but served are {', '.join(entries)}"
        )
    return entries


def _die_with_parent(lifeline: int) -> None:
    """Exit when the front does, even in the middle of a hanging step."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def wait() -> None:
        os.read(lifeline, 1)  # nothing is ever written: this returns when the other end is closed
        os._exit(0)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


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
    _die_with_parent(lifeline_fd)
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
    progress = _Progress(mmap.mmap(progress_fd, PROGRESS.size), entries)
    limits = Limits(
        config.max_observation_chars,
        progress.beat,
        session_cpu_s=config.session_cpu_s,
        session_wall_s=config.session_wall_s,
    )
    sessions = Sessions(
        config.prefix,
        entries,
        limits,
        lease_s=config.lease_s,
        expert_splits=config.expert_splits,
    )
    specs = tuple(entry.spec.model_dump(mode="json") for entry in entries.values())
    try:
        channel.sendall(pack(Hello(specs=specs)))
        Shard(channel, sessions, limits, progress).run(buffer, pending)
    except (BrokenPipeError, ConnectionResetError):  # the front is gone
        raise SystemExit(0) from None


if __name__ == "__main__":
    main()
