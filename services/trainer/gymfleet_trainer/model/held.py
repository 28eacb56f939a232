"""The memory that a worker holds between micro-batches (weights, gradients, moments), counted on the meta device."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from gymfleet_contracts.recipe_sections import LoraSection
from torch import nn

from gymfleet_trainer.model.adapters import add_adapters
from gymfleet_trainer.model.families import decoder_of, empty_model
from gymfleet_trainer.model.optimizer import OptimizerOptions, state_bytes
from gymfleet_trainer.model.policy_model import finer_weights
from gymfleet_trainer.model.recast import recast_linears


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of one worker."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """Return the sum of all three."""
        return self.weights + self.gradients + self.optimizer


def held(module: nn.Module, section: OptimizerOptions | None, *, workers: int = 1) -> Held:
    """Count the bytes held for a module on the meta device.

    Args:
        module: its parameters have their dtypes, and `requires_grad` where they are trained.
        section: the optimiser; None for a module that is not trained.
        workers: how many share the module. Each counts as having as many rows of each weight as the one with the most.
    """
    shards = [_shard(parameter, workers) for parameter in {*module.parameters()}]
    trained = [shard for shard in shards if shard.requires_grad] if section is not None else []
    return Held(
        weights=_bytes(shards),
        gradients=_bytes(trained),
        optimizer=0 if section is None else state_bytes(trained, section),
    )


def meta_policy(config: Any, dtype: torch.dtype) -> Any:
    """Return a transformers model on the meta device, whose weights would be trained whole."""
    model = empty_model(config, dtype=dtype).requires_grad_(requires_grad=False)
    for part in (decoder_of(model), model.lm_head):
        part.requires_grad_(requires_grad=True)
    recast_linears(decoder_of(model))
    return model


def meta_adapted(config: Any, section: LoraSection, dtype: torch.dtype) -> Any:
    """Return a transformers model on the meta device with the two adapters that a trained policy has."""
    model = empty_model(config, dtype=dtype)
    add_adapters(model, section, seed=0)
    return model


def rounded_bytes(model: Any, dtype: torch.dtype, compute_dtype: torch.dtype, *, workers: int = 1) -> int:
    """Return the bytes held twice while the model's weights are compared as they are published: see `rounded`."""
    if workers > 1 and dtype == compute_dtype:
        return 0
    return _bytes(_shard(one, workers) for one in {*finer_weights(model, dtype, compute_dtype)})


def _shard(parameter: nn.Parameter, workers: int) -> nn.Parameter:
    rows = -(-parameter.shape[0] // workers)
    shape = (rows, *parameter.shape[1:])
    empty = torch.empty(shape, dtype=parameter.dtype, device="meta")
    return nn.Parameter(empty, requires_grad=parameter.requires_grad)


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(one.nbytes for one in tensors)
