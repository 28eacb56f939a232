"""A model's tensors one at a time, named and shaped as in its files."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor
from transformers.core_model_loading import WeightConverter, revert_weight_conversion

from gymfleet_trainer.distributed.ranks import Ranks
from gymfleet_trainer.distributed.sharding import collected

_CONVERSIONS: Final = "_weight_conversions"


def streamed(
    model: Any,
    dtype: torch.dtype,
    ranks: Ranks | None,
    written: Callable[[str, Tensor], tuple[str, Tensor] | None] = lambda name, tensor: (name, tensor),
) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, whole tensor) of a transformers model; tied tensors once.

    For a sharded model every rank must exhaust this; the first one gets the tensors, on its CPU, floating-point ones in
    `dtype`, and the others nothing. Without `ranks` they are the model's own, not copied and not cast, unless the
    model's files join several of its tensors in one.
    Only one tensor is whole at a time, unless the model's files join several of its tensors in one.

    Args:
        model: the model.
        dtype: the dtype to write them in.
        ranks: the ranks that share the model.
        written: maps each of its tensors to the name and tensor to write; None for tensors that are not written.
    """
    ignored = set(model._keys_to_ignore_on_save or ())  # noqa: SLF001 - has no public name
    seen: set[int] = set()
    joined: dict[str, Tensor] = {}
    joins = _joins(model)
    for held, value in model.state_dict(keep_vars=True).items():
        if id(value) in seen or held in ignored:
            continue
        seen.add(id(value))
        if (found := written(held, value.detach())) is None:
            continue
        name, tensor = found
        if ranks is not None or joins:  # half as much is sent, or kept
            tensor = collected(tensor.to(dtype) if tensor.is_floating_point() else tensor)
        if ranks is not None and not ranks.first:
            continue
        if joins:
            joined[name] = tensor.cpu()
        else:
            yield from revert_weight_conversion(model, {name: tensor}).items()
    yield from revert_weight_conversion(model, joined).items() if joined else ()


def _joins(model: Any) -> bool:
    """Return whether a tensor of the files joins several tensors of the model."""
    conversions = getattr(model, _CONVERSIONS, None) or ()
    return any(isinstance(one, WeightConverter) and len(one.target_patterns) > 1 for one in conversions)
