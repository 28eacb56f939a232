"""The optimisers that hold less, against torch's own and against hand-worked numbers."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gymfleet_trainer.model import master_optimizers
from gymfleet_trainer.model.master_optimizers import Adafactor, AdamW, MasterOptimizer
from gymfleet_trainer.model.quantisation import SIGNED, UNSIGNED, dequantised
from torch import Tensor, nn

SHAPES = ((40, 300), (7, 33), (5, 31), (9,), (3, 4, 20))


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter((torch.randn(shape, generator=generator) * 0.1).to(dtype)) for shape in SHAPES]


def give_gradients(given: list[nn.Parameter], step: int, dtype: torch.dtype = torch.float32) -> None:
    for number, parameter in enumerate(given):
        generator = torch.Generator().manual_seed(100 * step + number)
        spread = 10.0 ** torch.randint(-4, 1, parameter.shape, generator=generator)
        parameter.grad = (torch.randn(parameter.shape, generator=generator) * spread).to(dtype)


def groups_of(given: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": given[:2], "weight_decay": 0.3}, {"params": given[2:], "weight_decay": 0.0}]


def adamw(given: list[nn.Parameter], *, in_8_bits: bool = False) -> AdamW:
    return AdamW(groups_of(given), learning_rate=0.01, seed=7, betas=(0.8, 0.9), eps=1e-6, in_8_bits=in_8_bits)


def adafactor(given: list[nn.Parameter]) -> Adafactor:
    return Adafactor(groups_of(given), learning_rate=0.05, seed=7)


def in_8_bits(given: list[nn.Parameter]) -> AdamW:
    return adamw(given, in_8_bits=True)


KINDS = (adamw, in_8_bits, adafactor)


def run(
    make: Callable[[list[nn.Parameter]], Any], steps: int, dtype: torch.dtype = torch.float32
) -> tuple[list[nn.Parameter], Any]:
    given = parameters(dtype)
    optimizer = make(given)
    for step in range(steps):
        give_gradients(given, step, dtype)
        optimizer.step()
    return given, optimizer


@pytest.mark.parametrize("elements", [1, 500, 1 << 20])
def test_adamw_is_torchs(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    monkeypatch.setattr(master_optimizers, "_ELEMENTS", elements)
    wanted, _ = run(lambda given: torch.optim.AdamW(groups_of(given), lr=0.01, betas=(0.8, 0.9), eps=1e-6), 4)

    actual, _ = run(adamw, 4)

    for one, other in zip(actual, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("elements", [1, 500, 1 << 20])
def test_adafactor_is_torchs(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    monkeypatch.setattr(master_optimizers, "_ELEMENTS", elements)
    wanted, _ = run(lambda given: torch.optim.Adafactor(groups_of(given), lr=0.05), 4)

    actual, _ = run(adafactor, 4)

    for one, other in list(zip(actual, wanted, strict=True))[:4]:  # torch factors tensors of three axes otherwise
        assert torch.allclose(one, other, atol=1e-6)
    assert all(torch.isfinite(one).all() for one in actual)


def test_adafactor_is_not_faster_than_the_root_of_its_steps() -> None:
    weight = nn.Parameter(torch.full((2, 2), 4.0))
    optimizer = Adafactor([{"params": [weight], "weight_decay": 0.0}], learning_rate=1.0, seed=0)

    for _ in range(2):
        weight.grad = torch.full((2, 2), 3.0)
        optimizer.step()

    # Equal gradients make updates of 1: 4 - 4 * 1, and then 0 - 1e-3 / sqrt(2), as the mean square is 0.
    assert weight.tolist() == [[pytest.approx(-1e-3 / 2**0.5)] * 2] * 2


def test_moments_in_8_bits_are_close_to_those_in_32() -> None:
    exact, of_exact = run(adamw, 6)

    actual, optimizer = run(in_8_bits, 6)

    for one, other in zip(actual, exact, strict=True):
        assert float((one - other).detach().abs().mean()) < 0.002, "a fifth of the learning rate, after six steps of it"
    state, of_32 = optimizer.state_dict()["state"], of_exact.state_dict()["state"]
    assert {name: value.dtype for name, value in state[0].items()} == {
        "step": torch.float32, "exp_avg": torch.uint8, "root": torch.uint8, "exp_avg_scales": torch.float32,
        "root_scales": torch.float32,
    }  # fmt: skip
    assert state[0]["exp_avg_scales"].shape == (40, 2)
    for name, table in (("exp_avg", SIGNED), ("root", UNSIGNED)):
        back = dequantised(state[0][name], state[0][f"{name}_scales"], table)
        assert float((back - of_32[0][name]).abs().max()) < 0.05 * float(of_32[0][name].abs().max())
        assert torch.allclose(state[2][name], of_32[2][name]), "rows of 31 keep theirs in float32"
        assert torch.allclose(state[3][name], of_32[3][name]), "and so do vectors"


def test_one_update_in_8_bits_is_made_with_moments_that_are_not_rounded_yet() -> None:
    exact, _ = run(adamw, 1)

    actual, _ = run(in_8_bits, 1)

    for one, other in zip(actual, exact, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("make", KINDS)
def test_weights_in_bfloat16_move_as_those_in_float32_do_in_the_mean(
    make: Callable[[list[nn.Parameter]], MasterOptimizer],
) -> None:
    weight = torch.ones(64, 64)
    masters = [nn.Parameter(weight.clone()), nn.Parameter(weight.bfloat16())]
    for master in masters:
        optimizer = make([master, nn.Parameter(torch.zeros(1))])
        optimizer.param_groups[0]["lr"] = 1e-4  # a 78th of what bfloat16 resolves at 1
        optimizer.param_groups[0]["weight_decay"] = 0.0
        for _ in range(20):
            master.grad = torch.ones_like(master)
            optimizer.step()

    moved, in_bfloat16 = (float(1 - master.detach().double().mean()) for master in masters)
    assert masters[1].dtype == torch.bfloat16
    assert moved == pytest.approx(20e-4, rel=0.01)
    assert in_bfloat16 == pytest.approx(moved, rel=0.1)
    assert 0.3 < float((masters[1] != 1).float().mean()) < 0.7, "some went, others stayed"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", KINDS)
def test_resumed_is_bit_identical(make: Callable[[list[nn.Parameter]], MasterOptimizer], dtype: torch.dtype) -> None:
    wanted, _ = run(make, 5, dtype)
    given, optimizer = run(make, 3, dtype)

    resumed = [nn.Parameter(parameter.detach().clone()) for parameter in given]
    second = make(resumed)
    second._seed = 0  # the saved one counts
    second.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for step in (3, 4):
        give_gradients(resumed, step, dtype)
        second.step()

    for one, other in zip(resumed, wanted, strict=True):
        assert torch.equal(one, other)


def test_a_parameter_without_a_gradient_stays() -> None:
    given = parameters()
    before = [parameter.detach().clone() for parameter in given]
    optimizer = adamw(given)
    give_gradients(given, 0)
    given[1].grad = None

    optimizer.step()

    assert [torch.equal(one, other) for one, other in zip(given, before, strict=True)] == [
        False, True, False, False, False
    ]  # fmt: skip
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in given)
    assert sorted(optimizer.state_dict()["state"]) == [0, 2, 3, 4]


def test_the_noise_is_another_for_each_seed() -> None:
    def made(seed: int) -> Tensor:
        weight = nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
        weight.grad = torch.ones_like(weight)
        groups = [{"params": [weight], "weight_decay": 0.0}]
        AdamW(groups, learning_rate=1e-3, seed=seed, betas=(0.9, 0.9), eps=1e-8, in_8_bits=False).step()
        return weight.detach()

    assert torch.equal(made(1), made(1))
    assert not torch.equal(made(1), made(2))
