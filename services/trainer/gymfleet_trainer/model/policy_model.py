"""A Hugging Face causal language model that computes log-probabilities of packed tokens."""

import copy
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self

import torch
from gymfleet_contracts.recipe import RecipeError
from torch import Tensor, nn
from transformers import AttentionInterface

from gymfleet_trainer.distributed.ranks import Ranks
from gymfleet_trainer.distributed.sharding import Placement, shard
from gymfleet_trainer.errors import UnsupportedModel
from gymfleet_trainer.model import vision
from gymfleet_trainer.model.attention import PACKED_ATTENTION, packed_attention
from gymfleet_trainer.model.batching import PackedBatch
from gymfleet_trainer.model.cpu_matmul import fast_float32_matmul
from gymfleet_trainer.model.families import decoder_of, empty_model, logit_scale
from gymfleet_trainer.model.loading import fill, outline, read_model
from gymfleet_trainer.model.microbatches import MicrobatchExecutor, Threads
from gymfleet_trainer.model.recast import RecastLinear, recast_linears
from gymfleet_trainer.model.streaming import streamed
from gymfleet_trainer.model.trees import ModelInputs
from gymfleet_trainer.model.vision import Features, PackedImages
from gymfleet_trainer.model.weight_files import Completed, Named, write_model

MAX_LOGITS = {"cpu": 1 << 25, "cuda": 1 << 28}
"""Logits held at once, by device; more are computed in chunks. A GPU needs large products to stay busy."""

_FORMS: Final = 64
"""Maximum number of forms of a layer that are compiled."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Values per token of a packed batch, aligned with it; 0 where no token is trained."""

    logprobs: Tensor
    """(T,) in the model's `dtype`, with grad unless under `torch.no_grad`."""
    entropy: Tensor | None
    """(T,) in the same dtype, the entropy of the distribution that the token was drawn from."""


