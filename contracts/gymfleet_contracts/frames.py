"""Frames of `WS /v1/stream`: msgpack maps, matched by `id`, answered out of order.

A request is `{"id": int, "op": str, "session_id": str?, "body": map?, "trace": str?}`; its
answer is `{"id": int, "ok": map, "state": str?}` or `{"id": int, "problem": map}` (a `Problem`). `trace` is
a W3C `traceparent`. A message holds one frame, or an array of frames: whoever has several
to send at the same moment saves a message each, and both sides must read both forms.
"""

from enum import StrEnum
from typing import Any, Final

import msgspec

MAX_FRAME_BYTES: Final = 4 * 1024 * 1024
FINISHED: Final = 4001
"""The close code of a server on its way out: it answered every call that it took up, and did none of the others."""

MAX_UNREADABLE: Final = 16
"""Frames in a row that are no request: so many are answered, then the socket is closed with `NO_REQUESTS`."""
NO_REQUESTS: Final = (1008, "these are no requests")


class Op(StrEnum):
    """One per call of the session API; `body` is the model that the REST call takes."""

    OPEN = "open"
    STEP = "step"
    FORK = "fork"
    LEASE = "lease"
    GET = "get"
    CLOSE = "close"
    EXPERT = "expert"


class RequestFrame(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A call. `session_id` is absent only for `open`."""

    id: int
    op: str
    session_id: str = ""
    body: dict[str, Any] = {}
    trace: str = ""


class ReplyFrame(msgspec.Struct, omit_defaults=True):
    """An answer: exactly one of `ok` and `problem` is set."""

    id: int
    ok: Any = None
    problem: dict[str, Any] | None = None
    state: str = ""
    """A digest of the state behind the answer to `open` and `step`. Env servers tell it to gateways, which compare it
    after a replay; a gateway tells it to nobody, because an agent could learn from it what it must not see."""


encode: Final = msgspec.msgpack.Encoder().encode
decode_request: Final = msgspec.msgpack.Decoder(RequestFrame).decode
decode_reply: Final = msgspec.msgpack.Decoder(ReplyFrame).decode
