"""The metrics that an update reports, and their summation without waiting for the device."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gymfleet_trainer.model.microbatches import Sums


@dataclass(frozen=True, slots=True)
class SftMetrics:
    """One pass over the demonstrations."""

    loss: float
    """Mean negative log-likelihood per trained token."""
    grad_norm: float
    """Mean over the updates, before clipping."""
    learning_rate: float
    """Of the last update."""
    num_tokens: int
    num_trained_tokens: int
    num_updates: int
    num_nonfinite: int
    epoch_s: float


class Totals:
    """Sums that are kept on the device, for one synchronisation at the end instead of one per micro-batch.

    A name that begins with `max/` stands for a maximum instead of a sum.
    """

    def __init__(self) -> None:
        self._sums: Sums = {}
        self._maxima: dict[str, list[Tensor]] = {}
        self.learning_rate = math.nan

    def add(self, sums: Sums) -> None:
        """Add the sums of a micro-batch."""
        for name, value in sums.items():
            if name.startswith("max/"):
                self._maxima.setdefault(name, []).append(torch.as_tensor(value))
            else:
                self._sums[name] = self._sums.get(name, 0.0) + value

    def add_step(self, norm: Tensor, learning_rate: float) -> None:
        """Count one optimiser update of the policy."""
        self.add_norm(norm)
        self.learning_rate = learning_rate

    def add_norm(self, norm: Tensor, prefix: str = "") -> None:
        """Count one update as `{prefix}updates`; one with a non-finite norm was refused and is left out of the mean."""
        finite = torch.isfinite(norm)
        summed = torch.where(finite, norm, 0.0)
        self.add({f"{prefix}updates": 1, f"{prefix}grad_norm": summed, "nonfinite": (~finite).float()})

    def get(self, name: str) -> float:
        """Return a sum, or 0 if nothing was added."""
        return float(self._sums.get(name, 0.0))

    def mean(self, name: str, over: str) -> float:
        """Return one sum divided by another, or NaN if the latter is 0."""
        count = self.get(over)
        return self.get(name) / count if count else math.nan

    def reported(self) -> dict[str, float]:
        """Return what the algorithm's losses reported, each under its own name: parts, means and maxima."""
        found = {}
        for name in self._sums:
            kind, _, own = name.partition("/")
            if kind == "part":
                found[own] = self.mean(name, f"updates/{own}")
            elif kind == "sum":
                found[own] = self.mean(name, f"count/{own}")
        return found | {
            name.removeprefix("max/"): float(torch.stack(values).max()) for name, values in self._maxima.items()
        }