class PolicyModel(nn.Module):
    """A model with weights in float32; with `compute_dtype` bfloat16, matrix products run in bfloat16.

    Optimiser steps of reinforcement learning are smaller than bfloat16 resolves, so master weights stay float32,
    unless an optimiser rounds them stochastically. With float64 everything is float64.
    """

    def __init__(self, model: Any, *, compute_dtype: torch.dtype = torch.float32, compiled: bool = False) -> None:
        """Take a transformers model that was loaded with `attn_implementation = PACKED_ATTENTION`.

        With `compiled`, its layers are compiled when first called, and so are those of models made from it.
        """
        super().__init__()
        self.hf = model
        self.compiled = compiled
        if compiled:
            compile_layers(self.body)
        vision.prepare(model)
        text = model.config.get_text_config()
        self.logit_scale = logit_scale(text)
        self.logit_softcap: float | None = getattr(text, "final_logit_softcapping", None)
        self.compute_dtype = compute_dtype
        self.placement: Placement | None = None
        """The placement of the weights' shards; None if the weights are whole."""

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        dtype: torch.dtype | str = torch.float32,
        device: torch.device | str = "cpu",
        masters: torch.dtype | None = None,
        gradient_checkpointing: bool = False,
        compiled: bool = False,
        ranks: Ranks | None = None,
        cpu_offload: bool = False,
        frozen: bool = False,
    ) -> Self:
        """Load a hub id or a local path.

        Args:
            path: the hub id or path.
            dtype: the dtype of the computation.
            device: the device of the computation.
            masters: the dtype in which weights are held; by default at least float32.
            gradient_checkpointing: recompute activations in the backward pass.
            compiled: compile the layers; it changes results by rounding.
            ranks: each of them calls this, and keeps its shard.
            cpu_offload: keep the shards in main memory; has no effect without `ranks`.
            frozen: the model has no gradients; the parts that see images never have any.

        Raises:
            UnsupportedModel: the trainer cannot compute a layer of this model.
        """
        compute_dtype: torch.dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        read = read_model if ranks is None else outline
        model = read(path, masters or _at_least_float32(compute_dtype))
        if gradient_checkpointing:
            recompute_activations(model)
        model.train(not frozen).requires_grad_(requires_grad=False)
        policy = cls(model, compute_dtype=compute_dtype, compiled=compiled)
        recast_linears(policy.body)
        for part in (policy.body, model.lm_head):
            part.requires_grad_(not frozen)
        return policy.placed(path, device, ranks, cpu_offload=cpu_offload)

    def placed(
        self, path: str | Path, device: torch.device | str, ranks: Ranks | None, *, cpu_offload: bool = False
    ) -> Self:
        """Move the model to a device, or read this rank's shard of it from its path; return it."""
        if ranks is None:
            return self.to(device)
        self.placement = Placement(ranks, torch.device(device), self.compute_dtype, cpu_offload)
        shard(self, self.body.layers, self.placement)
        plain = empty_model(self.hf.config, attention=PACKED_ATTENTION, dtype=self.hf.dtype)
        fill(self, self.hf, plain, path, self.placement)
        return self

    @property
    def ranks(self) -> Ranks | None:
        """Return the ranks that share the weights; None if the weights are whole."""
        return None if self.placement is None else self.placement.ranks

    @property
    def device(self) -> torch.device:
        """Return the device of the computation."""
        return next(self.parameters()).device if self.placement is None else self.placement.device

    @property
    def masters(self) -> torch.dtype:
        """Return the dtype of the weights."""
        return next(self.parameters()).dtype

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of log-probabilities and of everything that is computed from them."""
        return _at_least_float32(self.compute_dtype)

    @property
    def config(self) -> Any:
        """Return the transformers config of the part that reads and writes text."""
        return self.hf.config.get_text_config()

    @property
    def body(self) -> Any:
        """Return the decoder without its head."""
        return decoder_of(self.hf)

    def frozen_copy(self) -> "PolicyModel":
        """Return an independent copy without gradients."""
        frozen = copy.deepcopy(self).requires_grad_(requires_grad=False).eval()
        if self.compiled:
            compile_layers(frozen.body)  # a copy of a module is not compiled
        return frozen

    def as_reference(self) -> "Reference":
        """Return the policy as it is now, as the reference policy."""
        return self.frozen_copy()

    def body_tensors(self) -> Iterator[Tensor]:
        """Yield the weights and buffers of the body, in the form that another model of its shape can take."""
        yield from (*self.body.parameters(), *self.body.buffers())

    @torch.no_grad()
    def copy_weights(self, other: "PolicyModel") -> None:
        """Take the weights of a model of the same shape, sharded in the same way or not at all."""
        for own, given in zip(self.parameters(), other.parameters(), strict=True):
            own.copy_(given)

    def executor(self, parameters: Sequence[nn.Parameter]) -> MicrobatchExecutor:
        """Return the executor for micro-batches that are differentiated by `parameters`."""
        return self.ranks if self.ranks is not None else Threads(self.device, parameters)

    def hidden_states(self, inputs: ModelInputs) -> Tensor:
        """Return the body's last hidden states, (U, hidden), in the dtype of the computation."""
        return packed_hidden_states(self.body, inputs, self.compute_dtype, seeing=self._features)

    def _features(self, images: PackedImages) -> Features:
        if self.placement is not None:
            raise UnsupportedModel("images are seen where the weights are whole: set parallelism to one worker")
        return vision.features_of(self.hf, images)

    def token_logprobs(
        self, batch: PackedBatch, *, temperature: float = 1.0, with_entropy: bool = False
    ) -> TokenLogprobs:
        """Return the log-probability of each trained token, given the tokens before it in its segment.

        Args:
            batch: packed tokens on the model's device.
            temperature: the sampling temperature; logits are divided by it.
            with_entropy: also return the entropy, at the same positions.
        """
        return TokenLogprobs(*self(batch, temperature, with_entropy))

    def forward(self, batch: PackedBatch, temperature: float, with_entropy: bool) -> tuple[Tensor, Tensor | None]:
        """See `token_logprobs`. Called through the module, which gathers a sharded model's weights."""
        with fast_float32_matmul(self.device):
            inputs = batch.inputs
            hidden = inputs.states_of(self.hidden_states(inputs))
            logprobs, entropy = selected_logprobs(
                hidden,
                self.hf.lm_head.weight,
                inputs.targets,
                temperature=temperature / self.logit_scale,
                softcap=self.logit_softcap,
                with_entropy=with_entropy,
            )
        return batch.scattered(logprobs), batch.scattered(entropy) if entropy is not None else None

    def to_be_rounded(self, dtype: torch.dtype) -> list[nn.Parameter]:
        """Return the weights that compute differently from their published form in `dtype`."""
        if self.ranks is not None and dtype == self.compute_dtype:
            return []  # whole weights are gathered in it
        return finer_weights(self.hf, dtype, self.compute_dtype)

    @contextmanager
    def rounded(self, dtype: torch.dtype) -> Iterator[None]:
        """Compute with the weights as they are published in `dtype`, within the context.

        The weights of `to_be_rounded` are held twice meanwhile. Without ranks the stored tensors stay as they are, so
        that a checkpoint may be written from them.
        """
        parameters = self.to_be_rounded(dtype)
        if self.ranks is None:
            stored = [parameter.data for parameter in parameters]
            try:
                for parameter in parameters:
                    parameter.data = parameter.data.to(dtype).to(parameter.dtype)
                yield
            finally:
                for parameter, value in zip(parameters, stored, strict=True):
                    parameter.data = value
            return
        kept = [parameter.detach().clone() for parameter in parameters]
        try:
            with torch.no_grad():
                for parameter in parameters:
                    parameter.copy_(parameter.to(dtype))
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(parameters, kept, strict=True):
                    parameter.copy_(value)

    def describe(self, directory: Path) -> None:
        """Write everything but the weights, as transformers reads it."""
        config = self.hf.config
        config.architectures, config.dtype = [type(self.hf).__name__], str(self.masters).removeprefix("torch.")
        config.save_pretrained(str(directory))
        if self.hf.can_generate():
            self.hf.generation_config.save_pretrained(str(directory))

    def rows(self) -> tuple[str, dict[str, Tensor]]:
        """Return the name of the weights' file, and the weights themselves as this rank has them."""
        return "model.safetensors", self.hf.state_dict(keep_vars=True)

    def save_pretrained(self, directory: str | Path) -> None:
        """Write config and safetensors as transformers and vLLM read them; tied weights are written once.

        They are written as they are held. For a sharded model every rank calls this, and the first one writes; it
        holds the tensors of one file at a time.
        """
        self._write(Path(directory), streamed(self.hf, self.masters, self.ranks))

    def _write(self, directory: Path, tensors: Iterator[Named], completed: Completed | None = None) -> None:
        writes = self.ranks is None or self.ranks.first
        write_model(directory, self.hf, tensors, self.masters, writes=writes, completed=completed)


