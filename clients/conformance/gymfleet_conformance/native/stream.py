"""`WS /v1/stream`: frames matched by id, many sessions on one socket."""

import asyncio
from typing import Any, Final

import websockets
from gymfleet_contracts.frames import MAX_FRAME_BYTES, Op, RequestFrame, encode
from gymfleet_contracts.session import ForkSupport, Session, StepResult

from gymfleet_conformance.check import Need
from gymfleet_conformance.native.frames import UNREADABLE
from gymfleet_conformance.native.target import (
    DULL,
    INVALID,
    OUT_OF_ORDER,
    SUITE,
    UNKNOWN_SESSION,
    NativeTarget,
    all_equal,
    refused,
    sound,
)
from gymfleet_conformance.server_under_test import Failed, require, shown

_MANY: Final = 20
_BODIES: Final[dict[str, dict[str, Any]]] = {Op.STEP: {"index": 0, "action": DULL}, Op.FORK: {"count": 1}}
_GARBAGE: Final = (
    b"",
    b"\xc1",
    b"\x93\x01\x02\x03",
    encode({"id": 1}),
    encode({"id": "x", "op": "get"}),
    encode({"id": 1, "op": "get", "surplus": 1}),
    b"\x82\xa2id\x01\xa2op\xa1\xff",
    b"\x91" * 5000 + b"\x00",
)


@SUITE.must("stream.whole-session-api")
async def whole_api(target: NativeTarget) -> None:
    """Open, step, get, lease, fork and close work over the stream as they do over REST."""
    async with target.stream() as stream:
        session_id = await stream.open(1, target.env)
        result = StepResult.model_validate(await stream.ask(2, Op.STEP, session_id, index=0, action=DULL))
        sound(result, 0)
        state = Session.model_validate(await stream.ask(3, Op.GET, session_id))
        require(state.index == 1, f"get shows index {state.index}; 1 would be right")
        require((await stream.ask(4, Op.LEASE, session_id, lease_s=77))["lease_s"] == 77, "the lease is not as asked")
        if target.spec.capabilities.fork is not ForkSupport.NONE:
            children = await stream.ask(5, Op.FORK, session_id, count=2)
            require(len(children) == 2, f"asked for 2 children, got {len(children)}")
            target.adopt(*(child["session_id"] for child in children))
        await stream.ask(6, Op.CLOSE, session_id)
    refused(await target.call("GET", session_id), UNKNOWN_SESSION)


@SUITE.must("stream.answers-match-by-id")
async def answers_match(target: NativeTarget) -> None:
    """Fifty frames with ids in no order, sent at once, each get one answer under their own id."""
    async with target.stream() as stream:
        session_id = await stream.open(1, target.env)
        ids = [(number * 7919) % 100_003 + 2 for number in range(50)]
        for frame_id in ids:
            known = frame_id % 2 == 0
            await stream.send(frame_id, Op.GET, session_id if known else "no-such-session")
        for frame_id in reversed(ids):
            if frame_id % 2 == 0:
                await stream.ok(frame_id)
            else:
                _is(await stream.problem(frame_id), UNKNOWN_SESSION)


@SUITE.must("stream.array-of-frames")
async def array_of_frames(target: NativeTarget) -> None:
    """A message that holds an array of frames is read as those frames."""
    async with target.stream() as stream:
        one, other = await stream.open(1, target.env), await stream.open(2, target.env, 1)
        frames = [
            RequestFrame(3, Op.STEP, one, {"index": 0, "action": DULL}),
            RequestFrame(4, Op.GET, "no-such-session"),
            RequestFrame(5, Op.STEP, other, {"index": 0, "action": DULL}),
        ]
        await stream.socket.send(encode(frames))
        sound(StepResult.model_validate(await stream.ok(3)), 0)
        _is(await stream.problem(4), UNKNOWN_SESSION)
        sound(StepResult.model_validate(await stream.ok(5)), 0)


@SUITE.must("stream.unknown-op")
async def unknown_op(target: NativeTarget) -> None:
    """An op that does not exist is a 422 under the frame's id."""
    async with target.stream() as stream:
        for frame_id, op in enumerate(("dance", "", "probe", "__init__", "x" * 5000), start=1):
            await stream.send(frame_id, op, "x")
            _is(await stream.problem(frame_id), INVALID)


@SUITE.must("stream.garbage-frames")
async def garbage_frames(target: NativeTarget) -> None:
    """Frames that are no request are answered with a problem under id -1, and the socket goes on."""
    async with target.stream() as stream:
        session_id = await stream.open(1, target.env)
        for number, data in enumerate(_GARBAGE, start=2):
            await stream.socket.send(data)
            _is(await stream.problem(UNREADABLE), INVALID)
            await stream.ask(number, Op.GET, session_id)
            stream.forget(UNREADABLE)  # an array of three items that are not frames may be answered three times


