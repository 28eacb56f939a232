"""Products whose weights are cast: the numbers of autocast, and of a plain layer where nothing is cast."""

import copy

import pytest
import torch
from gymfleet_trainer.model.recast import RecastLinear, recast_linears
from torch import Tensor, nn


def gradients(model: nn.Module, given: Tensor, *, dtype: torch.dtype | None) -> list[Tensor]:
    hidden = given.clone().requires_grad_()
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None, cache_enabled=False):
        output = model(hidden)
    loss = (output.float() * torch.arange(output.numel()).view(output.shape)).sum()
    return [output.detach(), *torch.autograd.grad(loss, [hidden, *model.parameters()])]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_it_computes_what_a_plain_layer_computes(bias: bool, dtype: torch.dtype | None) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 5, bias=bias), nn.SiLU(), nn.Linear(5, 4, bias=bias))
    cast = copy.deepcopy(plain)
    recast_linears(cast)
    given = torch.randn(2, 3, 6)

    wanted, actual = gradients(plain, given, dtype=dtype), gradients(cast, given, dtype=dtype)

    assert type(cast[0]) is RecastLinear
    assert [value.dtype for value in actual] == [value.dtype for value in wanted]
    for one, other in zip(actual, wanted, strict=True):
        assert torch.equal(one, other)


def test_coarse_weights_compute_in_the_dtype_of_what_they_are_given() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 1)
    layer.to(torch.bfloat16)
    exact = copy.deepcopy(layer).float()
    recast_linears(nn.Sequential(layer))
    given = torch.randn(3, 6)

    assert torch.equal(layer(given), exact(given))
    assert layer(given).dtype == torch.float32


def test_frozen_weights_have_no_gradient() -> None:
    layer = nn.Linear(6, 5).requires_grad_(requires_grad=False)
    recast_linears(nn.Sequential(layer))
    hidden = torch.randn(3, 6, dtype=torch.bfloat16, requires_grad=True)

    layer(hidden).sum().backward()

    assert hidden.grad is not None
    assert torch.allclose(hidden.grad, layer.weight.bfloat16().sum(0).expand(3, 6), atol=1e-2)
    assert layer.weight.grad is None
