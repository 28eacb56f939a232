"""The dependencies that the routes take from the app."""

from typing import Annotated

from fastapi import Depends, Request

from gymfleet_env_server.shards.pool import ShardPool


async def get_pool(request: Request) -> ShardPool:
    """Return the app's shards. A coroutine: FastAPI runs plain functions in a thread, which costs more than a step."""
    pool: ShardPool = request.app.state.pool
    return pool


PoolDep = Annotated[ShardPool, Depends(get_pool)]
