"""What the stream sends again, and what it never does, against a server that misbehaves on purpose."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from gymfleet_client import DeadlinePassed, SessionStream, TransportError
from gymfleet_client.errors import PayloadTooLarge, UnknownSession
from gymfleet_client.multiplex import FrameChannel
from gymfleet_contracts.frames import MAX_FRAME_BYTES, ReplyFrame, RequestFrame, decode_request, encode
from gymfleet_contracts.session import OpenSession
from websockets.asyncio.server import ServerConnection, serve

Answer = Callable[[ServerConnection, RequestFrame], Awaitable[None]]
RESULT = {"index": 0, "observation": "o", "reward": 0.5, "terminated": False, "truncated": False}
TASK = {"env": "maze", "split": "train", "level": "easy", "task_id": "easy.train.0"}
SESSION = {"session_id": "s", "task": TASK, "observation": "o", "lease_s": 60, "expires_in_s": 60}
GONE = {"type": "/problems/unknown-session", "title": "gone", "status": 404}


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[tuple[str, list[str]]]:
    """A server of the stream; its URL, and the ops that arrived."""
    arrived: list[str] = []

    async def handle(connection: ServerConnection) -> None:
        async for data in connection:
            assert isinstance(data, bytes)
            frame = decode_request(data)
            arrived.append(frame.op)
            await answer(connection, frame)

    async with serve(handle, "127.0.0.1", 0) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        yield f"http://127.0.0.1:{port}", arrived


async def hang_up(connection: ServerConnection, _: RequestFrame) -> None:
    connection.transport.abort()


async def test_an_open_that_may_have_arrived_is_not_sent_again() -> None:
    async with server(hang_up) as (url, arrived), SessionStream(url) as stream:
        with pytest.raises(TransportError, match="lost"):
            await stream.open(OpenSession(env="maze", task_index=0))
        with pytest.raises(TransportError, match="lost"):
            await stream.fork("id", 2)

    assert arrived == ["open", "fork"], "else a slot would be taken that nobody knows of"


async def test_a_step_is_sent_again_until_it_is_answered() -> None:
    tries = 0

    async def third_time(connection: ServerConnection, frame: RequestFrame) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            connection.transport.abort()
        else:
            await connection.send(encode(ReplyFrame(frame.id, ok=RESULT)))

    async with server(third_time) as (url, arrived), SessionStream(url) as stream:
        result = await stream.step("id", 0, "a")

    assert (result.reward, arrived) == (0.5, ["step"] * 3)


@pytest.mark.parametrize(("losses", "error"), [(0, UnknownSession), (1, None)])
async def test_closing_what_is_gone_is_an_error_unless_an_earlier_try_closed_it(
    losses: int, error: type[Exception] | None
) -> None:
    tries = 0

    async def gone(connection: ServerConnection, frame: RequestFrame) -> None:
        nonlocal tries
        tries += 1
        if tries <= losses:
            connection.transport.abort()
        else:
            await connection.send(encode(ReplyFrame(frame.id, problem=GONE)))

    async with server(gone) as (url, _), SessionStream(url) as stream:
        if error is None:
            await stream.close("id")
        else:
            with pytest.raises(error):
                await stream.close("id")


async def test_a_reply_that_comes_too_late_goes_to_nobody() -> None:
    late: list[int] = []

    async def answer(connection: ServerConnection, frame: RequestFrame) -> None:
        if not late:
            late.append(frame.id)
            return
        await connection.send(encode(ReplyFrame(late[0], ok={**RESULT, "observation": "late"})))
        await connection.send(encode(ReplyFrame(frame.id, ok=RESULT)))

    async with server(answer) as (url, _), SessionStream(url) as stream:
        with pytest.raises(DeadlinePassed):
            await stream.step("first", 0, "a", timeout_s=0.05)
        assert (await stream.step("second", 0, "a")).observation == "o"


@pytest.mark.parametrize("op", ["open", "fork"])
@pytest.mark.parametrize("cancelled", [False, True], ids=["too late", "cancelled"])
async def test_sessions_that_are_made_after_their_caller_gave_up_are_closed(op: str, cancelled: bool) -> None:
    came, gave_up, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()
    left = {"first", "second"} if op == "fork" else {"first"}

    async def answer(connection: ServerConnection, frame: RequestFrame) -> None:
        if frame.op == "close":
            left.remove(frame.session_id)
            await connection.send(encode(ReplyFrame(frame.id, ok=None)))
            if not left:
                closed.set()
            return
        came.set()
        await gave_up.wait()
        made = [{**SESSION, "session_id": name} for name in sorted(left)]
        await connection.send(encode(ReplyFrame(frame.id, ok=made if frame.op == "fork" else made[0])))

    async with server(answer) as (url, _), SessionStream(url) as stream:

        async def make(timeout_s: float) -> None:
            if op == "open":
                await stream.open(OpenSession(env="maze", task_index=0), timeout_s=timeout_s)
            else:
                await stream.fork("id", 2, timeout_s=timeout_s)

        call = asyncio.create_task(make(60 if cancelled else 0.2))
        await came.wait()
        if cancelled:
            call.cancel()
        with pytest.raises(asyncio.CancelledError if cancelled else DeadlinePassed):
            await call
        gave_up.set()
        await asyncio.wait_for(closed.wait(), 10)


async def test_calls_that_wait_when_the_stream_is_closed_fail() -> None:
    arrived = asyncio.Event()

    async def silence(_: ServerConnection, __: RequestFrame) -> None:
        arrived.set()

    async with server(silence) as (url, _):
        async with SessionStream(url) as stream:
            waiting = asyncio.create_task(stream.open(OpenSession(env="maze", task_index=0)))
            await arrived.wait()
        with pytest.raises(TransportError):
            await waiting


NO_UTF_8 = b"\xa1\xff"
UNREADABLE = {
    "no msgpack": b"\xc1 not msgpack",
    "id of another type": encode({"id": "text"}),
    "text": "text",
    "no utf-8": b"\x82\xa2id\x01\xa5state" + NO_UTF_8,
    "no utf-8 in the answer": b"\x82\xa2id\x01\xa2ok" + NO_UTF_8,
    "no utf-8 in the problem": b"\x82\xa2id\x01\xa7problem" + NO_UTF_8,
    "deep": b"\x91" * 100_000,
}


@pytest.mark.parametrize("frame", UNREADABLE.values(), ids=UNREADABLE)
async def test_an_unreadable_answer_is_a_transport_error(frame: bytes | str) -> None:
    async def garbage(connection: ServerConnection, _: RequestFrame) -> None:
        await connection.send(frame)

    async with server(garbage) as (url, _), SessionStream(url) as stream:
        with pytest.raises(TransportError, match="unreadable"):
            await stream.open(OpenSession(env="maze", task_index=0))


async def test_a_call_that_no_frame_holds_is_refused_and_never_sent() -> None:
    async def answer(connection: ServerConnection, frame: RequestFrame) -> None:
        await connection.send(encode(ReplyFrame(frame.id, ok=RESULT)))

    async with server(answer) as (url, arrived), SessionStream(url) as stream:
        with pytest.raises(PayloadTooLarge, match=str(MAX_FRAME_BYTES)):
            await stream.step("id", 0, "x" * MAX_FRAME_BYTES, timeout_s=2)
        await stream.step("id", 0, "x")

    assert arrived == ["step"], "the server would have closed the socket, which others share"


async def test_an_answer_of_the_wrong_shape_is_a_transport_error() -> None:
    async def wrong(connection: ServerConnection, frame: RequestFrame) -> None:
        await connection.send(encode(ReplyFrame(frame.id, ok={"colour": "red"})))

    async with server(wrong) as (url, _), SessionStream(url) as stream:
        for call in (stream.step("id", 0, "a"), stream.get("id"), stream.fork("id")):
            with pytest.raises(TransportError, match="answer"):
                await call


async def test_nobody_there_is_said_within_the_connect_timeout() -> None:
    stream = SessionStream("http://127.0.0.1:9", connect_timeout_s=0.1)

    with pytest.raises(TransportError, match="cannot connect"):
        await stream.step("id", 0, "a", timeout_s=60)
    await stream.aclose()


async def test_a_service_that_starts_a_moment_later_is_waited_for() -> None:
    async def ok(connection: ServerConnection, frame: RequestFrame) -> None:
        await connection.send(encode(ReplyFrame(frame.id, ok=RESULT)))

    async with server(ok) as (url, _):
        pass
    stream = SessionStream(url, connect_timeout_s=20)
    step = asyncio.create_task(stream.step("id", 0, "a"))
    await asyncio.sleep(0.05)
    port = int(url.rpartition(":")[2])

    async def handle(connection: ServerConnection) -> None:
        async for data in connection:
            assert isinstance(data, bytes)
            await ok(connection, decode_request(data))

    async with serve(handle, "127.0.0.1", port):
        assert (await step).observation == "o"
        await stream.aclose()


async def test_calls_that_wait_for_a_connection_fail_when_the_channel_is_closed() -> None:
    with socket.socket() as nobody:  # bound and not listening: refused at once, and tried again
        nobody.bind(("127.0.0.1", 0))
        channel = FrameChannel(f"http://127.0.0.1:{nobody.getsockname()[1]}", connect_timeout_s=30.0)
        calls = [
            asyncio.create_task(channel.request("get", "s", None, timeout_s=30.0, repeatable=True)) for _ in range(2)
        ]
        await asyncio.sleep(0.05)

        await channel.aclose()

        for call in calls:
            with pytest.raises(TransportError, match="was closed"):
                await call
        with pytest.raises(TransportError, match="was closed"):
            await channel.request("get", "s", None, timeout_s=30.0, repeatable=True)
