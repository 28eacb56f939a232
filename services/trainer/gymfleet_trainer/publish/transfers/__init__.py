"""How weights reach the engines: one module for each value of `publish.transfer`."""

import os
from pathlib import Path

import torch
from gymfleet_contracts.recipe import Recipe, RecipeError

from gymfleet_trainer.distributed.ray_settings import ADDRESS
from gymfleet_trainer.model.families import config_of, empty_model
from gymfleet_trainer.publish.transfers.base import Transfer
from gymfleet_trainer.publish.transfers.broadcast import Broadcast
from gymfleet_trainer.publish.transfers.cuda_ipc import CudaIpc
from gymfleet_trainer.publish.transfers.disk import Disk
from gymfleet_trainer.publish.transfers.shared_memory import SharedMemory


def transfer_of(recipe: Recipe, weights: Path, run_id: str, source: str) -> Transfer:
    """Return the run's transfer, ready to use.

    Args:
        recipe: names the transfer. Adapters are files on disk, whatever it names.
        weights: the run's directory of published versions.
        run_id: distinguishes this run from others on the machine.
        source: the model whose form the versions have, a directory or hub id.

    Raises:
        RecipeError: this machine lacks something that the transfer needs.
    """
    if recipe.publish.transfer == "shared_memory" and recipe.model.lora is None:
        if recipe.trainer.workers > 1 and ADDRESS in os.environ:
            raise RecipeError(
                f'publish.transfer = "shared_memory": the worker that writes versions may be on any node of {ADDRESS}; '
                'give "disk", or leave the cluster out'
            )
        dtype: torch.dtype = getattr(torch, recipe.inference.dtype)
        numbers = sum(parameter.numel() for parameter in empty_model(config_of(source)).parameters())
        return SharedMemory(run_id, numbers * dtype.itemsize)
    if recipe.publish.transfer == "broadcast":
        return Broadcast(weights)
    if recipe.publish.transfer == "cuda_ipc" and recipe.model.lora is None:
        return CudaIpc(weights)
    return Disk(weights)
