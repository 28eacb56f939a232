"""A lossy, duplicating network: speaks the stream's WebSocket on both sides and treats every frame separately."""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

import msgspec
import websockets
from gymfleet_client.multiplex import stream_url
from gymfleet_contracts.frames import MAX_FRAME_BYTES, RawRequest, join_frames, split_frames
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

_decode: Final = msgspec.msgpack.Decoder(RawRequest).decode


class LossyProxy:
    """Forwards `/v1/stream` to `target`: some requests twice, some replies never.

    Args:
        target: base URL of the gateway.
        drop: share of the reply frames that get lost.
        duplicate: share of the request frames that arrive twice.
        seed: of the random draws.
    """

    def __init__(self, target: str, *, drop: float, duplicate: float, seed: int) -> None:
        self._url = stream_url(target)
        self._drop = drop
        self._duplicate = duplicate
        self._dice = random.Random(seed)
        self._server: websockets.Server | None = None
        self.requests: Counter[str] = Counter()
        """Frames that came from clients, by op."""
        self.duplicated = 0
        self.replies = 0
        """Frames that came from the gateway."""
        self.dropped = 0

    async def __aenter__(self) -> Self:
        self._server = await serve(
            self._relay, "127.0.0.1", 0, compression=None, max_size=MAX_FRAME_BYTES, max_queue=None
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        """The URL at which it listens."""
        assert self._server is not None
        return f"http://127.0.0.1:{next(iter(self._server.sockets)).getsockname()[1]}"

    async def _relay(self, client: ServerConnection) -> None:
        async with connect(
            self._url, compression=None, proxy=None, max_size=MAX_FRAME_BYTES, max_queue=None
        ) as gateway:
            replies = asyncio.create_task(_forward(gateway, client, self._surviving))
            try:
                await _forward(client, gateway, self._requests)
            finally:
                replies.cancel()
                await asyncio.wait([replies])

    def _requests(self, message: bytes) -> list[bytes]:
        forwarded = []
        for frame in map(bytes, split_frames(message)):
            self.requests[_decode(frame).op] += 1
            forwarded.append(frame)
            if self._dice.random() < self._duplicate:
                self.duplicated += 1
                forwarded.append(frame)
        return forwarded

    def _surviving(self, message: bytes) -> list[bytes]:
        frames = [bytes(frame) for frame in split_frames(message)]
        kept = [frame for frame in frames if self._dice.random() >= self._drop]
        self.replies += len(frames)
        self.dropped += len(frames) - len(kept)
        return kept


async def _forward(
    source: websockets.ClientConnection | ServerConnection,
    target: websockets.ClientConnection | ServerConnection,
    changed: Callable[[bytes], list[bytes]],
) -> None:
    """Pass on the frames that `changed` makes of each message, until one side has gone."""
    with suppress(websockets.ConnectionClosed):
        async for message in source:
            outbox = deque(changed(_bytes(message)))
            while outbox:
                await target.send(join_frames(outbox)[1])


def _bytes(message: str | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.encode()
