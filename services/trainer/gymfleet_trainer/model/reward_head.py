"""A reward model: the policy's body with a head of one label, in the form that transformers and vLLM load."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from gymfleet_trainer.distributed.sharding import shard, sharded_like
from gymfleet_trainer.model.attention import PACKED_ATTENTION
from gymfleet_trainer.model.batching import PackedBatch
from gymfleet_trainer.model.cpu_matmul import fast_float32_matmul
from gymfleet_trainer.model.critic import allocate, tensors_of
from gymfleet_trainer.model.loading import fill
from gymfleet_trainer.model.policy_model import (
    PolicyModel,
    compile_layers,
    packed_hidden_states,
    recompute_activations,
)
from gymfleet_trainer.model.recast import recast_linears
from gymfleet_trainer.model.streaming import streamed
from gymfleet_trainer.model.weight_files import write_model

Reads: TypeAlias = Literal["episode", "turns"]
"""`episode`: one number, at the last token of a transcript; `turns`: one at the token that ends each turn."""

_HEADS: Final[dict[Reads, Any]] = {
    "episode": AutoModelForSequenceClassification,
    "turns": AutoModelForTokenClassification,
}


class RewardModel(nn.Module):
    """A separate body, initialised from the policy's, with a head that starts at 0, so that no number is made up.

    For a sharded policy it is sharded in the same way, like a `ValueModel`.
    """

    def __init__(self, policy: PolicyModel, reads: Reads, masters: torch.dtype | None = None) -> None:
        """Take the policy, where numbers are read, and the dtype of the weights; by default the policy's."""
        super().__init__()
        config = copy.deepcopy(policy.body.config)
        config.num_labels = 1
        config.classifier_dropout = 0.0  # the head that was trained is the one that scores
        # As with a critic: no rank has room for a whole model.
        self.hf = _outline(reads, config, masters or policy.masters)
        recast_linears(self)
        self.hf.config.use_cache = False
        if policy.body.is_gradient_checkpointing:
            recompute_activations(self.hf)
        if policy.compiled:
            compile_layers(self.hf.model)
        if policy.placement is not None:
            shard(self, self.hf.model.layers, policy.placement, exact=[self.hf.score])
        allocate(self, policy)
        with torch.no_grad():
            for own, given in zip(tensors_of(self.hf.model), policy.body_tensors(), strict=True):
                own.copy_(given)
            for parameter in self.hf.score.parameters():
                parameter.zero_()
        self._reads = reads
        self._placement = policy.placement
        self.ranks = policy.ranks
        self.compute_dtype = policy.compute_dtype
        self.dtype = policy.dtype
        self.device = policy.device

    def numbers(self, batch: PackedBatch) -> Tensor:
        """Return (N,) numbers in the policy's `dtype`, read at the tokens where `loss_mask` is True, in their order."""
        numbers: Tensor = self(batch)
        return numbers

    def forward(self, batch: PackedBatch) -> Tensor:
        """See `numbers`. Called through the module, which gathers a sharded model's weights."""
        with fast_float32_matmul(batch.tokens.device):
            inputs = batch.inputs
            hidden = packed_hidden_states(self.hf.model, inputs, self.compute_dtype)
            numbers: Tensor = self.hf.score(inputs.states_at(hidden).to(self.dtype))[:, 0]
        return numbers

    def save_pretrained(self, directory: Path) -> None:
        """Write config and safetensors. For a sharded model every rank calls this, and the first one writes."""
        held = next(self.parameters()).dtype
        writes = self.ranks is None or self.ranks.first
        write_model(directory, self.hf, streamed(self.hf, held, self.ranks), held, writes=writes)

    def load_pretrained(self, directory: Path) -> None:
        """Load what `save_pretrained` wrote; each rank reads its own rows.

        Raises `OSError`, `ValueError` or `UnsupportedModel` if there is no such model.
        """
        if self._placement is not None:
            plain = _outline(self._reads, self.hf.config, next(self.parameters()).dtype)
            fill(self, self.hf, plain, directory, self._placement)
            return
        given = _HEADS[self._reads].from_pretrained(
            str(directory), dtype=self.dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
        self.load_weights({f"hf.{name}": value for name, value in given.state_dict().items()})

    def weights(self) -> dict[str, Tensor]:
        """Return all weights themselves by name, as this rank has them."""
        return self.state_dict(keep_vars=True)

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Load what `weights` returned; they are whole, or sharded over the same number of ranks."""
        own = self.state_dict()
        self.load_state_dict({name: sharded_like(own[name], value) for name, value in weights.items()})


def _outline(reads: Reads, config: Any, dtype: torch.dtype) -> Any:
    """Return a reward model on the meta device."""
    with torch.device("meta"):
        return _HEADS[reads].from_config(config, attn_implementation=PACKED_ATTENTION, dtype=dtype)
