"""Frames of `WS /v1/stream`: msgpack maps, matched by `id`, answered out of order.

A request is `{"id": int, "op": str, "session_id": str?, "body": map?, "trace": str?}`; its answer is
`{"id": int, "ok": map, "state": str?}` or `{"id": int, "problem": map}` (a `Problem`). `trace` is a W3C `traceparent`.
Between gateways and env servers, requests and answers may also hold `replies`. A message holds one frame or an array of
frames; with an array, a sender of several frames at the same moment needs only one message. Both sides must read both
forms.

`RequestFrame` and `ReplyFrame` hold decoded bodies. Services and SDK use `RawRequest` and `RawReply`: the same frames
with their bodies left encoded, so that a frame is forwarded without decoding its body.
"""

from collections import deque
from enum import StrEnum
from typing import Any, Final

import msgspec

MAX_FRAME_BYTES: Final = 4 * 1024 * 1024
MAX_BODY_BYTES: Final = MAX_FRAME_BYTES - 4096
"""A longer body may not fit into a frame with what a gateway adds to it: its receiver would close the socket, which
other callers share."""
FINISHED: Final = 4001
"""The close code of a server that is shutting down: it answered every call that it accepted, and executed no others."""

MAX_UNREADABLE: Final = 16
"""This many consecutive frames that are not requests are answered; then the socket is closed with `NO_REQUESTS`."""
NO_REQUESTS: Final = (1008, "these are no requests")
MAX_FRAMES: Final = 0xFFFF
"""Maximum number of frames in one message."""
NO_BODY: Final = msgspec.Raw(msgspec.msgpack.encode({}))
_ABSENT: Final = msgspec.Raw()
_NO_PROBLEM: Final = (_ABSENT, msgspec.Raw(msgspec.msgpack.encode(None)))


class Op(StrEnum):
    """One per call of the session API; `body` is the model that the REST call takes."""

    OPEN = "open"
    STEP = "step"
    FORK = "fork"
    LEASE = "lease"
    GET = "get"
    CLOSE = "close"
    EXPERT = "expert"
    ACTIONS = "actions"
    IRREVERSIBLE = "irreversible"
    TOOL = "tool"
    IMAGE = "image"


class RequestFrame(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A call. `session_id` is absent only for `open`."""

    id: int
    op: str
    session_id: str = ""
    body: dict[str, Any] = {}
    trace: str = ""
    replies: bytes = b""
    """In `open` and `step` of a replay: the recorded `ReplyFrame.replies`, which are repeated instead of asking
    models."""


class ReplyFrame(msgspec.Struct, omit_defaults=True):
    """An answer: exactly one of `ok` and `problem` is set."""

    id: int
    ok: Any = None
    problem: dict[str, Any] | None = None
    state: str = ""
    """A digest of the state behind the answer to `open` and `step`. Env servers send it to gateways, which compare it
    after a replay. A gateway passes it on to nobody, because it could reveal to an agent what it must not see."""
    replies: bytes = b""
    """The replies of models to the environment during `open` or `step`, in a session that was opened with
    `record_replies`; only the env server can read them. Like `state`, they are for journals only."""


class RawRequest(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """`RequestFrame` with an undecoded body."""

    id: int
    op: str
    session_id: str = ""
    body: msgspec.Raw = NO_BODY
    trace: str = ""
    replies: bytes = b""


class RawReply(msgspec.Struct, omit_defaults=True):
    """`ReplyFrame` with undecoded members; an absent one is empty."""

    id: int
    ok: msgspec.Raw = _ABSENT
    problem: msgspec.Raw = _ABSENT
    state: str = ""
    replies: bytes = b""

    @property
    def failed(self) -> bool:
        """Whether this is a problem. An explicit nil from a server means the same as an absent member."""
        return self.problem not in _NO_PROBLEM


encode: Final = msgspec.msgpack.Encoder().encode
decode_request: Final = msgspec.msgpack.Decoder(RequestFrame).decode
decode_reply: Final = msgspec.msgpack.Decoder(ReplyFrame).decode
_MAX_JOINED: Final = 512
_ARRAY_16: Final = 0xDC
_ARRAY_32: Final = b"\xdd"
_ARRAY_HEADERS: Final = frozenset({*range(0x90, 0xA0), _ARRAY_16, *_ARRAY_32})
_decode_frames: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def check_count(data: bytes) -> None:
    """Raise `msgspec.DecodeError` if the message holds more than `MAX_FRAMES`."""
    if data[:1] == _ARRAY_32 and int.from_bytes(data[1:5]) > MAX_FRAMES:
        raise msgspec.DecodeError(f"a message holds at most {MAX_FRAMES} frames")


def split_frames(data: bytes) -> list[msgspec.Raw] | tuple[bytes]:
    """Return the frames of one message, still encoded. Raises `msgspec.DecodeError`."""
    check_count(data)
    return _decode_frames(data) if data and data[0] in _ARRAY_HEADERS else (data,)


def join_frames(outbox: deque[bytes]) -> tuple[int, bytes]:
    """Take frames from the head of `outbox`; return their total size in bytes, and a message of them.

    One frame is sent as it is, several as an array.
    """
    first = outbox.popleft()
    size = len(first)
    frames = [first]
    while outbox and len(frames) < _MAX_JOINED and size + len(outbox[0]) < MAX_FRAME_BYTES // 4:
        size += len(outbox[0])
        frames.append(outbox.popleft())
    if len(frames) == 1:
        return size, first
    return size, b"".join((bytes((_ARRAY_16, len(frames) >> 8, len(frames) & 0xFF)), *frames))
