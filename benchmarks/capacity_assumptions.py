"""What a plan assumes of a GPU and a model: none of it was measured here, but the trainer's share."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator and how well it is used."""

    memory: float = 80e9
    bandwidth: float = 3.35e12
    """Bytes per second."""
    flops: float = 990e12
    """Of bfloat16 products."""
    bandwidth_share: float = 0.6
    flops_share: float = 0.21
    """What the trainer reached on one H100 with a model of this size and recomputed layers (`gpu-check`)."""


@dataclass(frozen=True, slots=True)
class Model:
    """The policy: Qwen3-4B unless told otherwise."""

    parameters: float = 4.0e9
    kv_token: float = 2 * 36 * 8 * 128 * 2
    """Bytes of keys and values per token: 2 x layers x key-value heads x head dimension x bytes per number."""

    @property
    def weights(self) -> float:
        """Bytes in bfloat16."""
        return 2 * self.parameters
