"""The metrics that an update reports, and how they are summed up without waiting for the device."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class UpdateMetrics:
    """The effect of one batch of trajectories on the policy. Means are over the tokens with a loss, NaN without any."""

    loss: float
    """Mean over the optimiser updates."""
    grad_norm: float
    """Mean over the updates, before clipping."""
    learning_rate: float
    """Of the last update."""
    entropy: float
    clip_fraction: float
    dual_clip_fraction: float
    approx_kl: float
    """Mean `old - new` log-probability: how far the updates moved the policy from the batch's start."""
    ratio_max: float
    reference_kl: float
    """Mean estimate of KL(policy || reference) if it is part of the loss, otherwise NaN."""
    parity: float
    """Mean |trainer - sampler| log-probability before the first update, over fresh sequences."""
    importance_mean: float
    """Mean truncated importance weight; 1 where trainer and sampler agree."""
    value_loss: float
    """Loss of PPO's critic, mean over its updates."""
    value_grad_norm: float
    """Gradient norm of the critic, mean over its updates, before clipping."""
    num_sequences: int
    num_trained_sequences: int
    """Sequences with a gradient: those of a group whose returns are all equal have none."""
    num_tokens: int
    """Tokens that went through the policy with a gradient, over all epochs."""
    num_trained_tokens: int
    """Tokens with a loss among those."""
    num_updates: int
    num_nonfinite: int
    """Updates that were refused because their gradient was not finite."""
    update_s: float


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


Sums = dict[str, Tensor | float]
"""What a micro-batch adds to the totals, by name; tensors are () and detached. `ratio_max` is a maximum instead."""


class Totals:
    """Sums that are kept on the device, for one synchronisation at the end instead of one per micro-batch."""

    def __init__(self) -> None:
        self._sums: Sums = {}
        self._ratios: list[Tensor] = []
        self.learning_rate = math.nan

    def add(self, sums: Sums) -> None:
        """Add the sums of a micro-batch."""
        for name, value in sums.items():
            if name == "ratio_max":
                self._ratios.append(torch.as_tensor(value))
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

    @property
    def ratio_max(self) -> float:
        """Return the largest ratio seen, or NaN if there is none."""
        return float(torch.stack(self._ratios).max()) if self._ratios else math.nan
