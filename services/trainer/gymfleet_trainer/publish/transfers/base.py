"""The interface of a transfer."""

from abc import ABC, abstractmethod
from pathlib import Path


class Transfer(ABC):
    """Where versions are written so that engines can load them."""

    root: Path
    """The directory of the versions' directories."""

    @abstractmethod
    def close(self) -> None:
        """Free what it took of the machine; the run is over, or goes on in another process."""
