"""Journal of every session's task and actions in Redis, so that another replica can replay them.

One list per session: its location, its lease in milliseconds, the moves since its last step
and how many of those its own calls made necessary, the moves since its beginning, the
Redis server that vouches for it, whether it is sealed, the task, then one entry per step. All writes of one
turn of the event loop are one script call: one round trip, whatever their number. The key
lives as long as the session's lease: a session that nobody touches leaves nothing behind.

A Redis server that was restarted may have lost the last writes. It then has another `run_id`
and no longer vouches for a journal, until a call that states the session's index
shows that no step is missing.
"""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import msgspec
import structlog
from gymfleet_kit.streams import RedisClient
from gymfleet_kit.streams.script_line import Script, ScriptLine
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

log = structlog.get_logger()

_PREFIX: Final = "gymfleet:gateway:journal:"
_MAX_BATCH: Final = 512
_HEAD: Final = 8
_READ_PATIENCE: Final = 5
"""A recovery can wait longer for the journal than a step can."""
_SPOILING: Final = frozenset({"begin", "copy", "step", "seal", "end"})
"""Writes that a journal must not lack: without them it would differ from what happened."""
_AFTER_OUTAGE_S: Final = 0.5
"""How long writes are skipped after a failed one: a dead Redis must not slow every step."""

_SERVER: Final = "local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') "
_READ: Final = _SERVER + "return {server, redis.call('LRANGE', KEYS[1], 0, -1)}"
# KEYS: one per write. ARGV: for each the msgpack of op, location, number and lease in ms, then the payload. As five
# arguments they would cost the gateway more; the script's decoder does not know the type of bytes.
_APPLY: Final = Script(
    _SERVER
    + """
local HEAD = 8
local function vouch(key)
  if redis.call('LINDEX', key, 5) ~= server then redis.call('LSET', key, 5, server) end
end
local function add(key, place, number)
  redis.call('LSET', key, place, redis.call('LINDEX', key, place) + number)
end
local out = {}
for i, key in ipairs(KEYS) do
  local op, location, number, lease = unpack(cmsgpack.unpack(ARGV[2 * i - 1]))
  local payload = ARGV[2 * i]
  local result = 1
  if op == 'begin' then
    redis.call('DEL', key)
    redis.call('RPUSH', key, location, lease, 0, 0, 0, server, 0, payload)
    redis.call('PEXPIRE', key, lease)
  elseif op == 'copy' then
    if redis.call('LLEN', payload) >= HEAD + number then
      redis.call('COPY', payload, key, 'REPLACE')
      redis.call('LTRIM', key, 0, HEAD - 1 + number)
      redis.call('LSET', key, 0, location)
      redis.call('LSET', key, 2, 0)
      redis.call('LSET', key, 3, 0)
      vouch(key)
      redis.call('PEXPIRE', key, lease)
    else
      redis.call('DEL', key)
      result = 0
    end
  elseif op == 'end' then
    redis.call('DEL', key)
  else
    local now = redis.call('LINDEX', key, 0)
    if not now then
      result = 0
    elseif op == 'move' and now == payload then
      result = 1 -- this very write came before, and its answer was lost
    elseif now ~= location then
      result = 2
    elseif op == 'step' then
      local played = redis.call('LLEN', key) - HEAD
      if number > played then
        redis.call('DEL', key)
        result = 0
      else
        if number == played then
          redis.call('RPUSH', key, payload)
          if redis.call('LINDEX', key, 2) ~= '0' then
            redis.call('LSET', key, 2, 0)
            redis.call('LSET', key, 3, 0)
          end
        end
        -- Who takes the next step, or gets the last one again, knows of all that came before.
        if number >= played - 1 then vouch(key) end
        redis.call('PEXPIRE', key, redis.call('LINDEX', key, 1))
      end
    elseif op == 'lease' then
      redis.call('LSET', key, 1, lease)
      redis.call('PEXPIRE', key, lease)
    elseif op == 'seal' then
      redis.call('LSET', key, 6, 1)
    elseif op == 'move' and redis.call('LINDEX', key, 6) ~= '0' then
      result = 0 -- sealed since it was read
    elseif op == 'move' then
      redis.call('LSET', key, 0, payload)
      add(key, 2, 1)
      add(key, 3, number)
      add(key, 4, 1)
      vouch(key)
    end
  end
  out[i] = result
end
return out
"""
)