class Reference(Protocol):
    """The policy as it once was, against which updates of the current policy are measured."""

    def token_logprobs(
        self, batch: PackedBatch, *, temperature: float = 1.0, with_entropy: bool = False
    ) -> TokenLogprobs:
        """See `PolicyModel.token_logprobs`. Called without gradients."""

    def copy_weights(self, other: PolicyModel) -> None:
        """Become the policy as it is now."""

    def describe(self, directory: Path) -> None:
        """Write everything needed to load it again, except the weights."""

    def rows(self) -> tuple[str, dict[str, Tensor]]:
        """Return the name of the weights' file, and the weights themselves as this rank has them."""


def finer_weights(model: Any, dtype: torch.dtype, compute_dtype: torch.dtype) -> list[nn.Parameter]:
    """Return the weights of a transformers model that are held, and used, in a higher precision than `dtype`.

    Where the computation is in `dtype`, linear layers and the head round their weights to it themselves.
    """
    finer = [one for one in model.parameters() if torch.promote_types(dtype, one.dtype) != dtype]
    if dtype != compute_dtype:
        return finer
    embedded = model.get_input_embeddings().weight
    linears = [one for one in model.modules() if isinstance(one, RecastLinear)]
    cast = {id(weight) for one in linears for weight in one.parameters(recurse=False)}
    if model.lm_head.weight is not embedded:
        cast.add(id(model.lm_head.weight))
    return [one for one in finer if id(one) not in cast]


