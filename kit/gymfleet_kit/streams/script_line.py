"""One persistent connection for the successive script calls of a hot path.

For each command redis-py takes a connection from its pool and returns it, with retries, clocks and metrics around
it. A script call then takes 70 microseconds of processor time, but only 20 on a persistent connection.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError

from gymfleet_kit.streams.connection import RedisClient


class ScriptLine:
    """Call scripts one at a time; other callers wait."""

    def __init__(self, redis: RedisClient) -> None:
        self._pool: Any = redis.connection_pool
        self._connection: Any = None
        self._turn = asyncio.Lock()

    async def call(self, script: "Script", keys: Sequence[str], args: Sequence[bytes | str | int]) -> Any:
        """Return what the script returns. Raises `RedisError`; an interrupted call may have been carried out.

        As everywhere, a call on a connection that a restart left dead is retried once on a fresh one.
        """
        async with self._turn:
            kept = self._connection is not None
            try:
                return await self._once(script, keys, args)
            except RedisConnectionError:
                if not kept:
                    raise
                return await self._once(script, keys, args)

    async def _once(self, script: "Script", keys: Sequence[str], args: Sequence[bytes | str | int]) -> Any:
        if self._connection is None:
            self._connection = await self._pool.get_connection()
        try:
            try:
                return await self._ask("EVALSHA", script.sha, keys, args)
            except NoScriptError:  # Redis is new, or was emptied
                return await self._ask("EVAL", script.text, keys, args)
        except BaseException:  # the answer may still come, and the next caller would take it for its own
            connection, self._connection = self._connection, None
            with contextlib.suppress(RedisConnectionError):
                await connection.disconnect(nowait=True)
            await self._pool.release(connection)
            raise

    async def _ask(self, command: str, script: str, keys: Sequence[str], args: Sequence[bytes | str | int]) -> Any:
        await self._connection.send_command(command, script, len(keys), *keys, *args)
        return await self._connection.read_response()


class Script:
    """A Lua script, and the name under which Redis knows it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