@SUITE.must("stream.text-frames")
async def text_frames(target: NativeTarget) -> None:
    """A text frame is answered with a problem, and the socket goes on."""
    async with target.stream() as stream:
        session_id = await stream.open(1, target.env)
        await stream.socket.send('{"id": 2, "op": "get"}')
        _is(await stream.problem(UNREADABLE), INVALID)
        await stream.ask(3, Op.GET, session_id)


@SUITE.must("stream.bad-bodies")
async def bad_bodies(target: NativeTarget) -> None:
    """Bodies that do not fit their op are a 422 under the frame's id, and cost no turn."""
    bodies = [b"\x90", b"\xc0", b"\x07", b"\x82\xa5index\x00\xa6action\xa1\xff", b"\x91" * 900 + b"\x00", b"\x80",
              b"\x82\xa5index\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xa6action\x07"]  # fmt: skip
    async with target.stream() as stream:
        session_id = await stream.open(1, target.env)
        for frame_id, body in enumerate(bodies, start=2):
            head = encode({"id": frame_id, "op": Op.STEP, "session_id": session_id})
            await stream.socket.send(b"\x84" + head[1:] + b"\xa4body" + body)
            _is(await stream.problem(frame_id), INVALID)
        require((await stream.ask(99, Op.GET, session_id))["index"] == 0, "a malformed step was counted")


@SUITE.must("stream.bad-bodies-of-other-ops")
async def bad_bodies_elsewhere(target: NativeTarget) -> None:
    """Bodies that do not fit `open`, `fork` and `lease` are a 422 under the frame's id."""
    bodies = (
        b"\x90",
        b"\x07",
        b"\x81\xa3env\x07",
        b"\x81\xa3env\xa1\xff",
        b"\x81\xa5count\xcd\xff\xff",
        b"\x81\xa7lease_s\xff",
    )
    async with target.stream() as stream:
        session_id = await stream.open(1, target.env)
        frame_id = 1
        for op in (Op.OPEN, Op.FORK, Op.LEASE):
            for body in bodies:
                frame_id += 1
                head = encode({"id": frame_id, "op": op, "session_id": session_id})
                await stream.socket.send(b"\x84" + head[1:] + b"\xa4body" + body)
                _is(await stream.problem(frame_id), INVALID)


@SUITE.must("stream.gap-and-repeat")
async def gap_and_repeat(target: NativeTarget) -> None:
    """Over the stream too, the last step again gets the stored result; a gap or another action is a 409."""
    async with target.stream() as stream:
        session_id = await stream.open(1, target.env)
        action = await target.move(session_id)
        first = await stream.ask(2, Op.STEP, session_id, index=0, action=action)
        require(await stream.ask(3, Op.STEP, session_id, index=0, action=action) == first, "the result is not stored")
        await stream.send(4, Op.STEP, session_id, index=0, action="something else entirely")
        _is(await stream.problem(4), OUT_OF_ORDER)
        if not (first["terminated"] or first["truncated"]):
            await stream.send(5, Op.STEP, session_id, index=5, action=DULL)
            _is(await stream.problem(5), OUT_OF_ORDER)


@SUITE.must("stream.unknown-session")
async def unknown_session(target: NativeTarget) -> None:
    """Every op on a session that does not exist is a 404 `unknown-session`."""
    async with target.stream() as stream:
        for frame_id, op in enumerate((Op.GET, Op.STEP, Op.FORK, Op.LEASE, Op.EXPERT), start=1):
            await stream.send(frame_id, op, "no-such-session", **_BODIES.get(op, {}))
            _is(await stream.problem(frame_id), UNKNOWN_SESSION)
        for frame_id, session_id in enumerate(("", "\x00", "🙂" * 100, "x" * 10_000), start=20):
            await stream.send(frame_id, Op.GET, session_id)
            status, _ = await stream.problem(frame_id)
            require(400 <= status < 500, f"{session_id[:10]!r}: status {status}; 404 would be right")


@SUITE.must("stream.sessions-stay-apart", needs=(Need.DETERMINISTIC,))
async def sessions_apart(target: NativeTarget) -> None:
    """Twenty sessions on one socket, stepped at once, play as one alone would."""
    alone = await target.play((await target.open(task_index=2)).session_id, 4)
    async with target.stream() as stream:
        ids = [await stream.open(number + 1, target.env, 2) for number in range(_MANY)]
        for index, (action, result) in enumerate(alone):
            for number, session_id in enumerate(ids):
                await stream.send(1000 * (index + 1) + number, Op.STEP, session_id, index=index, action=action)
            for number in range(_MANY):
                seen = StepResult.model_validate(await stream.ok(1000 * (index + 1) + number))
                require(target.same(seen, result), f"step {index}: {seen}; alone it was {result}")


