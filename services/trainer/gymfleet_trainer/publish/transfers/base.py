"""The interface of a transfer."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Self

from gymfleet_contracts.rollout import StageVersion


class Offer:
    """A version on its way to rollout replicas: a context in which each replica is asked once to load it."""

    def __init__(self, body: StageVersion, urls: Collection[str]) -> None:
        self.bodies = dict.fromkeys(urls, body)
        """The request that each replica is sent."""
        self.version = body.version

    def answered(self, url: str) -> None:
        """Note that the call to a replica has ended, successfully or not: the replica takes nothing more."""

    async def __aenter__(self) -> Self:
        """Begin the offer."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the offer, when all calls have ended."""


class Transfer(ABC):
    """Where versions are written, and how engines get them from there."""

    root: Path
    """The directory of the versions' directories."""

    def offer(self, body: StageVersion, urls: Collection[str]) -> Offer:
        """Return the offer of a version in `root` to replicas: by its path, which they can read."""
        return Offer(body, urls)

    @abstractmethod
    def close(self) -> None:
        """Free the resources that it took; the run is over, or continues in another process."""
