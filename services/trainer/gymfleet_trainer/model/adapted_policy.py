"""A policy with adapters: its weights are frozen; only small matrices are trained, published and kept."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from gymfleet_contracts.recipe_sections import LoraSection
from peft import LoraConfig
from torch import Tensor, nn

from gymfleet_trainer.distributed.ranks import Ranks
from gymfleet_trainer.distributed.sharding import collected_state
from gymfleet_trainer.model.adapters import (
    ADAPTER_WEIGHTS,
    POLICY,
    REFERENCE,
    adapted_layers,
    adapter_tensors,
    add_adapters,
    adds_nothing,
    applied,
    is_adapter,
    merged_name,
    merged_weight,
    plain_name,
    read_adapter,
    take,
    write_adapter,
)
from gymfleet_trainer.model.batching import PackedBatch
from gymfleet_trainer.model.loading import outline, read_model, standing_in
from gymfleet_trainer.model.microbatches import MicrobatchExecutor, Threads
from gymfleet_trainer.model.policy_model import PolicyModel, TokenLogprobs, recompute_activations
from gymfleet_trainer.model.streaming import streamed
from gymfleet_trainer.model.weight_files import Named


class AdaptedPolicy(PolicyModel):
    """A `PolicyModel` whose frozen weights are held in the compute dtype, as they have no updates to lose."""

    def __init__(self, model: Any, *, compute_dtype: torch.dtype, adapter: LoraConfig, compiled: bool = False) -> None:
        """Take a transformers model with adapters."""
        super().__init__(model, compute_dtype=compute_dtype, compiled=compiled)
        self._adapter = adapter
        self._first = {name: value.detach().clone() for name, value in adapter_tensors(model).items()}

    @classmethod
    def adapting(
        cls,
        path: str | Path,
        section: LoraSection,
        *,
        seed: int = 0,
        dtype: torch.dtype | str = torch.float32,
        device: torch.device | str = "cpu",
        gradient_checkpointing: bool = False,
        compiled: bool = False,
        ranks: Ranks | None = None,
        cpu_offload: bool = False,
    ) -> Self:
        """Load a hub id or a local path, with adapters that are initialised from the seed and change nothing yet.

        The other arguments are those of `from_pretrained`. Raises RecipeError if the model lacks the layers.
        """
        compute_dtype: torch.dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        model = read_model(path, compute_dtype) if ranks is None else outline(path, compute_dtype)
        with standing_in(model):
            adapter = add_adapters(model, section, seed=seed)
        if gradient_checkpointing:
            recompute_activations(model)
        model.train()
        policy = cls(model, compute_dtype=compute_dtype, adapter=adapter, compiled=compiled)
        return policy.placed(path, device, ranks, cpu_offload=cpu_offload)

    @property
    def masters(self) -> torch.dtype:
        """Return the dtype of weights that are trained whole alongside, such as a critic's: the frozen ones may have
        less.
        """
        return self.dtype

    def as_reference(self) -> "AdapterReference":
        """Return the policy as it is now, without copying the weights. Earlier references become this one too."""
        reference = AdapterReference(self)
        reference.copy_weights(self)
        return reference

    def reference(self, directory: Path) -> "AdapterReference":
        """Return the policy as `save_adapter` wrote it. Earlier references become it too. Raises RunDirectoryError."""
        tensors = read_adapter(directory, self.hf)
        take(self.hf, REFERENCE, tensors)
        return AdapterReference(self, adds_nothing=adds_nothing(tensors))

    def executor(self, parameters: Sequence[nn.Parameter]) -> MicrobatchExecutor:
        """See `PolicyModel.executor`. How many micro-batches run at a time depends on all weights, and on dropout."""
        executor = super().executor([*parameters, *self.hf.parameters()])
        if self._adapter.lora_dropout and isinstance(executor, Threads):
            executor.width = 1  # threads would draw from one generator in any order
        return executor

    def body_tensors(self) -> Iterator[Tensor]:
        """Yield the weights and buffers of the body, with the adapter's additions to them."""
        body = self.body
        for name, value in body.named_parameters():
            if not is_adapter(name):
                yield merged_name(body, name, value)[1]
        yield from body.buffers()

    def save_pretrained(self, directory: str | Path) -> None:
        """Write the model with the adapter merged in, like any other model; see `PolicyModel.save_pretrained`."""

        def plain(name: str, value: Tensor) -> Named | None:
            return None if is_adapter(name) else (plain_name(name), value)

        def merged(name: str, value: Tensor) -> Named | None:
            return None if is_adapter(name) else merged_name(self.hf, name, value)

        # Whole weights are merged one at a time, as they are written: all together they would be one more model.
        layers = {layer.get_base_layer().weight.data_ptr(): layer for layer in adapted_layers(self.hf).values()}
        tensors = [] if self.ranks is not None else list(streamed(self.hf, self.masters, None, plain))
        if not layers.keys() <= {tensor.data_ptr() for _, tensor in tensors}:  # sharded, or joined with others
            tensors.clear()
            self._write(Path(directory), streamed(self.hf, self.masters, self.ranks, merged))
            return

        def completed(tensor: Tensor) -> Tensor:
            layer = layers.get(tensor.data_ptr())
            return tensor if layer is None else merged_weight(layer)

        self._write(Path(directory), iter(tensors), completed)

    def save_adapter(self, directory: Path, *, dtype: torch.dtype | None = None) -> None:
        """Write only the adapter, in a dtype or as it is. For a sharded model every rank calls this."""
        tensors = collected_state(adapter_tensors(self.hf))
        if self.ranks is None or self.ranks.first:
            directory.mkdir(exist_ok=True)
            write_adapter(directory, self._adapter, tensors, dtype)

    def describe(self, directory: Path) -> None:
        """Write the adapter's config, as peft reads it."""
        self._adapter.save_pretrained(str(directory))

    def rows(self) -> tuple[str, dict[str, Tensor]]:
        """Return the name of the adapter's file, and its weights themselves as this rank has them."""
        return ADAPTER_WEIGHTS, adapter_tensors(self.hf)

    def load_adapter(self, directory: Path | None) -> None:
        """Load the adapter from a directory that it was saved in; without one, start it anew.

        Raises RunDirectoryError if it does not fit.
        """
        take(self.hf, POLICY, self._first if directory is None else read_adapter(directory, self.hf))


class AdapterReference:
    """The policy as it was: its weights with the reference adapter, or without one where that adds nothing."""

    def __init__(self, policy: AdaptedPolicy, *, adds_nothing: bool = False) -> None:
        self._policy = policy
        self._adapter = None if adds_nothing else REFERENCE

    def token_logprobs(
        self, batch: PackedBatch, *, temperature: float = 1.0, with_entropy: bool = False
    ) -> TokenLogprobs:
        """See `PolicyModel.token_logprobs`; without gradients."""
        with torch.no_grad(), applied(self._adapter):
            return self._policy.token_logprobs(batch, temperature=temperature, with_entropy=with_entropy)

    def copy_weights(self, other: PolicyModel) -> None:
        """Become the policy as it is now."""
        take(self._policy.hf, REFERENCE, adapter_tensors(other.hf))
        self._adapter = REFERENCE

    def describe(self, directory: Path) -> None:
        """Write the adapter's config, as peft reads it."""
        self._policy.describe(directory)

    def rows(self) -> tuple[str, dict[str, Tensor]]:
        """Return the name of the adapter's file, and its weights themselves as this rank has them."""
        return ADAPTER_WEIGHTS, adapter_tensors(self._policy.hf, REFERENCE)
