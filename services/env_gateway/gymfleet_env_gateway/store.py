"""What a client's calls leave behind for the next ones, whichever gateway those reach.

Every entry has a time to live, so that nobody has to sweep. With Redis the gateways
share the entries; without, one gateway keeps them in its memory.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol


class StoreFull(Exception):
    """As many entries live as may."""


class NoEntry(Exception):
    """There is no entry under the key, or no longer."""


@dataclass(slots=True)
class Held:
    """An entry that one caller has for himself."""

    value: bytes
    """As it was; what stands here at the end is kept, if the entry was not deleted meanwhile."""
    left: bytes = b""
    """The intent of a holder that died with it."""


class Store(Protocol):
    """Values by key. All but `MemoryStore` raise `Unavailable` when the store cannot be reached."""

    async def add(self, key: str, value: bytes, *, ttl_s: float, limit: int) -> bool:
        """A new entry; False when the key is taken. Raises `StoreFull` when `limit` entries live."""

    async def get(self, key: str) -> bytes | None:
        """The value; reading does not prolong its life."""

    def hold(self, key: str, *, ttl_s: float, intent: bytes = b"") -> AbstractAsyncContextManager[Held]:
        """The entry for one holder at a time, over all gateways; it lives for `ttl_s` from the end on.

        `intent` is noted before the block begins and forgotten with its end. Should this process die
        within, the next holder finds it in `left`. Raises `NoEntry`, and `Unavailable` after a long wait.
        """

    async def delete(self, key: str) -> bool:
        """False when there was nothing."""

    async def keys(self) -> list[str]:
        """Of all entries that live."""


@dataclass(slots=True)
class _Gate:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class MemoryStore:
    """For one gateway alone: an intent dies with the process that would find it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: dict[str, tuple[bytes, float]] = {}
        self._gates: dict[str, _Gate] = {}

    async def add(self, key: str, value: bytes, *, ttl_s: float, limit: int) -> bool:
        """See `Store`."""
        living = await self.keys()
        if len(living) >= limit:
            raise StoreFull
        if key in self._entries:
            return False
        self._entries[key] = (value, self._clock() + ttl_s)
        return True

    async def get(self, key: str) -> bytes | None:
        """See `Store`."""
        value, expires = self._entries.get(key, (None, 0.0))
        return value if expires > self._clock() else None

    @asynccontextmanager
    async def hold(self, key: str, *, ttl_s: float, intent: bytes = b"") -> AsyncIterator[Held]:  # noqa: ARG002
        """See `Store`."""
        gate = self._gates.setdefault(key, _Gate())
        gate.users += 1
        try:
            async with gate.lock:
                value = await self.get(key)
                if value is None:
                    raise NoEntry(key)
                held = Held(value)
                try:
                    yield held
                finally:
                    if await self.get(key) is not None:
                        self._entries[key] = (held.value, self._clock() + ttl_s)
        finally:
            gate.users -= 1
            if not gate.users:
                del self._gates[key]

    async def delete(self, key: str) -> bool:
        """See `Store`."""
        lived = await self.get(key) is not None
        self._entries.pop(key, None)
        return lived

    async def keys(self) -> list[str]:
        """See `Store`."""
        now = self._clock()
        for key in [key for key, (_, expires) in self._entries.items() if expires <= now]:
            del self._entries[key]
        return list(self._entries)