def recompute_activations(model: Any) -> None:
    """Make the layers of a transformers model keep only their inputs, and recompute the rest when it is needed."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def compile_layers(body: Any) -> None:
    """Have each layer of a decoder compiled when it is first called, for any number of tokens.

    Attention is not compiled: it has its own kernels, and the bounds of segments are Python numbers, for which every
    batch would be compiled anew. Raises RecipeError where there is no compiler.
    """
    compiler = next(iter(shlex.split(os.environ.get("CXX", ""))), "g++")  # it may be `ccache g++`
    if shutil.which(compiler) is None:
        raise RecipeError(f"trainer.compile needs a C++ compiler, and there is no {compiler}: install it, or set false")
    # With and without gradients, for policy, reference, critic and reward model: torch compiles no form past its limit.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _FORMS)  # noqa: SLF001
    AttentionInterface.register(PACKED_ATTENTION, torch.compiler.disable(packed_attention))  # type: ignore[no-untyped-call]
    for layer in body.layers:
        layer.compile(dynamic=True)


def packed_hidden_states(
    body: Any,
    inputs: ModelInputs,
    compute_dtype: torch.dtype,
    seeing: Callable[[PackedImages], Features] | None = None,
) -> Tensor:
    """Run a decoder body over U packed tokens and return (U, hidden).

    Raises UnsupportedModel for images without a part that sees them.
    """
    if inputs.images is not None and seeing is None:
        raise UnsupportedModel("a critic and a reward model read text alone, and these episodes have images")
    # Sharded weights were gathered in the dtype of the computation. Others are cast: without autocast's cache, which
    # would keep copies of all of them until the forward pass ends, and by `RecastLinear`, which keeps no copy for the
    # backward pass.
    mixed = body.embed_tokens.weight.dtype != compute_dtype
    with torch.autocast(inputs.tokens.device.type, dtype=compute_dtype, enabled=mixed, cache_enabled=False):
        embedded = body.embed_tokens(inputs.tokens[None])
        seen: dict[str, Any] = {}
        if inputs.images is not None and seeing is not None:
            embedded, seen = vision.placed(embedded, inputs.images, seeing(inputs.images))
        output = body(
            inputs_embeds=embedded.to(compute_dtype),
            position_ids=inputs.positions.unsqueeze(-2),  # (1, U), or (3, 1, U)
            use_cache=False,
            segments=inputs.segments,
            **seen,
        )
    hidden: Tensor = output.last_hidden_state[0]
    return hidden.to(compute_dtype)


def selected_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    softcap: float | None = None,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return log-probabilities (and entropies) of `targets` without ever holding all logits.

    Args:
        hidden: (N, hidden), the states that predict the targets, in the dtype of the matrix product.
        weight: (V, hidden), the head, in any dtype.
        targets: (N,) int64.
        temperature: logits are divided by it.
        softcap: before that, logits become `softcap * tanh(logits / softcap)`, unless it is None.
        with_entropy: also return the entropies.

    Returns:
        (N,) each; the softmax is in at least float32, whatever the dtype of the matrix product.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, not {temperature}: greedy sampling has no log-probabilities")
    logprobs, entropy = _HeadLogprobs.apply(hidden, weight, targets, temperature, softcap, with_entropy)  # type: ignore[no-untyped-call]
    return logprobs, entropy if with_entropy else None


class _HeadLogprobs(torch.autograd.Function):
    """Compute head, log-softmax and entropy in chunks; the backward pass recomputes each chunk's logits.

    With p = softmax(z): d logp_y / dz = onehot(y) - p, and dH / dz = -p (log p + H). A soft cap c turns x into the
    logit z = c tanh(x / c), with dz / dx = 1 - (z / c)^2.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        softcap: float | None,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        logprobs = torch.empty(len(targets), dtype=_at_least_float32(hidden.dtype), device=hidden.device)
        entropy = torch.zeros_like(logprobs)
        log_norm = torch.empty_like(logprobs)
        head = weight.to(hidden.dtype)
        for rows in _chunks(hidden, weight):
            logits = _logits(hidden[rows], head, temperature, softcap)
            log_norm[rows] = logits.logsumexp(-1)
            logprobs[rows] = logits.gather(-1, targets[rows, None])[:, 0] - log_norm[rows]
            if with_entropy:
                probabilities = (logits - log_norm[rows, None]).exp_()
                entropy[rows] = log_norm[rows] - torch.linalg.vecdot(probabilities, logits)
        ctx.save_for_backward(hidden, weight, targets, log_norm, entropy)
        ctx.temperature, ctx.softcap = temperature, softcap
        ctx.set_materialize_grads(False)  # None tells an entropy that is only reported from one that is trained on
        if not with_entropy:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, grad_logp: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, log_norm, entropy = ctx.saved_tensors
        grad_logp = torch.zeros_like(log_norm) if grad_logp is None else grad_logp
        grad_hidden = torch.empty_like(hidden)
        trained = ctx.needs_input_grad[1]
        grad_weight = torch.zeros_like(weight, dtype=_at_least_float32(weight.dtype)) if trained else None
        head = weight.to(hidden.dtype)
        for rows in _chunks(hidden, weight):
            logprobs = _logits(hidden[rows], head, ctx.temperature, ctx.softcap)
            slope_of_cap = None if ctx.softcap is None else 1 - (logprobs * (ctx.temperature / ctx.softcap)).square_()
            grad = logprobs.sub_(log_norm[rows, None]).exp()
            if grad_entropy is not None:
                slope = logprobs.add_(entropy[rows, None]).mul_(grad_entropy[rows, None]).add_(grad_logp[rows, None])
                grad.mul_(slope.neg_())
            else:
                grad.mul_(-grad_logp[rows, None])
            grad.scatter_add_(-1, targets[rows, None], grad_logp[rows, None])
            if slope_of_cap is not None:
                grad.mul_(slope_of_cap)
            grad = grad.div_(ctx.temperature).to(hidden.dtype)
            torch.mm(grad, head, out=grad_hidden[rows])
            if grad_weight is not None:
                grad_weight += grad.T @ hidden[rows]
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None, None, None


def _chunks(hidden: Tensor, weight: Tensor) -> list[slice]:
    rows = len(hidden)
    step = max(1, MAX_LOGITS.get(hidden.device.type, 1 << 25) // len(weight))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def _logits(hidden: Tensor, weight: Tensor, temperature: float, softcap: float | None) -> Tensor:
    logits = (hidden @ weight.T).to(_at_least_float32(hidden.dtype))
    if softcap is not None:
        logits.div_(softcap).tanh_().mul_(softcap)
    return logits if temperature == 1.0 else logits.div_(temperature)


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
