"""Linear layers that compute in another dtype than that of their weights, without keeping a copy of the weights."""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor, nn


class RecastLinear(nn.Linear):
    """A linear layer that computes in the dtype of its input, or in that of autocast where it is on.

    Autograd would keep the cast copy of a weight until the backward pass is done, which for all layers together is
    one more model. Here it keeps the weight itself, and the backward pass casts it again.
    """

    def forward(self, hidden: Tensor) -> Tensor:
        """Return (..., out) of (..., in)."""
        device = hidden.device.type
        if torch.is_autocast_enabled(device):
            hidden = hidden.to(torch.get_autocast_dtype(device))
        if self.weight.dtype == hidden.dtype:
            return super().forward(hidden)
        product: Tensor = _Product.apply(hidden, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return product


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        return F.linear(hidden, weight.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        of_hidden, of_weight, of_bias = ctx.needs_input_grad
        rows = grad.flatten(0, -2)  # autograd casts the gradients of weights to the weights' dtype
        return (
            grad @ weight.to(grad.dtype) if of_hidden else None,
            rows.T @ hidden.flatten(0, -2) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def recast_linears(model: nn.Module) -> None:
    """Turn all plain linear layers of a model into `RecastLinear`, in place. Without a cast they compute as before."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = RecastLinear
