"""PPO's value function: the policy's body with a scalar head."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gymfleet_trainer.distributed.sharding import shard, sharded_like
from gymfleet_trainer.model.batching import PackedBatch
from gymfleet_trainer.model.cpu_matmul import fast_float32_matmul
from gymfleet_trainer.model.policy_model import PolicyModel, compile_layers, packed_hidden_states, recompute_activations
from gymfleet_trainer.model.recast import recast_linears


class ValueModel(nn.Module):
    """A separate body, initialised from the policy's, with a head that starts at 0, so that no value is made up.

    For a sharded policy it is sharded in the same way: every rank creates one, and copies its own shards.
    """

    def __init__(self, policy: PolicyModel, masters: torch.dtype | None = None) -> None:
        """Take the policy, and the dtype of the weights; by default the policy's."""
        super().__init__()
        theirs, placement = policy.body, policy.placement
        with torch.device("meta"):  # no memory until it is sharded, because no rank has room for a whole one
            self.body = type(theirs)(theirs.config)
            self.head = nn.Linear(theirs.config.hidden_size, 1)
            for parameter in self.parameters():  # tables of positions stay exact: bfloat16 mixes up far ones
                parameter.data = parameter.data.to(masters or policy.masters)
        recast_linears(self)
        if theirs.is_gradient_checkpointing:
            recompute_activations(self.body)
        if policy.compiled:
            compile_layers(self.body)
        if placement is not None:
            shard(self, self.body.layers, placement, exact=[self.head])
        allocate(self, policy)
        with torch.no_grad():
            for own, given in zip(tensors_of(self.body), policy.body_tensors(), strict=True):
                own.copy_(given)
            for parameter in self.head.parameters():
                parameter.zero_()
        self.compute_dtype = policy.compute_dtype
        self.dtype = policy.dtype

    def values(self, batch: PackedBatch) -> Tensor:
        """Return (T,) values in the policy's `dtype`, of the state in which each trained token is written; 0 elsewhere.

        The state before token t is the body's output at t - 1, as for the log-probability of t.
        """
        values: Tensor = self(batch)
        return values

    def forward(self, batch: PackedBatch) -> Tensor:
        """See `values`. Called through the module, which gathers a sharded model's weights."""
        with fast_float32_matmul(batch.tokens.device):
            inputs = batch.inputs
            hidden = inputs.states_of(packed_hidden_states(self.body, inputs, self.compute_dtype))
            values: Tensor = self.head(hidden.to(self.dtype))[:, 0]
        return batch.scattered(values)

    def weights(self) -> dict[str, Tensor]:
        """Return all weights themselves by name, as this rank has them."""
        return self.state_dict(keep_vars=True)

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Load what `weights` returned; they are whole, or sharded over the same number of ranks."""
        own = self.state_dict()
        self.load_state_dict({name: sharded_like(own[name], value) for name, value in weights.items()})


def allocate(module: nn.Module, policy: PolicyModel) -> None:
    """Allocate a module that has no memory where the policy has its own; its values are arbitrary."""
    module.to_empty(device=next(policy.parameters()).device)
    for buffer in module.buffers():
        buffer.data = buffer.data.to(policy.device)  # also where weights are in main memory


def tensors_of(module: nn.Module) -> list[Tensor]:
    """Return all tensors of a module, which `Module.to_empty` leaves without values."""
    return [*module.parameters(), *module.buffers()]
