"""The session API over REST: what becomes of sessions whose caller has gone."""

from typing import Any

import msgspec
import pytest
from fastapi import FastAPI
from gymfleet_contracts.frames import Op
from gymfleet_kit.session_api.calls import encode_body
from gymfleet_kit.session_api.routes import install_session_routes
from gymfleet_kit.session_problems import UnknownSession
from starlette.types import Message

MADE: dict[Op, Any] = {Op.OPEN: {"session_id": "a"}, Op.FORK: [{"session_id": "a"}, {"session_id": "b"}]}
CALLS = {
    Op.OPEN: ("/v1/sessions", b'{"env": "maze", "task_index": 0}'),
    Op.FORK: ("/v1/sessions/parent/fork", b'{"count": 2}'),
}


class Recorded:
    """Calls that make sessions; the first of these cannot be closed."""

    def __init__(self) -> None:
        self.closed: list[str] = []

    async def call(self, op: str, session_id: str, body: msgspec.Raw) -> msgspec.Raw:
        if op != Op.CLOSE:
            return encode_body(MADE[Op(op)])
        self.closed.append(session_id)
        if session_id == "a":
            raise UnknownSession("it has ended by itself")
        return encode_body(None)


@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("gone", [True, False])
async def test_sessions_made_for_a_caller_who_left_are_closed(op: Op, gone: bool) -> None:
    app, calls, status = FastAPI(), Recorded(), []
    install_session_routes(app, lambda _: calls, {})
    path, content = CALLS[op]
    waiting: list[Message] = [{"type": "http.request", "body": content}]

    async def receive() -> Message:
        return waiting.pop() if waiting else {"type": "http.disconnect" if gone else "http.request"}

    async def send(message: Message) -> None:
        status.append(message.get("status"))

    scope: dict[str, Any] = {
        "type": "http", "method": "POST", "path": path, "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip
    await app(scope, receive, send)

    made = MADE[op]
    ids = [session["session_id"] for session in (made if isinstance(made, list) else [made])]
    assert status[0] == 201
    assert calls.closed == (ids if gone else [])
