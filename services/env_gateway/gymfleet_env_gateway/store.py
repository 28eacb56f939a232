"""State that a client's calls keep for its next calls, whichever gateway those reach.

Every entry has a time to live, so that no cleanup is needed. With Redis the gateways
share the entries; without it, one gateway keeps them in its memory.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol


class StoreFull(Exception):
    """The number of entries has reached its limit."""


class NoEntry(Exception):
    """There is no entry under the key, or no longer one."""


@dataclass(slots=True)
class Held:
    """An entry that one caller holds exclusively."""

    value: bytes
    """The stored value; its value at the end is kept, if the entry was not deleted meanwhile."""
    left: bytes = b""
    """The intent of an earlier holder that died before it was done."""


class Store(Protocol):
    """Values by key. All but `MemoryStore` raise `Unavailable` when the store cannot be reached."""

    async def add(self, key: str, value: bytes, *, ttl_s: float, limit: int) -> bool:
        """Add an entry; return False when the key is taken. Raises `StoreFull` when `limit` entries exist."""

    async def get(self, key: str) -> bytes | None:
        """Return the value; reading does not extend its life."""

    def hold(self, key: str, *, ttl_s: float, intent: bytes = b"") -> AbstractAsyncContextManager[Held]:
        """Hold the entry exclusively, over all gateways; it lives for `ttl_s` after the end of the block.

        `intent` is stored before the block begins and removed at its end. If this process dies inside
        the block, the next holder finds it in `left`. Raises `NoEntry`, and `Unavailable` after a long wait.
        """

    async def delete(self, key: str) -> bool:
        """Delete an entry; return False when there was none."""

    async def keys(self) -> list[str]:
        """Return the keys of all existing entries."""


@dataclass(slots=True)
class _Gate:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class MemoryStore:
    """A store for a single gateway: intents are not kept, as they would die with the process that could find them."""

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