@SUITE.must("stream.closed-socket-leaves-the-session")
async def closed_socket(target: NativeTarget) -> None:
    """A session outlives the socket it was opened on: another socket, and REST, go on with it."""
    async with target.stream() as stream:
        session_id = await stream.open(1, target.env)
        first = await stream.ask(2, Op.STEP, session_id, index=0, action=DULL)
    async with target.stream() as other:
        require((await other.ask(1, Op.STEP, session_id, index=0, action=DULL)) == first, "the result is not stored")
    require((await target.get(session_id)).index == 1, "REST shows another index")


@SUITE.must("stream.and-rest-are-one")
async def stream_and_rest(target: NativeTarget) -> None:
    """A step over REST, asked for again over the stream, returns the stored result, and the other way round."""
    session_id = (await target.open()).session_id
    async with target.stream() as stream:
        action = await target.move(session_id)
        first = await target.step(session_id, 0, action)
        again = StepResult.model_validate(await stream.ask(1, Op.STEP, session_id, index=0, action=action))
        require(again == first, f"saw {again}; {first} would be right")
        other = await stream.open(2, target.env, 1)
        over_stream = StepResult.model_validate(await stream.ask(3, Op.STEP, other, index=0, action=DULL))
        require(await target.step(other, 0, DULL) == over_stream, "REST gives another result")


@SUITE.must("stream.duplicates-on-two-sockets")
async def duplicates_on_two(target: NativeTarget) -> None:
    """The same step twenty times over two sockets is executed once."""
    async with target.stream() as one, target.stream() as two:
        session_id = await one.open(1, target.env)
        action = await target.move(session_id)
        for frame_id in range(2, 2 + _MANY):
            await (one if frame_id % 2 else two).send(frame_id, Op.STEP, session_id, index=0, action=action)
        results = [await (one if frame_id % 2 else two).ok(frame_id) for frame_id in range(2, 2 + _MANY)]
    require(all_equal(results), "they got different results")
    require((await target.get(session_id)).index == 1, "more than one of them was counted")


@SUITE.must("stream.oversized-frame")
async def oversized_frame(target: NativeTarget) -> None:
    """A frame past the limit closes its socket or gets a problem; others go on."""
    async with target.stream() as other:
        session_id = await other.open(1, target.env)
        body = {"index": 0, "action": "x" * (2 * MAX_FRAME_BYTES)}
        try:
            async with target.stream() as stream:
                await stream.socket.send(encode(RequestFrame(1, Op.STEP, session_id, body)))
                status, _ = await stream.problem(1)
                require(400 <= status < 500, f"status {status}; 413 would be right")
        except (websockets.ConnectionClosed, ConnectionError):
            pass
        require((await other.ask(2, Op.GET, session_id))["index"] == 0, "the step was counted")


@SUITE.must("stream.abandoned-socket")
async def abandoned_socket(target: NativeTarget) -> None:
    """A socket that breaks off without a goodbye harms nobody: its steps run at most once, others are served."""
    session_id = (await target.open(task_index=1)).session_id
    action = await target.move(session_id)
    async with target.stream() as stream:
        await stream.send(1, Op.STEP, session_id, index=0, action=action)
        stream.socket.transport.abort()
    sound(await target.step(session_id, 0, action), 0)
    require((await target.get(session_id)).index == 1, "the step was executed twice")


@SUITE.must("stream.flood")
async def flood(target: NativeTarget) -> None:
    """Two thousand frames sent without reading an answer are all answered."""
    async with target.stream() as stream:
        session_id = await stream.open(1, target.env)

        async def send() -> None:
            for frame_id in range(2, 2002):
                await stream.send(frame_id, Op.GET, session_id)

        sender = asyncio.create_task(send())
        for frame_id in range(2, 2002):
            await stream.ok(frame_id)
        await sender


@SUITE.must("stream.plain-http-is-refused")
async def plain_http(target: NativeTarget) -> None:
    """A plain `GET` of the stream's path is a 4xx."""
    response = await target.server.request("GET", "/v1/stream")
    require(400 <= response.status_code < 500, f"saw {shown(response)}; 404 or 426 would be right")


def _is(seen: tuple[int, str], right: tuple[int, str]) -> None:
    if seen != right:
        raise Failed(f"saw {seen[0]} {seen[1]}; {right[0]} {right[1]} would be right")
