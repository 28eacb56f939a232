"""The interface of a transfer."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Self

from gymfleet_contracts.rollout import StageVersion


class Offer:
    """A version on its way to rollout replicas: a context in which each of them is asked once to load it."""

    def __init__(self, body: StageVersion, urls: Collection[str]) -> None:
        self.bodies = dict.fromkeys(urls, body)
        """What each replica is sent."""
        self.version = body.version

    def answered(self, url: str) -> None:
        """Note that the call to a replica has ended, well or not: it takes nothing more."""

    async def __aenter__(self) -> Self:
        """Begin to offer it."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End it, when all calls have ended."""


class Transfer(ABC):
    """Where versions are written, and how engines get them from there."""

    root: Path
    """The directory of the versions' directories."""

    def offer(self, body: StageVersion, urls: Collection[str]) -> Offer:
        """Return how replicas are given a version of `root`: by its path, which they can read."""
        return Offer(body, urls)

    @abstractmethod
    def close(self) -> None:
        """Free what it took of the machine; the run is over, or goes on in another process."""
