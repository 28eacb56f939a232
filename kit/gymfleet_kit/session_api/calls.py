"""A call of the session API: its arguments, its result, and how to read its body."""

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import msgspec
from gymfleet_contracts.session import Fork
from pydantic import BaseModel, ValidationError

from gymfleet_kit.problems import ServiceError
from gymfleet_kit.session_problems import InvalidRequest

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode
M = TypeVar("M", bound=BaseModel)


class SessionCalls(Protocol):
    """The object that carries out the calls of one caller."""

    async def call(self, op: str, session_id: str, body: msgspec.Raw) -> msgspec.Raw:
        """Return the encoded result; `session_id` is empty for `open`. Raises `ServiceError`."""


class Stated(msgspec.Struct, frozen=True):
    """An encoded result with the fields that only a gateway's journal uses; see `ReplyFrame`."""

    ok: msgspec.Raw
    state: str
    replies: bytes = b""


Result = msgspec.Raw | Stated | ServiceError
Done = Callable[[Result], None]
"""A callback that is called once, with the encoded result or the error."""


def encode_body(body: object) -> msgspec.Raw:
    """Encode a body as msgpack. Raises `InvalidRequest`: JSON can hold text that is not valid Unicode."""
    try:
        return msgspec.Raw(_encode(body))
    except UnicodeEncodeError:
        raise InvalidRequest("the text holds a lone surrogate; send valid Unicode") from None


def decode_body(body: msgspec.Raw) -> Any:
    """Decode a body. Raises `InvalidRequest`."""
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not msgpack: {error}") from None


def parse(model: type[M], body: Any) -> M:
    """Validate a decoded body. Raises `InvalidRequest` with an entry for each field that is wrong."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        fields = [
            {"pointer": "/" + "/".join(str(part) for part in item["loc"]), "detail": str(item["msg"])}
            for item in error.errors(include_input=False, include_url=False)
        ]
        detail = "; ".join(f"{field['pointer']}: {field['detail']}" for field in fields)
        raise InvalidRequest(detail, errors=[dict(field) for field in fields]) from None


def num_children(body: msgspec.Raw) -> int:
    """Return the number of sessions that a fork asks for. Raises `InvalidRequest`."""
    return parse(Fork, decode_body(body)).count


def made_sessions(ok: msgspec.Raw) -> list[str]:
    """Return the ids of the sessions that an `open` or a `fork` made."""
    made = _decode(ok)
    return [session["session_id"] for session in (made if isinstance(made, list) else [made])]
