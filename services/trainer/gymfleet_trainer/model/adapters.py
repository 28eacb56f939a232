"""LoRA with peft's layers: small trained matrices next to frozen linear ones (Hu et al. 2021, arXiv 2106.09685).

Each layer has two adapters, the policy's and a reference's. The calling thread decides which of them is applied,
because micro-batches run in several threads and a loss may need both.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

import torch
from gymfleet_contracts.recipe import RecipeError
from gymfleet_contracts.recipe_sections import LoraSection
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import Linear
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig

from gymfleet_trainer.distributed.sharding import sharded_like
from gymfleet_trainer.errors import RunDirectoryError
from gymfleet_trainer.model.families import decoder_of, empty_model

POLICY: Final = "default"
REFERENCE: Final = "reference"
ADAPTER: Final = "adapter"
"""The folder of an adapter inside a model's directory."""
_CONFIG: Final = "adapter_config.json"
ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
_PREFIX: Final = "base_model.model."
_BASE: Final = ".base_layer."
_ALL: Final = "all-linear"

# A backward pass that recomputes activations may do so in a separate thread, where the default holds: the policy's.
_applied: Final[ContextVar[str | None]] = ContextVar("applied_adapter", default=POLICY)


@contextmanager
def applied(adapter: str | None) -> Iterator[None]:
    """Apply this adapter, or none at all, in this thread; outside this context the policy's adapter is applied."""
    token = _applied.set(adapter)
    try:
        yield
    finally:
        _applied.reset(token)


class AdaptedLinear(Linear):  # type: ignore[misc]  # peft is untyped to mypy here
    """peft's layer, with the adapter that `applied` sets."""

    @property
    def disable_adapters(self) -> bool:
        """Return whether only the frozen weights count."""
        return _applied.get() is None

    @property
    def active_adapter(self) -> str:
        """Return the adapter that counts."""
        return _applied.get() or POLICY


class TrainedDropout(nn.Dropout):
    """Dropout where gradients are computed. Measurements without gradients are of the policy as it is published."""

    def forward(self, given: Tensor) -> Tensor:
        """See `nn.Dropout`."""
        return super().forward(given) if torch.is_grad_enabled() else given


def add_adapters(model: Any, section: LoraSection, *, seed: int) -> LoraConfig:
    """Freeze a transformers model and put two adapters next to its linear layers; they add nothing yet.

    Their initial weights depend on the seed alone. Raises RecipeError as `adapted_modules` does.
    """
    targets = adapted_modules(model, section)
    config = LoraConfig(
        r=section.rank,
        lora_alpha=section.alpha,
        lora_dropout=section.dropout,
        target_modules=list(targets),
        exclude_modules=_outside(model, targets) or None,
        base_model_name_or_path=model.config.name_or_path,
        task_type="CAUSAL_LM",
    )
    config._register_custom_module({nn.Linear: AdaptedLinear})  # noqa: SLF001 - peft documents it for users
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model, POLICY)
        for layer in adapted_layers(model).values():
            layer.update_layer(REFERENCE, section.rank, lora_alpha=section.alpha, config=config)
    dtype = torch.float64 if model.dtype == torch.float64 else getattr(torch, section.dtype)
    for name, parameter in model.named_parameters():
        if is_adapter(name):
            parameter.data = parameter.data.to(dtype)
        parameter.requires_grad_(is_adapter(name) and f".{POLICY}." in name)
    if section.dropout:
        for layer in adapted_layers(model).values():
            layer.lora_dropout[POLICY] = TrainedDropout(section.dropout)
    return config


def adapted_modules(model: Any, section: LoraSection) -> tuple[str, ...]:
    """Return the names that select the linear layers to adapt: only those of the decoder.

    Raises RecipeError if the model has no such layer for one of the recipe's names.
    """
    layers = decoder_of(model).layers
    names = [name for name, module in layers.named_modules() if isinstance(module, nn.Linear)]
    ends = sorted({name.rpartition(".")[2] for name in names})
    if section.target_modules == _ALL:
        return tuple(ends)
    unknown = [end for end in section.target_modules if not any(f".{name}".endswith(f".{end}") for name in names)]
    if unknown:
        raise RecipeError(
            f"model.lora.target_modules: the decoder has no linear layer {', '.join(unknown)}; it has {', '.join(ends)}"
        )
    return section.target_modules


