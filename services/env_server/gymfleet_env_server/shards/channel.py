"""The messages between the front and a shard: length-prefixed msgpack, in batches.

Front to shard: first one `ShardConfig`, then batches `[Call, ...]`. Shard to front:
first one `Hello`, then `Report`s. Results stay encoded (`msgspec.Raw`) on their way
through the front, which only puts the caller's frame around them.
"""

import struct
from typing import Any, Final

import msgspec

_LENGTH: Final = struct.Struct(">I")
MAX_MESSAGE_BYTES: Final = 256 * 1024 * 1024


class ShardConfig(msgspec.Struct, frozen=True):
    """A shard's configuration. `prefix` begins the ids of its sessions."""

    prefix: str
    references: tuple[str, ...]
    data: dict[str, str]
    options: dict[str, Any]
    models: dict[str, Any]
    lease_s: float
    max_observation_chars: int
    expert_splits: tuple[str, ...]
    log_level: str
    step_timeout_s: float
    seal_key: str | None = None
    expert_s: float | None = None
    max_threads: int = 1
    session_cpu_s: float | None = None
    session_wall_s: float | None = None
    memory_ceiling_bytes: int | None = None
    """The most data that any single process of the shard may hold; allocating more fails inside that process."""


class Hello(msgspec.Struct, frozen=True):
    """The shard's first message: the specs of its environments, or why it cannot serve them."""

    specs: tuple[dict[str, Any], ...] = ()
    error: str = ""


class Call(msgspec.Struct, array_like=True):
    """One call of the session API; `number` matches its answer and grows by one."""

    number: int
    op: str
    session_id: str
    body: msgspec.Raw
    trace: str = ""
    """W3C `traceparent`."""
    replies: bytes = b""
    """What a replay repeats; see `RequestFrame`."""


class Answer(msgspec.Struct, array_like=True):
    """The encoded result, or the encoded problem."""

    number: int
    ok: bool
    payload: msgspec.Raw
    state: str = ""
    """The digest of the session's state after `open` and `step`, where its environment reports one."""
    replies: bytes = b""
    """The replies of models during `open` and `step`, if the session's opener asked for them."""


class Tally(msgspec.Struct, array_like=True):
    """What happened in one environment since the shard's last report on it."""

    opened: int = 0
    steps: int = 0
    failures: int = 0
    reaped: int = 0
    limited: int = 0
    """Sessions closed because they exceeded a limit."""
    open: dict[str, int] = {}
    """Sessions open now, by owner."""
    seconds: float = 0.0
    """Time spent in `step`."""
    buckets: list[int] = []
    """Steps by duration, one count per bound of `metrics.BOUNDS_S` and one for the rest."""
    engines_lost: int = 0
    """Calls in which the engine under the environment died."""
    model_calls: int = 0
    """Calls of models, without the repeated ones of replays."""
    model_failures: int = 0
    """Calls of models that got no usable answer, however often they were tried."""


class Report(msgspec.Struct, array_like=True):
    """Answers, the number of slots that the open sessions take, and now and then the tallies."""

    answers: list[Answer]
    slots: int
    tallies: dict[str, Tally] = {}
    stuck: int = 0
    """Number of calls that were given up and are still running."""


_encoder: Final = msgspec.msgpack.Encoder()
decode_config: Final = msgspec.msgpack.Decoder(ShardConfig).decode
decode_hello: Final = msgspec.msgpack.Decoder(Hello).decode
decode_calls: Final = msgspec.msgpack.Decoder(list[Call]).decode
decode_report: Final = msgspec.msgpack.Decoder(Report).decode


def pack(message: Any) -> bytes:
    """Encode a message, with its length in front."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameBuffer:
    """Splits a stream of bytes into messages."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """Add received bytes; return the messages that are now complete. Raises ValueError for an absurd length."""
        held = self._held
        held += data
        messages = []
        at = 0
        while len(held) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(held, at)
            if size > MAX_MESSAGE_BYTES:
                raise ValueError(f"a message of {size} bytes was announced")
            end = at + _LENGTH.size + size
            if len(held) < end:
                break
            messages.append(bytes(held[at + _LENGTH.size : end]))
            at = end
        del held[:at]
        return messages
