"""Request bodies that no proper client sends: each gets a 4xx problem, and the service goes on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import httpx

from gymfleet_conformance.native.target import DULL, SUITE, NativeTarget, problem_of, sound
from gymfleet_conformance.server_under_test import excerpt, require, shown

_JSON: Final = {"content-type": "application/json"}
_MIB: Final = 1024 * 1024
_HUGE_MIB: Final = 24
_DEPTH: Final = 100_000
_INSIDE: Final = ("Traceback (most recent call last)", 'File "', "site-packages", ".py:", "at 0x")


@SUITE.must("bodies.garbage")
async def garbage(target: NativeTarget) -> None:
    """Bodies that are no JSON are refused as a 4xx problem."""
    bodies = (b"", b"{", b"\xff\xfe", b"\x00", b"index=0&action=a", b'{"index": 0, "action": "a"', b"\x80\x04K\x01.")
    async with _costs_no_turn(target) as session_id:
        for content in bodies:
            for path in (f"/v1/sessions/{session_id}/steps", "/v1/sessions", "/v1/steps"):
                response = await target.server.request("POST", path, content=content, headers=_JSON)
                _require_client_error(response, "422", f"{content!r}: ")


@SUITE.must("bodies.deeply-nested")
async def deeply_nested(target: NativeTarget) -> None:
    """JSON that is nested 100,000 deep is refused as a 4xx problem."""
    session_id = (await target.open()).session_id
    bodies = (b"[" * _DEPTH, b'{"a":' * _DEPTH, b'{"index":0,"action":' + b"[" * _DEPTH + b"]" * _DEPTH + b"}")
    for content in bodies:
        response = await target.call("POST", session_id, "/steps", content=content, headers=_JSON)
        _require_client_error(response, "422")


@SUITE.must("bodies.wrong-media-type")
async def wrong_media_type(target: NativeTarget) -> None:
    """Forms, text and XML are refused as a 4xx problem and cost no turn."""
    async with _costs_no_turn(target) as session_id:
        for media in ("text/plain", "application/x-www-form-urlencoded", "application/xml", "multipart/form-data"):
            response = await target.call(
                "POST", session_id, "/steps", content=b"<index>0</index>", headers={"content-type": media}
            )
            _require_client_error(response, "415 or 422", f"{media}: ")


@SUITE.must("bodies.compressed-garbage")
async def compressed_garbage(target: NativeTarget) -> None:
    """A body that claims a compression it does not have is a 4xx, never a 5xx."""
    session_id = (await target.open()).session_id
    headers = {**_JSON, "content-encoding": "gzip"}
    response = await target.call("POST", session_id, "/steps", content=b"not gzip", headers=headers)
    require(400 <= response.status_code < 500, f"saw {shown(response)}; 415 or 422 would be right")


@SUITE.must("bodies.huge")
async def huge(target: NativeTarget) -> None:
    """A body of 24 MiB that announces its length is refused as 413, or the connection is closed."""
    await _refused_as_too_large(target, b" " * (_HUGE_MIB * _MIB))


@SUITE.must("bodies.huge-and-unannounced")
async def huge_unannounced(target: NativeTarget) -> None:
    """A body of 24 MiB that comes in chunks of unknown number is refused as 413, or the connection is closed."""

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(_HUGE_MIB):
            yield b" " * _MIB

    await _refused_as_too_large(target, chunks())


@SUITE.must("bodies.cut-off")
async def cut_off(target: NativeTarget) -> None:
    """A client that leaves in the middle of its body costs no turn."""
    session_id = (await target.open()).session_id

    async def half() -> AsyncIterator[bytes]:
        yield b'{"index": 0, '
        raise _Leaving

    with suppress(_Leaving, httpx.TransportError):
        await target.call("POST", session_id, "/steps", content=half(), headers=_JSON)
    require((await target.get(session_id)).index == 0, "half a step was counted")
    sound(await target.step(session_id, 0, DULL), 0)


@SUITE.must("bodies.errors-tell-nothing-of-the-inside")
async def tell_nothing(target: NativeTarget) -> None:
    """No refusal holds a traceback, a source file or an object's address."""
    session_id = (await target.open()).session_id
    steps = f"/v1/sessions/{session_id}/steps"
    tried: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", steps, {"content": b"{", "headers": _JSON}),
        ("POST", steps, {"json": {"index": "x", "action": {"a": 1}}}),
        ("POST", "/v1/sessions", {"json": {"env": target.env, "task_id": "no.such.task"}}),
        ("POST", f"/v1/sessions/{session_id}/fork", {"json": {"count": -1}}),
        ("POST", "/v1/steps", {"json": {"a": 1}}),
        ("GET", "/v1/sessions/%00", {}),
        ("PATCH", "/v1/sessions", {}),
    ]
    for method, path, options in tried:
        text = (await target.server.request(method, path, **options)).text
        told = next((mark for mark in _INSIDE if mark in text), None)
        require(told is None, f"{method} {path[:40]} tells {told!r}: {excerpt(text)}")


class _Leaving(Exception):
    """Raised by the client itself to break off a body."""


@asynccontextmanager
async def _costs_no_turn(target: NativeTarget) -> AsyncIterator[str]:
    """Open a session; require at the end that it has taken no step."""
    session_id = (await target.open()).session_id
    yield session_id
    require((await target.get(session_id)).index == 0, "a refused body was counted as a step")


def _require_client_error(response: httpx.Response, right: str, sent: str = "") -> None:
    problem_of(response)
    require(response.status_code < 500, f"{sent}saw {shown(response)}; {right} would be right")


async def _refused_as_too_large(target: NativeTarget, content: bytes | AsyncIterator[bytes]) -> None:
    try:
        response = await target.server.request("POST", "/v1/sessions", content=content, headers=_JSON)
    except httpx.TransportError:  # a connection closed while the body was being sent counts as an answer
        pass
    else:
        require(response.status_code == 413, f"saw {shown(response)}; 413 would be right")
    await target.open()
