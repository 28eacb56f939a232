"""FSDP2 sharding: every rank holds a shard of each weight, gradient and moment. Also gathers whole tensors again.

Gradients are summed over the ranks, not averaged, because losses are already weighted by counts of the whole batch.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from gymfleet_trainer.distributed.ranks import Ranks


def shard(model: nn.Module, layers: Iterable[nn.Module], ranks: Ranks, device: torch.device) -> None:
    """Keep this rank's shard of `model` on `device`; whole weights exist for only one layer at a time.

    Args:
        model: is the same on every rank; weights outside the layers are gathered while it is called as a module.
        layers: the layers of `model`, which are called one after the other.
        ranks: the ranks that share the model.
        device: the device of this rank.
    """
    mesh = init_device_mesh(device.type, (ranks.width,))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    # The root too must free its whole weights after a forward pass: an optimiser created then must see shards.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum


def whole(value: Tensor) -> Tensor:
    """Gather a tensor from its shards; all ranks must call this. A tensor without shards is returned as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def collected(value: Tensor) -> Tensor:
    """Do as `whole`, but on the first rank's CPU; empty on the others, which have no room for a whole model."""
    if not isinstance(value, DTensor):
        return value
    tensor = value.full_tensor()
    return tensor.cpu() if value.device_mesh.get_rank() == 0 else tensor.new_empty(0)


def collected_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Apply `collected` to every entry; entries that share one tensor still share it afterwards."""
    tensors: dict[int, Tensor] = {}
    for value in state.values():
        if id(value) not in tensors:
            tensors[id(value)] = collected(value.detach())
    return {name: tensors[id(value)] for name, value in state.items()}


def sharded_like(parameter: Tensor, value: Tensor) -> Tensor:
    """Return a rank's shard of a whole `value`, placed like `parameter`; a value of another shape stays whole."""
    if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
        return value
    # Every rank has the whole value, so nothing needs to be sent.
    return distribute_tensor(
        value.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
    )