def _outside(model: Any, targets: tuple[str, ...]) -> list[str]:
    """Return the linear layers outside of the decoder that the names select: what sees images may have them too."""
    inside = {id(module) for module in decoder_of(model).layers.modules()}
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and id(module) not in inside
        and any(f".{name}".endswith(f".{end}") for end in targets)
    ]


def require_modules(source: str, section: LoraSection) -> None:
    """Raise RecipeError as `adapted_modules` does, from the model's config alone."""
    adapted_modules(empty_model(AutoConfig.from_pretrained(source)), section)


def adapted_layers(model: nn.Module) -> dict[str, AdaptedLinear]:
    """Return the layers that have adapters, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, AdaptedLinear)}


def adapter_tensors(model: nn.Module, adapter: str = POLICY) -> dict[str, Tensor]:
    """Return the weights of an adapter themselves, by their names in peft's files."""
    found: dict[str, Tensor] = {}
    for name, layer in adapted_layers(model).items():
        for part in ("lora_A", "lora_B"):
            found[f"{_PREFIX}{name}.{part}.weight"] = getattr(layer, part)[adapter].weight
    return found


@torch.no_grad()
def take(model: nn.Module, adapter: str, given: Mapping[str, Tensor]) -> None:
    """Copy weights into an adapter, from whole tensors or from those of another adapter of the model."""
    for name, own in adapter_tensors(model, adapter).items():
        own.copy_(sharded_like(own, given[name]))


def write_adapter(
    directory: Path, config: LoraConfig, tensors: Mapping[str, Tensor], dtype: torch.dtype | None
) -> None:
    """Write whole tensors, in a dtype or as they are, and their config as peft and vLLM read them."""
    config.save_pretrained(str(directory))
    cast = {name: (value if dtype is None else value.to(dtype)).contiguous() for name, value in tensors.items()}
    save_file(cast, directory / ADAPTER_WEIGHTS, {"format": "pt"})


def read_adapter(directory: Path, model: nn.Module) -> dict[str, Tensor]:
    """Read an adapter of this model from its directory, or from the model's directory that contains it.

    Raises RunDirectoryError if there is no adapter that fits.
    """
    place = directory if (directory / _CONFIG).is_file() else directory / ADAPTER
    try:
        tensors: dict[str, Tensor] = load_file(place / ADAPTER_WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise RunDirectoryError(f"{directory} holds no adapter that can be read: {error}") from None
    expected = {name: value.shape for name, value in adapter_tensors(model).items()}
    if expected != {name: value.shape for name, value in tensors.items()}:
        raise RunDirectoryError(
            f"the adapter in {place} is of another model, rank or choice of layers than [model.lora] says"
        )
    return tensors


def adds_nothing(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a whole adapter changes nothing, as it does before its first update."""
    return not any(value.any() for name, value in tensors.items() if ".lora_B." in name)


@torch.no_grad()
def merged_weight(layer: AdaptedLinear) -> Tensor:
    """Return W + (alpha / r) B A in at least float32; a sharded layer gives a sharded sum."""
    weight = layer.get_base_layer().weight
    dtype = torch.promote_types(weight.dtype, torch.float32)
    first, second = (getattr(layer, part)[POLICY].weight.to(dtype) for part in ("lora_A", "lora_B"))
    merged: Tensor = weight.to(dtype) + layer.scaling[POLICY] * (second @ first)
    return merged


def merged_name(model: nn.Module, name: str, value: Tensor) -> tuple[str, Tensor]:
    """Return name and value of a frozen weight as they are in the model with the policy's adapter merged in."""
    place, is_adapted, rest = name.rpartition(_BASE)
    if not is_adapted:
        return name, value
    layer: Any = model.get_submodule(place)
    return f"{place}.{rest}", merged_weight(layer) if rest == "weight" else value


def plain_name(name: str) -> str:
    """Return the name that a frozen weight has in the model without adapters."""
    return name.replace(_BASE, ".")


def is_adapter(name: str) -> bool:
    """Return whether a weight of this name is an adapter's."""
    return ".lora_" in name
