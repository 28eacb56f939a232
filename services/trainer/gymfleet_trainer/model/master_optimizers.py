"""Optimisers that hold less than AdamW in float32: moments in 8 bits, factored moments, weights in bfloat16.

They compute in float32, some rows of one parameter at a time. Neither this nor the sharding of rows changes a result.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from gymfleet_trainer.distributed.sharding import first_row, local, sharded_rows, total, whole, zero_rows
from gymfleet_trainer.model.quantisation import SIGNED, UNSIGNED, dequantised, num_blocks, quantised
from gymfleet_trainer.model.rounding import noise_key, stochastically_rounded

_ELEMENTS: Final = 1 << 20
"""Elements that are updated at once."""
_LEAST_WIDTH: Final = 32
"""Narrower rows, like those of norms and biases, keep moments in float32: a scale would cost more than it saves."""
_COLUMNS: Final = "column_variance"
"""The only state that is not per row; every rank has it whole."""


class MasterOptimizer(ABC):
    """Update every parameter in float32; weights in bfloat16 are then rounded stochastically."""

    def __init__(self, param_groups: list[dict[str, Any]], *, learning_rate: float, seed: int) -> None:
        self.param_groups = [{"lr": learning_rate, **group} for group in param_groups]
        self._seed = seed
        self._state: dict[int, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters that have a gradient."""
        for number, (group, parameter) in enumerate(self._parameters()):
            if parameter.grad is None:
                continue
            if number not in self._state:
                self._state[number] = {"step": torch.zeros(()), **self._zeros(parameter)}
            state = self._state[number]
            state["step"] += 1
            key = noise_key(self._seed, int(state["step"]), number)
            self._update(_Rows(parameter, key), state, group)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for _, parameter in self._parameters():
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each parameter by its number; per-row states are sharded like the parameter."""
        return {"seed": self._seed, "state": self._state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from where `state_dict` was taken; the states are whole or sharded."""
        self._seed = int(state["seed"])
        parameters = [parameter for _, parameter in self._parameters()]
        self._state = {
            number: {name: _placed(parameters[number], name, value) for name, value in values.items()}
            for number, values in state["state"].items()
        }

    def state_bytes(self) -> int:
        """Return the size of the states of all parameters once they have been updated."""
        return sum(value.nbytes for _, parameter in self._parameters() for value in self._zeros(parameter).values())

    def _parameters(self) -> Iterator[tuple[dict[str, Any], nn.Parameter]]:
        return ((group, parameter) for group in self.param_groups for parameter in group["params"])

    @abstractmethod
    def _zeros(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return the state of a parameter before its first update."""

    @abstractmethod
    def _update(self, rows: "_Rows", state: dict[str, Tensor], group: Mapping[str, Any]) -> None:
        """Make one update of a parameter and of its state, whose `step` already counts this update."""


class AdamW(MasterOptimizer):
    """AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101), with moments in float32 or in 8 bits.

    In 8 bits the second moment is kept as its root, which has the range of the first moment: a value too small for one
    is too small for the other, so no update is divided by a moment that was rounded to 0.
    """

    def __init__(
        self,
        param_groups: list[dict[str, Any]],
        *,
        learning_rate: float,
        seed: int,
        betas: tuple[float, float],
        eps: float,
        in_8_bits: bool,
    ) -> None:
        super().__init__(param_groups, learning_rate=learning_rate, seed=seed)
        self._betas = betas
        self._eps = eps
        self._in_8_bits = in_8_bits

    def _zeros(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        width = _width(parameter)
        names = ("exp_avg", "root")
        if not self._in_8_bits or width < _LEAST_WIDTH:
            return {name: zero_rows(parameter, (width,), torch.float32) for name in names}
        codes = {name: zero_rows(parameter, (width,), torch.uint8) for name in names}
        scales = {f"{name}_scales": zero_rows(parameter, (num_blocks(width),), torch.float32) for name in names}
        return codes | scales

    def _update(self, rows: "_Rows", state: dict[str, Tensor], group: Mapping[str, Any]) -> None:
        step, rate, (beta1, beta2) = int(state["step"]), group["lr"], self._betas
        moments = {name: local(value) for name, value in state.items() if name != "step"}
        for part, weights, grad in rows:
            exp_avg = _read(moments, "exp_avg", part, SIGNED).lerp_(grad, 1 - beta1)
            variance = _read(moments, "root", part, UNSIGNED).square_().mul_(beta2)
            root = variance.addcmul_(grad, grad, value=1 - beta2).sqrt_()
            _write(moments, "exp_avg", part, exp_avg, SIGNED)
            _write(moments, "root", part, root, UNSIGNED)
            weights.mul_(1 - rate * group["weight_decay"])
            root.div_(math.sqrt(1 - beta2**step)).add_(self._eps)
            rows.write(part, weights.addcdiv_(exp_avg, root, value=-rate / (1 - beta1**step)))


class Adafactor(MasterOptimizer):
    """Adafactor without a first moment (Shazeer and Stern 2018, arXiv 1804.04235, algorithms 4 and 5).

    The learning rate is relative to the weights' root mean square, and not above 1 / sqrt(step).
    """

    _DECAY: Final = -0.8
    _LEAST_RMS: Final = 1e-3
    _CLIP: Final = 1.0
    _EPS: Final = torch.finfo(torch.float32).eps

    def _zeros(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        if parameter.ndim < 2:
            return {"variance": zero_rows(parameter, (1,), torch.float32)}
        columns = torch.zeros(_width(parameter), device=parameter.device)
        return {"row_variance": zero_rows(parameter, (1,), torch.float32), _COLUMNS: columns}

    def _update(self, rows: "_Rows", state: dict[str, Tensor], group: Mapping[str, Any]) -> None:
        step, rate, parameter = int(state["step"]), group["lr"], rows.parameter
        fresh = step**self._DECAY
        squares = torch.zeros((), device=parameter.device)
        by_column = torch.zeros(_width(parameter), device=parameter.device)
        by_row = torch.zeros(len(local(parameter)), 1, device=parameter.device)
        for part, weights, grad in rows:
            squares += weights.square().sum()
            by_row[part] = grad.square().mean(1, keepdim=True)
            by_column += grad.square().sum(0)
        if parameter.ndim < 2:
            variance = local(state["variance"]).lerp_(by_row, fresh)
            columns = torch.ones(1, device=parameter.device)
        else:
            variance = local(state["row_variance"]).lerp_(by_row, fresh)
            columns = state[_COLUMNS].lerp_(total(by_column, parameter) / parameter.shape[0], fresh)
            columns = columns / (total(variance.sum(), parameter) / parameter.shape[0]).clamp(min=self._EPS)

        def update(part: slice, grad: Tensor) -> Tensor:
            return (variance[part] * columns).clamp_(min=self._EPS**2).rsqrt_().mul_(grad)

        norm = torch.zeros((), device=parameter.device)
        for part, _, grad in rows:
            norm += update(part, grad).square().sum()
        root_mean_square = [float((total(one, parameter) / parameter.numel()).sqrt()) for one in (squares, norm)]
        size = max(self._LEAST_RMS, root_mean_square[0]) * min(rate, step**-0.5)
        size /= max(1.0, root_mean_square[1] / self._CLIP)
        for part, weights, grad in rows:
            weights.mul_(1 - rate * group["weight_decay"])
            rows.write(part, weights.add_(update(part, grad), alpha=-size))


class _Rows:
    """The rows of a parameter on this rank, some at a time, as (R, W) float32."""

    def __init__(self, parameter: nn.Parameter, key: int) -> None:
        self.parameter = parameter
        self._masters = _matrix(local(parameter.detach()))
        self._grad = _matrix(local(parameter.grad)) if parameter.grad is not None else torch.empty(0)
        self._first = first_row(parameter)
        self._key = key

    def __iter__(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield the slice of rows, a copy of their weights, and their gradient."""
        rows, width = self._masters.shape
        size = max(1, _ELEMENTS // max(1, width))
        for start in range(0, rows, size):
            part = slice(start, min(start + size, rows))
            yield part, self._masters[part].to(torch.float32, copy=True), self._grad[part].float()

    def write(self, part: slice, weights: Tensor) -> None:
        """Replace the weights of some rows."""
        if self._masters.dtype == torch.bfloat16:
            first = (self._first + part.start) * self._masters.shape[1]
            weights = stochastically_rounded(weights, self._key, first)
        self._masters[part] = weights


def _matrix(value: Tensor) -> Tensor:
    return value.view(value.shape[0], math.prod(value.shape[1:]))


def _width(parameter: nn.Parameter) -> int:
    return math.prod(parameter.shape[1:])


def _placed(parameter: nn.Parameter, name: str, value: Tensor) -> Tensor:
    if name == "step":
        return value.clone()
    placed = whole(value) if name == _COLUMNS else sharded_rows(parameter, value)
    return placed.to(parameter.device, copy=True)


def _read(moments: Mapping[str, Tensor], name: str, part: slice, table: Tensor) -> Tensor:
    """Return a copy of the moments of some rows in float32."""
    if (scales := moments.get(f"{name}_scales")) is None:
        return moments[name][part].clone()
    return dequantised(moments[name][part], scales[part], table)


def _write(moments: Mapping[str, Tensor], name: str, part: slice, values: Tensor, table: Tensor) -> None:
    if (scales := moments.get(f"{name}_scales")) is None:
        moments[name][part] = values
    else:
        moments[name][part], scales[part] = quantised(values, table)
