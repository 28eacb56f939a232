"""Versions in the run's directory, which the rollout services must be able to read."""

from pathlib import Path

from gymfleet_trainer.publish.transfers.base import Transfer


class Disk(Transfer):
    """Only the directory."""

    def __init__(self, weights: Path) -> None:
        self.root = weights

    def close(self) -> None:
        """See `Transfer.close`. The versions stay, as does the rest of the run."""
