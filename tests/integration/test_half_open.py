"""Requests that are never finished: they cost the caller his connection, and nobody else anything."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
import structlog
import uvicorn
from fastapi import FastAPI, Request
from gymfleet_kit import http_protocol
from gymfleet_kit.app import create_app
from gymfleet_kit.http_protocol import BoundedProtocol
from gymfleet_kit.serve import server_config

HALF = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
BODY = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
WHOLE = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi"
LAST = WHOLE.replace(b"Host", b"Connection: close\r\nHost")
NUM_HALF_OPEN = 1100


def app() -> FastAPI:
    made = create_app("echo")

    @made.post("/echo")
    async def echo(request: Request) -> int:
        return len(await request.body())

    return made


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.5)
    monkeypatch.setattr(http_protocol, "BODY_GRACE_S", 0.5)
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    server = uvicorn.Server(server_config(app()))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    yield listener.getsockname()[1]
    server.should_exit = True
    await task


async def answer(port: int, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """What comes back until the server hangs up; an endless series of parts is sent until then."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def send() -> None:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause_s)

    sending = asyncio.create_task(send())
    try:
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(reader.read(), 20)
        return b"reset"
    finally:
        sending.cancel()
        writer.close()


async def test_half_requests_are_let_go(port: int) -> None:
    half_open = [asyncio.create_task(answer(port, HALF)) for _ in range(NUM_HALF_OPEN)]

    ends = await asyncio.gather(*half_open)

    assert {end.partition(b"\r\n")[0] for end in ends} <= {b"HTTP/1.1 408 Request Timeout", b"", b"reset"}
    assert (await answer(port, LAST)).endswith(b"\r\n\r\n2")


@pytest.mark.parametrize(
    ("parts", "end"),
    [
        pytest.param([HALF, *[b"x"] * 1000], b"HTTP/1.1 408 ", id="a head that trickles in"),
        pytest.param([BODY], b"HTTP/1.1 408 ", id="a body that does not come"),
        pytest.param([BODY, *[b"x"] * 1000], b"HTTP/1.1 408 ", id="a body that trickles in"),
        pytest.param([], b"", id="a connection that says nothing"),
        pytest.param([*[b"\r\n"] * 1000], b"", id="empty lines"),
        pytest.param([HALF, b"x" * 65_500], b"HTTP/1.1 431 ", id="a header without an end"),
        pytest.param(
            [b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(200)) + b"\r\n"],
            b"HTTP/1.1 431 ", id="very many headers",
        ),
        pytest.param([b"GET /%s HTTP/1.1\r\n\r\n" % (b"x" * 20_000)], b"HTTP/1.1 414 ", id="a long address"),
        pytest.param([b"\x00\x01nonsense\r\n\r\n"], b"HTTP/1.1 400 ", id="no HTTP"),
    ],
)  # fmt: skip
async def test_what_is_never_finished_ends(port: int, parts: list[bytes], end: bytes) -> None:
    pause_s = 0.01 if len(parts) > 500 else 0.0

    found = await answer(port, *parts, pause_s=pause_s)

    # Where the server hangs up while bytes are under way to it, TCP may throw its last word away.
    assert found == b"reset" or (found.startswith(end) if end else found == b"")


async def test_who_hangs_up_in_the_middle_of_a_body_is_no_bug(port: int) -> None:
    with structlog.testing.capture_logs() as logs:
        assert await answer(port, BODY)

    assert [entry["event"] for entry in logs] == []


async def test_a_second_request_has_a_clock_of_its_own(port: int) -> None:
    found = await answer(port, WHOLE, HALF, pause_s=0.1)

    assert found.startswith(b"HTTP/1.1 200 ")
    assert b"2HTTP/1.1 408 Request Timeout" in found


async def test_those_that_are_fast_enough_are_not_disturbed(port: int) -> None:
    large = [BODY.replace(b"100000", b"40000"), *[b"x" * 1000] * 40]  # a second long, at 40 kB/s
    found = await answer(port, *large, LAST, pause_s=0.025)

    assert found.count(b"HTTP/1.1 200 ") == 2
    assert b"40000" in found


async def test_a_connection_that_waits_between_requests_keeps_its_time(port: int) -> None:
    found = await answer(port, WHOLE, LAST, pause_s=1.0)

    assert found.count(b"HTTP/1.1 200 ") == 2, "keep-alive is longer than what a head may take"


async def test_requests_in_one_packet_are_answered_in_their_order(port: int) -> None:
    found = await answer(port, WHOLE * 20 + LAST)

    assert found.count(b"HTTP/1.1 200 ") == 21


def test_every_server_of_ours_has_these_bounds() -> None:
    assert server_config(app()).http is BoundedProtocol
