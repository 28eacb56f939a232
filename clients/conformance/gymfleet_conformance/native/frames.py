"""A socket of `WS /v1/stream`, frame by frame, including wrong frames that none of our clients would send."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from gymfleet_contracts.frames import MAX_FRAME_BYTES, ReplyFrame, RequestFrame, encode
from websockets.asyncio.client import ClientConnection, connect

from gymfleet_conformance.server_under_test import Failed, excerpt, require

UNREADABLE: Final = -1
"""The id of the answer to a frame whose own id could not be read."""
_ANSWER_S: Final = 8.0
_decode: Final = msgspec.msgpack.Decoder(ReplyFrame | list[ReplyFrame]).decode
Adopt = Callable[..., None]


class Frames:
    """Sends frames and keeps the answers until they are read."""

    def __init__(self, socket: ClientConnection, adopt: Adopt) -> None:
        self.socket = socket
        self.order: list[int] = []
        self._adopt = adopt
        self._answers: dict[int, ReplyFrame] = {}

    async def send(self, frame_id: int, op: str, session_id: str = "", **body: Any) -> None:
        """Send one request frame."""
        await self.socket.send(encode(RequestFrame(frame_id, op, session_id, body)))

    async def reply(self, frame_id: int) -> ReplyFrame:
        """Return the answer with this id; answers with other ids are kept. Raises `Failed`."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                while frame_id not in self._answers:
                    self._take(await self.socket.recv(decode=False))
        except TimeoutError:
            raise Failed(f"no answer to frame {frame_id} within {_ANSWER_S:g} s") from None
        return self._answers.pop(frame_id)

    async def ok(self, frame_id: int) -> Any:
        """Return the result. Raises `Failed` for a problem."""
        reply = await self.reply(frame_id)
        require(reply.problem is None, f"frame {frame_id} got the problem {excerpt(reply.problem)}")
        return reply.ok

    async def problem(self, frame_id: int) -> tuple[int, str]:
        """Return status and type of the problem. Raises `Failed` for a result."""
        reply = await self.reply(frame_id)
        if reply.problem is None:
            raise Failed(f"frame {frame_id} got the result {excerpt(reply.ok)}; a problem would be right")
        return int(reply.problem.get("status", 0)), str(reply.problem.get("type", ""))

    async def ask(self, frame_id: int, op: str, session_id: str = "", **body: Any) -> Any:
        """Send a request and wait for its result."""
        await self.send(frame_id, op, session_id, **body)
        return await self.ok(frame_id)

    async def open(self, frame_id: int, env: str, task_index: int = 0, **fields: Any) -> str:
        """Open a session and return its id."""
        session_id: str = (await self.ask(frame_id, "open", env=env, task_index=task_index, **fields))["session_id"]
        self._adopt(session_id)
        return session_id

    def forget(self, frame_id: int) -> None:
        """Drop an answer that came more than once."""
        self._answers.pop(frame_id, None)

    def _take(self, data: bytes) -> None:
        try:
            replies = _decode(data)
        except msgspec.DecodeError as error:
            raise Failed(f"the server sent a frame that is no reply: {error}") from None
        for reply in replies if isinstance(replies, list) else [replies]:
            twice = reply.id in self._answers and reply.id != UNREADABLE
            require(not twice, f"frame {reply.id} was answered twice")
            self._answers[reply.id] = reply
            self.order.append(reply.id)


@asynccontextmanager
async def framing(url: str, headers: Mapping[str, str], adopt: Adopt) -> AsyncIterator[Frames]:
    """Connect, and close the socket at the end."""
    async with connect(
        url,
        additional_headers=dict(headers),
        compression=None,
        proxy=None,
        open_timeout=_ANSWER_S,
        close_timeout=1,
        max_size=MAX_FRAME_BYTES,
    ) as socket:
        yield Frames(socket, adopt)
