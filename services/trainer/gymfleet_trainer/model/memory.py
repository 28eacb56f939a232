"""The memory of a micro-batch besides weights and gradients, found by running it on tensors with shapes but no content.

Every allocation of the trainer's own forward and backward pass is seen, and so is its release. No formula stands for
the layers of a family, and nothing is downloaded except a config.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from gymfleet_contracts.recipe_sections import LoraSection
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from transformers import AttentionInterface
from transformers.integrations import moe

from gymfleet_trainer.model import policy_model
from gymfleet_trainer.model.adapted_policy import AdaptedPolicy
from gymfleet_trainer.model.adapters import add_adapters
from gymfleet_trainer.model.attention import PACKED_ATTENTION, packed_attention
from gymfleet_trainer.model.batching import PackedBatch, TrainSequence, pack
from gymfleet_trainer.model.cpu_matmul import onednn_is_exact
from gymfleet_trainer.model.families import decoder_of, empty_model, is_of_text
from gymfleet_trainer.model.loading import never_drop
from gymfleet_trainer.model.policy_model import PolicyModel, recompute_activations
from gymfleet_trainer.model.recast import recast_linears

_KERNEL: Final = "gymfleet_kernel"
"""Attention that keeps the same tensors as a GPU's kernel: its inputs and its output."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Numbers of parameters; tied parameters count once."""

    total: int
    trained: int
    """Without the part that sees images."""
    body: int
    """The decoder without its head, as in a critic."""
    outer: int
    """The decoder's embeddings and head, which no layer holds."""
    largest_layer: int

    @classmethod
    def of(cls, model: Any) -> "ModelSize":
        """Count the parameters of a transformers model, on any device."""
        body = decoder_of(model)
        layers = [sum(one.numel() for one in layer.parameters()) for layer in body.layers]
        trained = _numel(body, model.lm_head)
        return cls(_numel(model), trained, _numel(body), trained - sum(layers), max(layers))


def _numel(*modules: nn.Module) -> int:
    return sum(one.numel() for one in {one for module in modules for one in module.parameters()})


@dataclass(frozen=True, slots=True)
class Microbatch:
    """A micro-batch of rows that share nothing and have a loss on every token: the largest case."""

    tokens: int
    length: int
    """Tokens of a row."""

    def packed(self) -> PackedBatch:
        """Return the batch, with token ids that do not matter."""
        length = min(self.length, self.tokens)
        count = max(1, self.tokens // length)
        rows = [
            TrainSequence([index, *[0] * (length - 1)], [True] * length, [0.0] * length, [0.0] * length, 0, f"{index}")
            for index in range(count)
        ]
        (batch,) = pack(rows, count * length)
        return batch


def microbatch_bytes(
    config: Any,
    microbatch: Microbatch,
    *,
    dtype: torch.dtype,
    on_gpu: bool,
    recompute: bool,
    masters: torch.dtype | None = None,
    lora: LoraSection | None = None,
) -> int:
    """Return the peak of bytes in use in one forward and backward pass, besides those that stay.

    Weights, and the gradients left by an earlier micro-batch, stay. The loss itself keeps little.

    Args:
        config: a transformers config, of a model that `require_supported` takes.
        microbatch: the micro-batch to compute.
        dtype: the dtype of the computation.
        on_gpu: whether to count a GPU's attention and chunks of logits.
        recompute: whether layers keep only their inputs.
        masters: the dtype in which trained weights are held; by default at least float32.
        lora: the adapters that are trained instead of the weights.
    """
    batch = microbatch.packed()
    text = config.get_text_config()
    config = text if is_of_text(text) else config
    attention = _KERNEL if on_gpu else PACKED_ATTENTION
    held = dtype if lora is not None else masters or torch.promote_types(dtype, torch.float32)
    model = empty_model(config, attention=attention, dtype=held)
    adapter = None if lora is None else add_adapters(model, lora, seed=0)
    onednn_is_exact()  # measured now: without content there is nothing to measure
    with FakeTensorMode(allow_non_fake_inputs=True), _as_on(on_gpu=on_gpu):
        _leave_meta(model)
        never_drop(model)
        if recompute:
            recompute_activations(model)
        model.train()
        if adapter is not None:
            policy: PolicyModel = AdaptedPolicy(model, compute_dtype=dtype, adapter=adapter)
        else:
            policy = PolicyModel(model, compute_dtype=dtype)
            recast_linears(policy.body)
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.empty_like(parameter)
        live = LiveBytes()
        with live:
            policy.token_logprobs(batch.to("cpu")).logprobs.sum().backward()  # type: ignore[no-untyped-call]
    return live.most


def _leave_meta(model: nn.Module) -> None:
    """Give a model fake tensors on the CPU: peft moves its layers between devices, which fake tensors do not allow."""
    known: dict[Tensor, Tensor] = {}
    for module in model.modules():
        for name, one in module.named_parameters(recurse=False):
            if one not in known:
                known[one] = nn.Parameter(torch.empty_like(one, device="cpu"), requires_grad=one.requires_grad)
            setattr(module, name, known[one])
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty_like(buffer, device="cpu"))


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the bytes of all tensors that were created inside the context and still exist."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = 0
        self._now = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given: set[int] = set()
        tree_map_only(Tensor, lambda one: given.add(id(one.untyped_storage())), (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, lambda one: self._see(one, given), result)
        return result

    def _see(self, tensor: Tensor, given: set[int]) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._known or key in given:
            return
        self._known[key] = storage.nbytes()
        self._now += storage.nbytes()
        self.most = max(self.most, self._now)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self._now -= self._known.pop(key, 0)


@contextmanager
def _as_on(*, on_gpu: bool) -> Iterator[None]:
    """Let the head compute as many logits at once as on the device that is planned for."""
    logits, product = policy_model.MAX_LOGITS, moe._grouped_mm  # noqa: SLF001 - it has no other name
    before = dict(logits)
    logits["cpu"] = logits["cuda" if on_gpu else "cpu"]
    moe._grouped_mm = _experts  # noqa: SLF001 - what stands for it on shapes knows bfloat16 alone
    try:
        yield
    finally:
        logits.update(before)
        moe._grouped_mm = product  # noqa: SLF001


class _Grouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return rows.new_empty(len(rows), weight.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG004 - its content does not matter
        return tuple(torch.empty_like(one) for one in ctx.saved_tensors)


def _experts(rows: Tensor, weight: Tensor, offs: Tensor) -> Tensor:  # noqa: ARG001
    output: Tensor = _Grouped.apply(rows.to(weight.dtype), weight)  # type: ignore[no-untyped-call]
    return output


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
        ctx.save_for_backward(query, key, value, output, query.new_empty(query.shape[:3], dtype=torch.float32))
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG004 - its content does not matter
        return tuple(torch.empty_like(one) for one in ctx.saved_tensors[:3])


def _kernel(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    if softcap is not None:  # for which there is no kernel
        return packed_attention(module, query, key, value, attention_mask, softcap=softcap, **options)
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (one.to(torch.get_autocast_dtype("cpu")) for one in (query, key, value))
    output: Tensor = _Kept.apply(query, key, value)  # type: ignore[no-untyped-call]
    return output, None


AttentionInterface.register(_KERNEL, _kernel)
