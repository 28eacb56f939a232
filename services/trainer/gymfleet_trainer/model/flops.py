"""Model FLOPs of a decoder, counted from its shape and the actual lengths of the segments.

A multiply-add counts as 2. Norms, activations, softmax and the embedding look-up are left out, as is usual;
recomputation (checkpointing, a chunked head) is not *model* FLOPs and does not count either.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The dimensions of a Llama- or Qwen3-like decoder that the count needs."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int

    @classmethod
    def from_config(cls, config: Any) -> "DecoderShape":
        """Read a transformers config."""
        return cls(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            vocab_size=config.vocab_size,
        )

    @property
    def matmul_parameters(self) -> int:
        """Return the number of weights of the body that every token is multiplied with."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)


def forward_flops(shape: DecoderShape, lengths: Iterable[int], num_predicted: int) -> int:
    """Return the FLOPs of one forward pass.

    Args:
        shape: the model.
        lengths: tokens of each segment; a token attends to itself and to the tokens before it in its segment.
        num_predicted: positions at which the head is applied.
    """
    lengths = list(lengths)
    body = 2 * shape.matmul_parameters * sum(lengths)
    pairs = sum(length * (length + 1) // 2 for length in lengths)
    attention = 2 * 2 * shape.num_layers * shape.num_heads * shape.head_dim * pairs
    head = 2 * shape.hidden_size * shape.vocab_size * num_predicted
    return body + attention + head


def training_flops(shape: DecoderShape, lengths: Iterable[int], num_predicted: int) -> int:
    """Return the FLOPs of forward and backward pass; the latter multiplies twice, by weights and by activations."""
    return 3 * forward_flops(shape, lengths, num_predicted)
