"""What the routes take from the app, and how they answer."""

from typing import Annotated, Final

import msgspec
from fastapi import Depends, Request, Response

from gymfleet_env_server.shards.pool import ShardPool

_decode: Final = msgspec.msgpack.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


async def get_pool(request: Request) -> ShardPool:
    """Return the app's shards. A coroutine: FastAPI runs plain functions in a thread, which costs more than a step."""
    pool: ShardPool = request.app.state.pool
    return pool


PoolDep = Annotated[ShardPool, Depends(get_pool)]


def json_answer(raw: msgspec.Raw, status_code: int = 200) -> Response:
    """Return a shard's encoded result as JSON. The shard has already checked it."""
    return Response(_encode(_decode(raw)), status_code=status_code, media_type="application/json")
