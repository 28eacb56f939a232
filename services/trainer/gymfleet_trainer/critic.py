"""PPO's value function: the policy's body with a scalar head."""

import copy

import torch
from torch import Tensor, nn

from gymfleet_trainer.batching import PackedBatch
from gymfleet_trainer.cpu_matmul import fast_float32_matmul
from gymfleet_trainer.policy_model import PolicyModel, packed_hidden_states


class ValueModel(nn.Module):
    """A body of its own, initialised from the policy's, and a head that starts at 0: no value is made up."""

    def __init__(self, policy: PolicyModel) -> None:
        super().__init__()
        self.body = copy.deepcopy(policy.hf.model).requires_grad_(requires_grad=True)
        self.head = nn.Linear(policy.config.hidden_size, 1, device=policy.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.compute_dtype = policy.compute_dtype

    def values(self, batch: PackedBatch) -> Tensor:
        """(T,) float32: the value of the state in which each trained token is written, 0 at other positions.

        The state before token t is the body's output at t - 1, as for the log-probability of t.
        """
        with fast_float32_matmul(batch.tokens.device):
            hidden = packed_hidden_states(self.body, batch, self.compute_dtype)[batch.trained - 1]
            values = self.head(hidden.float())[:, 0]
        return torch.zeros(batch.num_tokens, device=values.device).index_copy(0, batch.trained, values)
