"""The base of clients that are connected for the duration of an `async with`."""

from abc import ABC, abstractmethod
from typing import Self


class Connected(ABC):
    """Connects when the block begins, so that a wrong address fails there, and closes when it ends."""

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @abstractmethod
    async def connect(self) -> None:
        """Connect now rather than at the first call. Raises `TransportError`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close the connections."""