class Written(IntEnum):
    """The outcome of a write."""

    ABSENT = 0
    """The session has no journal, or only an incomplete one: it cannot be recovered."""
    DONE = 1
    MOVED = 2
    """Another gateway has moved the session: the old location's answer does not count."""


@dataclass(frozen=True, slots=True)
class SessionLocation:
    """Where a session lives now."""

    replica: str
    upstream: str

    def __str__(self) -> str:
        return f"{self.replica} {self.upstream}"


class JournalHeader(msgspec.Struct, frozen=True, array_like=True):
    """How a session began."""

    env: str
    split: str
    level: str
    task_id: str
    seed: int
    lease_s: float
    """The lease that it began with; in a journal that is read, the one that it had last."""
    observed: bytes
    state: bytes = b""
    """A hash of the digest of the state behind the observation; empty where the environment reports none."""
    state_keys: bool = False
    replies: bytes = b""
    """The replies of models to the environment at the beginning, as its env server records them; empty if it asks
    none."""


class JournaledStep(msgspec.Struct, frozen=True, array_like=True):
    """One step and its result; `observed` and `state` are hashes."""

    action: str
    observed: bytes
    reward: float
    over: bool
    state: bytes = b""
    replies: bytes = b""
    """The replies of models during the step; see `JournalHeader`."""


@dataclass(frozen=True, slots=True)
class JournalEntries:
    """Everything that the journal knows of a session."""

    location: SessionLocation
    record: JournalHeader
    steps: Sequence[JournaledStep]
    tries: int = 0
    """Number of moves since its last step."""
    killed: int = 0
    """Number of those moves that were made because its process had died in one of its own calls."""
    recoveries: int = 0
    """Number of moves since its beginning."""
    sealed: bool = False
    """Whether an action was taken, or was about to be, that no replay must repeat."""
    vouched_for: bool = True
    """Whether the journal was read from the Redis server that last wrote to it, which has forgotten nothing since."""


def digest(text: str) -> bytes:
    """Return 64 bits of BLAKE2b, enough to detect a replay that diverged; empty for an empty text."""
    return hashlib.blake2b(text.encode(), digest_size=8).digest() if text else b""


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_record: Final = msgspec.msgpack.Decoder(JournalHeader).decode
_decode_played: Final = msgspec.msgpack.Decoder(JournaledStep).decode
_Write = tuple[str, str, tuple[bytes, str | bytes], "asyncio.Future[int]"]
"""The key, the op, the script's two arguments, and its answer."""


