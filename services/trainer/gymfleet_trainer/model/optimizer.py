"""The optimiser of a model, with a learning-rate schedule and gradient clipping."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat
from torch import Tensor, nn

from gymfleet_trainer.distributed.sharding import sharded_like, whole
from gymfleet_trainer.model.master_optimizers import Adafactor, AdamW, MasterOptimizer

Fraction = Annotated[float, Field(ge=0, le=1)]


class OptimizerOptions(BaseModel):
    """An optimiser, a linear warm-up and a constant, cosine or linear schedule."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["adamw", "adamw_8bit", "adafactor"] = "adamw"
    """adamw: two moments in float32, 8 bytes per weight; adamw_8bit: both in 8 bits, with a scale for every 256 of
    them; adafactor: sums over rows and columns instead of moments, which take next to nothing, and a learning rate
    relative to the size of the weights."""
    master_dtype: Literal["float32", "bfloat16"] = "float32"
    """The dtype in which weights are held during training. bfloat16 takes half the memory, gradients included; updates
    are then rounded stochastically, as they would be too small otherwise. It requires trainer_dtype bfloat16."""
    learning_rate: Annotated[float, Field(ge=0)] = 1e-6
    """Peak of the schedule."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """For adamw and adamw_8bit."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled, as in AdamW."""
    eps: PositiveFloat = 1e-8
    """For adamw and adamw_8bit."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Number of updates at the start over which the learning rate grows linearly."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """The schedule after the warm-up: constant, cosine or linear."""
    min_lr_ratio: Fraction = 0.0
    """The final learning rate of the schedule, as a share of the peak."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradients are clipped to this norm."""


class PolicyOptimizer:
    """An optimiser over one model, without weight decay on norms, biases and embeddings."""

    def __init__(self, model: nn.Module, section: OptimizerOptions, total_steps: int) -> None:
        self.section = section
        self.total_steps = total_steps
        self.num_steps = 0
        """Updates made so far."""
        self.num_missed = 0
        """Updates that were planned and had nothing to learn from: the schedule goes on, a warm-up waits."""
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._inner = _inner(section, _parameter_groups(model, section.weight_decay))

    @property
    def learning_rate(self) -> float:
        """Return the learning rate of the next step."""
        return scheduled_rate(self.section, self.num_steps, self.total_steps, num_missed=self.num_missed)

    def step(self) -> Tensor:
        """Clip, update and clear the gradients; return the norm before clipping, () float.

        Gradients that are not finite update nothing: weights and moments stay as they were. The step still counts,
        so that a resumed run follows the same schedule; the norm shows this to the caller.
        """
        norm = whole(nn.utils.clip_grad_norm_(self.parameters, self.section.max_grad_norm))
        if torch.isfinite(norm):
            for group in self._inner.param_groups:
                group["lr"] = self.learning_rate
            self._inner.step()
        self.num_steps += 1
        self._inner.zero_grad()
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Return moments and schedule position. The moments are the optimiser's own, this rank's shards of them."""
        return {
            self.section.kind: self._inner.state_dict(),
            "num_steps": self.num_steps,
            "num_missed": self.num_missed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where `state_dict` was taken. The moments are whole, or sharded over equally many ranks."""
        inner = state[self.section.kind]
        if isinstance(self._inner, MasterOptimizer):
            self._inner.load_state_dict(inner)
        else:
            parameters = [parameter for group in self._inner.param_groups for parameter in group["params"]]
            moments = {
                index: {name: sharded_like(parameters[index], value) for name, value in moments.items()}
                for index, moments in inner["state"].items()
            }
            self._inner.load_state_dict(inner | {"state": moments})
        self.num_steps = int(state["num_steps"])
        self.num_missed = int(state["num_missed"])


def build_optimizer(model: nn.Module, section: OptimizerOptions, total_steps: int) -> PolicyOptimizer:
    """Create the optimiser that a recipe describes; a cosine or linear schedule ends at `total_steps`."""
    return PolicyOptimizer(model, section, total_steps)


def masters_of(section: OptimizerOptions) -> torch.dtype | None:
    """Return the dtype in which weights are held for an optimiser; None for that of the trainer, or float32."""
    return torch.bfloat16 if section.master_dtype == "bfloat16" else None


def state_bytes(parameters: Sequence[nn.Parameter], section: OptimizerOptions) -> int:
    """Return the bytes that an optimiser keeps for these parameters, which may be on the meta device."""
    if _is_torchs(section):
        return sum(2 * parameter.nbytes for parameter in parameters)
    inner = _inner(section, [{"params": list(parameters), "weight_decay": 0.0}])
    return inner.state_bytes() if isinstance(inner, MasterOptimizer) else 0


def scheduled_rate(section: OptimizerOptions, step: int, total_steps: int, *, num_missed: int = 0) -> float:
    """Return the learning rate of update `step` (from 0): linear warm-up, then the schedule to `min_lr_ratio`.

    `num_missed` updates were planned before it and not made. The warm-up counts those made alone, because the
    optimiser's moments come from them; the schedule counts both, so that it ends with the run.
    """
    warmed = min(1.0, (step + 1) / section.warmup_steps) if section.warmup_steps else 1.0
    if section.schedule == "constant":
        return section.learning_rate * warmed
    after = max(0, step + num_missed - section.warmup_steps)
    progress = min(1.0, after / max(1, total_steps - section.warmup_steps))
    remaining = 1 - progress if section.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return section.learning_rate * min(warmed, section.min_lr_ratio + (1 - section.min_lr_ratio) * remaining)


def _inner(section: OptimizerOptions, groups: list[dict[str, Any]]) -> torch.optim.AdamW | MasterOptimizer:
    rate, betas, eps = section.learning_rate, section.betas, section.eps
    if _is_torchs(section):
        return torch.optim.AdamW(groups, lr=rate, betas=betas, eps=eps, fused=True)
    seed = torch.initial_seed()  # that of the recipe, which every process gives torch at its start
    if section.kind == "adafactor":
        return Adafactor(groups, learning_rate=rate, seed=seed)
    in_8_bits = section.kind == "adamw_8bit"
    return AdamW(groups, learning_rate=rate, seed=seed, betas=betas, eps=eps, in_8_bits=in_8_bits)


def _is_torchs(section: OptimizerOptions) -> bool:
    return section.kind == "adamw" and section.master_dtype == "float32"


def _parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            (kept if parameter.ndim < 2 or id(parameter) in embeddings else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
