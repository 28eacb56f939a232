"""FSDP2 sharding: every rank holds a shard of each weight, gradient and moment. Also gathers whole tensors again.

Gradients are summed over the ranks, not averaged, because losses are already weighted by counts of the whole batch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor
from torch.distributed.tensor import zeros as sharded_zeros

from gymfleet_trainer.distributed.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a sharded model is kept, and the dtype in which it is gathered."""

    ranks: Ranks
    """The ranks that share the model."""
    device: torch.device
    """The device on which this rank computes."""
    compute_dtype: torch.dtype
    """Whole weights are gathered in it, and gradients summed in at least float32, whatever the dtype of the shards."""
    cpu_offload: bool = False
    """Whether shards, gradients and moments are in main memory."""


def shard(
    model: nn.Module, layers: Iterable[nn.Module], placement: Placement, *, exact: Iterable[nn.Module] = ()
) -> None:
    """Keep this rank's shard of `model`; whole weights exist for only one layer at a time.

    Args:
        model: the same on every rank; weights outside the layers are gathered while it is called as a module.
        layers: the layers of `model`, which are called one after the other.
        placement: where the model is kept.
        exact: small modules, called as such, whose weights are gathered in at least float32.
    """
    device = placement.device
    mesh = init_device_mesh(device.type, (placement.ranks.width,))
    summed_in = torch.promote_types(placement.compute_dtype, torch.float32)
    offload = CPUOffloadPolicy(pin_memory=device.type != "cpu") if placement.cpu_offload else OffloadPolicy()
    # Do not use autocast: it would keep a cast copy of all weights until the forward pass ends.
    policy = MixedPrecisionPolicy(param_dtype=placement.compute_dtype, reduce_dtype=summed_in)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, offload_policy=offload)
    for module in exact:
        fully_shard(
            module,
            mesh=mesh,
            mp_policy=MixedPrecisionPolicy(param_dtype=summed_in, reduce_dtype=summed_in),
            offload_policy=offload,
        )
    # The root too must free its whole weights after a forward pass: an optimiser created then must see shards.
    fully_shard(model, mesh=mesh, reshard_after_forward=True, mp_policy=policy, offload_policy=offload)
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
    """Return a rank's shard of `value`, placed like `parameter`; a value of another shape is returned whole."""
    return sharded_rows(parameter, value) if value.shape == parameter.shape else whole(value)


def sharded_rows(parameter: Tensor, value: Tensor) -> Tensor:
    """Return a rank's shard of a `value` that has as many rows as `parameter`, placed like it.

    The value is whole, or sharded by its rows over the same number of ranks, on any device.
    """
    if not isinstance(parameter, DTensor):
        return whole(value)
    if isinstance(value, DTensor):
        return sharded_from(value.to_local().to(parameter.device), parameter, value)
    # Every rank has the whole value, so nothing needs to be sent.
    return distribute_tensor(
        value.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
    )


def sharded_from(rows: Tensor, parameter: DTensor, like: Tensor | None = None) -> DTensor:
    """Return a tensor from this rank's rows that is placed like `parameter`, with its shape or that of `like`."""
    shaped = parameter if like is None else like
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(rows, mesh, placements, run_check=False, shape=shaped.shape, stride=shaped.stride())


def zero_rows(parameter: Tensor, columns: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros with as many rows as `parameter`, which are placed like its rows."""
    shape = (parameter.shape[0], *columns)
    if not isinstance(parameter, DTensor):
        return torch.zeros(shape, dtype=dtype, device=parameter.device)
    mesh, placements = parameter.device_mesh, parameter.placements
    return sharded_zeros(shape, dtype=dtype, device_mesh=mesh, placements=placements).to(parameter.device)


def local(value: Tensor) -> Tensor:
    """Return this rank's shard, or the tensor itself if it has none; writing to it writes to the tensor."""
    return value.to_local() if isinstance(value, DTensor) else value


def first_row(value: Tensor) -> int:
    """Return the number of the first row of this rank's shard. FSDP2 shards as `torch.chunk` does."""
    if not isinstance(value, DTensor):
        return 0
    rows, mesh = value.shape[0], value.device_mesh
    return min(mesh.get_local_rank() * -(-rows // mesh.size()), rows)


def total(part: Tensor, of: Tensor) -> Tensor:
    """Return the sum over the ranks of `part`, computed by each from its shard of `of`; all ranks must call this."""
    if not isinstance(of, DTensor):
        return part
    mesh = of.device_mesh
    return DTensor.from_local(part, mesh, [Partial()]).redistribute(mesh, [Replicate()]).to_local().to(part.device)