class Journal:
    """The gateway's view of all journals."""

    def __init__(self, redis: RedisClient, *, timeout_s: float) -> None:
        self._redis = redis
        self._timeout_s = timeout_s
        self._line = ScriptLine(redis)
        self._read = redis.register_script(_READ)
        self._outbox: list[_Write] = []
        self._wake = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._down_until = 0.0
        self._spoilt: set[str] = set()
        """Journals that lack a write. They are ended as soon as Redis is back: half an episode must not be replayed."""

    async def start(self) -> None:
        """Start writing."""
        self._writer = asyncio.create_task(self._write_all())

    async def aclose(self) -> None:
        """Stop writing."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait([self._writer])

    async def begin(self, session_id: str, location: SessionLocation, record: JournalHeader) -> None:
        """Record that a session was opened."""
        await self._write(session_id, "begin", location, 0, record.lease_s, _encode(record))

    async def copy(
        self, parent_id: str, session_id: str, location: SessionLocation, index: int, lease_s: float
    ) -> None:
        """Record that a session was forked from another after `index` steps."""
        await self._write(session_id, "copy", location, index, lease_s, _PREFIX + parent_id)

    async def step(self, session_id: str, location: SessionLocation, index: int, played: JournaledStep) -> Written:
        """Record step `index`; writing it again changes nothing."""
        return Written(await self._write(session_id, "step", location, index, 0, _encode(played)))

    async def record_lease(self, session_id: str, location: SessionLocation, lease_s: float) -> Written:
        """Record that the session's lease was renewed."""
        return Written(await self._write(session_id, "lease", location, 0, lease_s, b""))

    async def seal(self, session_id: str, location: SessionLocation) -> Written:
        """Record that the session must not be replayed any more."""
        return Written(await self._write(session_id, "seal", location, 0, 0, b""))

    async def move(
        self, session_id: str, old: SessionLocation, new: SessionLocation, *, culprit: bool = False
    ) -> Written:
        """Record the session's new location; the result is `MOVED` when another gateway was faster.

        `culprit` says that the session's process died in one of its own calls.
        """
        return Written(await self._write(session_id, "move", old, int(culprit), 0, str(new)))

    async def check(self, session_id: str, location: SessionLocation) -> Written:
        """Check whether the session still lives at `location`."""
        return Written(await self._write(session_id, "check", location, 0, 0, b""))

    async def end(self, session_id: str) -> None:
        """Delete the journal of a closed session."""
        await self._write(session_id, "end", "", 0, 0, b"")

    async def read(self, session_id: str) -> JournalEntries | None:
        """Return the whole journal; None when there is none. Raises `RedisError`."""
        entries: list[bytes]
        server, entries = await self._ask(self._read(keys=[_PREFIX + session_id]))
        if len(entries) < _HEAD:
            return None
        location, lease_ms, tries, killed, recoveries, voucher, sealed, record, *steps = entries
        return JournalEntries(
            _location(location),
            msgspec.structs.replace(_decode_record(record), lease_s=int(lease_ms) / 1000),
            [_decode_played(step) for step in steps],
            tries=int(tries),
            killed=int(killed),
            recoveries=int(recoveries),
            sealed=sealed != b"0",
            vouched_for=voucher == server,
        )

    async def location(self, session_id: str) -> SessionLocation | None:
        """Return where the session lives; None when it has no journal. Raises `RedisError`."""
        entry: bytes | None = await self._ask(self._redis.lindex(_PREFIX + session_id, 0))
        return None if entry is None else _location(entry)

    async def _ask(self, command: Any) -> Any:
        """Return a command's answer. `command` is awaitable, though redis-py's annotation admits a bare answer too."""
        timeout_s = self._timeout_s * _READ_PATIENCE
        try:
            async with asyncio.timeout(timeout_s):
                return await command
        except TimeoutError:
            raise RedisTimeoutError(f"no answer within {timeout_s:g} s") from None

    async def _write(
        self,
        session_id: str,
        op: str,
        location: SessionLocation | str,
        number: int,
        lease_s: float,
        payload: str | bytes,
    ) -> int:
        if self._down_until and time.monotonic() < self._down_until:
            if op in _SPOILING:
                self._spoilt.add(_PREFIX + session_id)
            return Written.ABSENT
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._outbox.append((_PREFIX + session_id, op, _arguments(op, location, number, lease_s, payload), done))
        self._wake.set()
        return await done

    async def _write_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._outbox:
                batch, self._outbox = self._outbox[:_MAX_BATCH], self._outbox[_MAX_BATCH:]
                batch = [*self._ends(), *batch]
                keys = [key for key, _, _, _ in batch]
                args = [argument for _, _, both, _ in batch for argument in both]
                try:
                    async with asyncio.timeout(self._timeout_s):
                        results = await self._line.call(_APPLY, keys, args)
                except (RedisError, TimeoutError) as error:
                    self._note_loss(error)
                    self._spoilt.update(key for key, op, _, _ in batch if op in _SPOILING)
                    results = [Written.ABSENT] * len(batch)
                else:
                    self._note_return()
                for (_, _, _, done), result in zip(batch, results, strict=True):
                    if not done.done():
                        done.set_result(result)

    def _ends(self) -> list[_Write]:
        """Return the writes that delete spoilt journals."""
        keys = [self._spoilt.pop() for _ in range(min(len(self._spoilt), _MAX_BATCH))]
        loop = asyncio.get_running_loop()
        return [(key, "end", _arguments("end", "", 0, 0, b""), loop.create_future()) for key in keys]

    def _note_loss(self, error: Exception) -> None:
        if not self._down_until:
            reason = str(error) or f"no answer within {self._timeout_s:g} s"
            log.error("journal.lost", reason=reason, effect="sessions stepped meanwhile cannot be recovered")
        self._down_until = time.monotonic() + _AFTER_OUTAGE_S

    def _note_return(self) -> None:
        if self._down_until:
            log.warning("journal.returned")
            self._down_until = 0.0


def _location(entry: bytes) -> SessionLocation:
    replica, _, upstream = entry.decode().partition(" ")
    return SessionLocation(replica, upstream)


def _arguments(
    op: str, location: SessionLocation | str, number: int, lease_s: float, payload: str | bytes
) -> tuple[bytes, str | bytes]:
    return _encode((op, str(location), number, int(lease_s * 1000))), payload
