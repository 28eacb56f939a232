"""The assumptions of a plan about a GPU and a model; only the trainer's share of them was measured here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator and how well it is used."""

    memory: float = 80e9
    bandwidth: float = 3.35e12
    """Bytes per second."""
    flops: float = 990e12
    """FLOP/s of bfloat16 products."""
    bandwidth_share: float = 0.6
    flops_share: float = 0.21
    """The trainer's share on one H100 with a model of this size and recomputed layers (`gpu-check`)."""


@dataclass(frozen=True, slots=True)
class Model:
    """The policy; Qwen3-4B by default."""

    parameters: float = 4.0e9
    kv_token: float = 2 * 36 * 8 * 128 * 2
    """Bytes of keys and values per token: 2 x layers x key-value heads x head dimension x bytes per number."""

    @property
    def weights(self) -> float:
        """Bytes of the weights in bfloat16."""
        return 2 * self.parameters
