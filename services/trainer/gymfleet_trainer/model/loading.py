"""Reading models: whole, or by each of several workers only the rows that it keeps.

For the latter, transformers' own loading (`PreTrainedModel.from_pretrained`) is taken apart: it reads rows where
weights are sharded, but shards them by its own rules, which know no adapters and no dtypes other than the weights'.
"""

# ruff: noqa: SLF001

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import GenerationConfig
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.modeling_utils import LoadStateDictConfig, _get_resolved_checkpoint_files
from transformers.utils.loading_report import LoadStateDictInfo

from gymfleet_trainer.distributed.sharding import Placement, sharded_from
from gymfleet_trainer.errors import UnsupportedModel
from gymfleet_trainer.model.adapters import is_adapter, plain_name
from gymfleet_trainer.model.attention import PACKED_ATTENTION
from gymfleet_trainer.model.families import (
    config_of,
    empty_model,
    model_class,
    require_no_adapter,
    require_supported,
)

_LISTED: Final = 3


def read_model(path: str | Path, dtype: torch.dtype) -> Any:
    """Load a transformers model from a hub id or a local path, with packed attention. Raises UnsupportedModel."""
    require_no_adapter(path)
    model, told = model_class(path).from_pretrained(
        str(path),
        dtype=dtype,
        attn_implementation=PACKED_ATTENTION,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # refused in words of ours
    )
    _require_all(path, told["missing_keys"], told["mismatched_keys"])
    _prepare(model, path)
    for parameter in model.parameters():
        # A file's tensors begin anywhere in memory: products with them differ in the last bit from products with
        # copies, so that the policy would differ from its own reference.
        parameter.data = parameter.data.clone()
    return model


def outline(path: str | Path, dtype: torch.dtype) -> Any:
    """Return the model that `read_model` returns, on the meta device, without weights. Raises UnsupportedModel.

    Once it is sharded, `fill` reads its weights.
    """
    model = empty_model(config_of(path), attention=PACKED_ATTENTION, dtype=dtype)
    model.config.name_or_path = str(path)
    if model.can_generate():
        with suppress(OSError):  # it has none: that of its config was made with the model
            model.generation_config = GenerationConfig.from_pretrained(str(path))
    _prepare(model, path)
    return model


def fill(root: nn.Module, model: Any, plain: Any, path: str | Path, placement: Placement) -> None:
    """Read this rank's rows of each weight of a sharded model, and no other bytes of the weights.

    Files that are not safetensors are read whole by every rank. Adapters stay as they are.

    Args:
        root: the module that was sharded.
        model: the transformers model in it, with adapters or without, such as an `outline`.
        plain: the same model on the meta device, without adapters and whole. It is used up.
        path: the hub id or local path.
        placement: where the shards are kept.

    Raises:
        UnsupportedModel: the files lack a weight of the model.
    """
    # Files name the weights of a model without adapters. `plain` gets no weights but these shards.
    places = {plain_name(name): name for name in _names(model) if not is_adapter(name)}
    for name in _names(plain):
        _put(plain, name, _get(model, places[name]))
    files, metadata = _get_resolved_checkpoint_files(
        pretrained_model_name_or_path=str(path),
        variant=None,
        gguf_file=None,
        use_safetensors=None,
        user_agent=None,
        is_remote_code=False,
    )
    wanted = LoadStateDictConfig(
        pretrained_model_name_or_path=str(path),
        sharded_metadata=metadata,
        dtype=model.dtype,
        dtype_plan=plain._get_dtype_plan(model.dtype),
        weight_mapping=get_model_conversion_mapping(plain),
    )
    told, _ = plain._load_pretrained_model(plain, None, files, wanted)
    _fill_nothing(plain, told)
    plain._adjust_missing_and_unexpected_keys(told)
    _require_all(path, told.missing_keys - plain.all_tied_weights_keys.keys(), told.mismatched_keys)
    plain._finalize_model_loading(plain, wanted, told)  # it computes buffers, too, and ties what is tied
    for name in _names(plain):
        _put(model, places[name], _get(plain, name))
    model._weight_conversions = plain._weight_conversions  # by which they are written again
    root.to("cpu" if placement.cpu_offload else placement.device)  # here FSDP2 learns which tensors are its shards
    for buffer in root.buffers():
        buffer.data = buffer.data.to(placement.device)


def _fill_nothing(model: Any, told: LoadStateDictInfo) -> None:
    """Set weights without a row on this rank to empty tensors: transformers fails to join zero experts to a tensor."""
    for name in [*told.missing_keys]:
        value = _get(model, name)
        if isinstance(value, DTensor) and not value.to_local().numel():
            empty = torch.empty(value.to_local().shape, dtype=value.dtype)
            rows = nn.Parameter(sharded_from(empty, value), requires_grad=value.requires_grad)
            rows._is_hf_initialized = True  # type: ignore[attr-defined]
            _put(model, name, rows)
            told.missing_keys.discard(name)
            told.conversion_errors.pop(name, None)


@contextmanager
def standing_in(model: nn.Module) -> Iterator[None]:
    """Make an `outline` seem to be in main memory within the context: adapters are created where the weights are."""
    kept = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.is_meta:
                kept[module, name] = parameter
                one = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)  # takes no memory
                setattr(module, name, nn.Parameter(one, requires_grad=False))
    try:
        yield
    finally:
        for (module, name), parameter in kept.items():
            setattr(module, name, parameter.requires_grad_(getattr(module, name).requires_grad))


def _prepare(model: Any, path: str | Path) -> None:
    require_supported(model, source=str(path))
    make_writable(model)
    never_drop(model)


def _require_all(path: str | Path, missing: Iterable[str], mismatched: Iterable[tuple[str, Any, Any]]) -> None:
    faults = [f"its files have no {name}, which its config has" for name in sorted(missing)]
    faults += [
        f"{name} is {tuple(there)} in its files and {tuple(here)} by its config"
        for name, there, here in sorted(mismatched)
    ]
    if faults:
        more = f"; and {len(faults) - _LISTED} more" if len(faults) > _LISTED else ""
        raise UnsupportedModel(f"{path} is of another model: {'; '.join(faults[:_LISTED])}{more}")


def _names(model: nn.Module) -> list[str]:
    named = chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    return [name for name, _ in named]


def _get(model: nn.Module, name: str) -> Tensor:
    place, _, last = name.rpartition(".")
    value: Tensor = getattr(model.get_submodule(place), last)
    return value


def _put(model: nn.Module, name: str, value: Tensor) -> None:
    place, _, last = name.rpartition(".")
    setattr(model.get_submodule(place), last, value)


def make_writable(model: Any) -> None:
    """Replace a generation config that transformers reads but refuses to write; published models may have one.

    The file that it was read from is kept unchanged with trained weights: see `files.py`.
    """
    try:
        model.generation_config.validate(strict=True)
    except ValueError:
        model.generation_config = GenerationConfig.from_model_config(model.config)


def never_drop(model: nn.Module) -> None:
    """Turn dropout off: log-probabilities must be those of the sampler, which has no dropout."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if name.endswith("dropout") and isinstance(value, float):
                setattr(module, name, 0.0)
