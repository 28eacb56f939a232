"""The interface of a transfer."""

from abc import ABC
from pathlib import Path


class Transfer(ABC):  # noqa: B024 - a place is all that some have
    """Where versions are written so that engines can load them."""

    root: Path
    """The directory of the versions' directories."""

    def close(self) -> None:
        """Free what the transfer took of the machine; the run is over, or goes on in another process."""
