"""A judge: a separate model that writes verdicts, in the form that transformers and vLLM load."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gymfleet_trainer.distributed.sharding import sharded_like
from gymfleet_trainer.model.batching import PackedBatch
from gymfleet_trainer.model.policy_model import PolicyModel


class JudgeModel(PolicyModel):
    """A language model whose numbers are the log-probabilities of the tokens that it writes."""

    def numbers(self, batch: PackedBatch) -> Tensor:
        """Return (N,) log-probabilities in the weights' dtype, of the tokens where `loss_mask` is True, in order."""
        return self.token_logprobs(batch).logprobs[batch.trained]

    def weights(self) -> dict[str, Tensor]:
        """Return all weights themselves by name, as this rank has them."""
        return self.state_dict(keep_vars=True)

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Load what `weights` returned; they are whole, or sharded over the same number of ranks."""
        own = self.state_dict()
        self.load_state_dict({name: sharded_like(own[name], value) for name, value in weights.items()})
