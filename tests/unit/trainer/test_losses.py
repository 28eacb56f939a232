"""Losses: one token by hand, gradients included, and micro-batches that add up to the whole."""

import math

import pytest
import torch
from gymfleet_trainer.learning.losses import (
    GlobalCounts,
    LossAggregation,
    clipped_policy_loss,
    sft_loss,
    token_weights,
    truncated_importance_weight,
    value_loss,
    weighted_mean,
)

ONE = torch.ones(1)
AGGREGATIONS: list[LossAggregation] = ["token_mean", "sequence_mean_token_sum", "sequence_mean_token_mean"]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "grad"),
    [
        pytest.param(1.0, 2.0, -2.0, -2.0, id="on-policy: plain policy gradient"),
        pytest.param(1.5, 1.0, -1.28, 0.0, id="good token, already up: clipped at 1 + high"),
        pytest.param(0.5, 1.0, -0.5, -0.5, id="good token, went down: not clipped"),
        pytest.param(0.5, -1.0, 0.8, 0.0, id="bad token, already down: clipped at 1 - low"),
        pytest.param(1.5, -1.0, 1.5, 1.5, id="bad token, went up: not clipped"),
    ],
)
def test_one_token(ratio: float, advantage: float, loss: float, grad: float) -> None:
    logprobs = torch.tensor([math.log(ratio)], requires_grad=True)

    result = clipped_policy_loss(logprobs, torch.zeros(1), torch.tensor([advantage]), ONE)

    result.loss.backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert result.loss.item() == pytest.approx(loss, abs=1e-6)
    assert logprobs.grad.item() == pytest.approx(grad, abs=1e-6)
    assert result.clipped.item() == (grad == 0.0)
    assert result.approx_kl.item() == pytest.approx(-math.log(ratio), abs=1e-6)
    assert result.ratio_max.item() == pytest.approx(ratio, abs=1e-6)
    assert not result.clipped.requires_grad
    assert not result.approx_kl.requires_grad


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "grad", "bounded"),
    [
        pytest.param(5.0, -1.0, 3.0, 0.0, 1.0, id="bad token, far up: bounded at c"),
        pytest.param(2.0, -1.0, 2.0, 2.0, 0.0, id="bad token, below c: as without"),
        pytest.param(5.0, 1.0, -1.28, 0.0, 0.0, id="good token: never touched"),
    ],
)
def test_dual_clip(ratio: float, advantage: float, loss: float, grad: float, bounded: float) -> None:
    logprobs = torch.tensor([math.log(ratio)], requires_grad=True)

    result = clipped_policy_loss(logprobs, torch.zeros(1), torch.tensor([advantage]), ONE, dual_clip=3.0)

    result.loss.backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert result.loss.item() == pytest.approx(loss, abs=1e-5)
    assert logprobs.grad.item() == pytest.approx(grad, abs=1e-5)
    assert result.dual_clipped.item() == bounded


def test_untrained_positions_never_reach_the_loss() -> None:
    logprobs = torch.tensor([0.0, math.nan, 900.0, -math.inf], requires_grad=True)
    other = torch.tensor([0.0, 0.0, -900.0, math.inf])

    result = clipped_policy_loss(logprobs, other, torch.tensor([1.0, math.nan, 1.0, 1.0]), torch.tensor([1.0, 0, 0, 0]))

    result.loss.backward()  # type: ignore[no-untyped-call]
    assert result.loss.item() == -1.0
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-1.0, 0.0, 0.0, 0.0]


def test_importance_weight_is_truncated_and_scales_loss_and_gradient() -> None:
    old = torch.tensor([math.log(0.3), math.log(0.8)], requires_grad=True)
    weight = truncated_importance_weight(old, torch.tensor([math.log(0.6), math.log(0.1)]), cap=2.0)
    assert weight.tolist() == pytest.approx([0.5, 2.0])
    assert not weight.requires_grad
    logprobs = old.detach().clone().requires_grad_()

    result = clipped_policy_loss(logprobs, old.detach(), torch.ones(2), torch.ones(2), importance_weight=weight)

    result.loss.backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert result.loss.item() == pytest.approx(-2.5)
    assert logprobs.grad.tolist() == pytest.approx([-0.5, -2.0])


def test_weights_by_hand() -> None:
    # Two sequences of 3 and 2 tokens, of which 2 and 1 are trained; a third without any.
    mask = torch.tensor([0, 1, 1, 0, 1, 0, 0], dtype=torch.bool)
    bounds = torch.tensor([0, 3, 5, 7], dtype=torch.int32)
    counts = GlobalCounts(tokens=3, sequences=2)

    third, half, quarter = 1 / 3, 0.5, 0.25
    expected = {
        "token_mean": [0, third, third, 0, third, 0, 0],
        "sequence_mean_token_sum": [0, half, half, 0, half, 0, 0],
        "sequence_mean_token_mean": [0, quarter, quarter, 0, half, 0, 0],
    }
    for aggregation in AGGREGATIONS:
        assert token_weights(mask, bounds, aggregation, counts).tolist() == pytest.approx(expected[aggregation])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_micro_batches_add_up_to_one_batch(aggregation: LossAggregation) -> None:
    generator = torch.Generator().manual_seed(1)
    lengths = [5, 9, 2, 7]
    total = sum(lengths)
    mask = torch.rand(total, generator=generator) > 0.5
    per_token = torch.randn(total, generator=generator)
    rows = [row for row in torch.split(mask, lengths) if row.any()]
    counts = GlobalCounts(tokens=int(mask.sum()), sequences=len(rows))

    def loss(first: int, last: int) -> torch.Tensor:
        start, end = sum(lengths[:first]), sum(lengths[:last])
        bounds = torch.tensor([0, *lengths[first:last]]).cumsum(0)
        return weighted_mean(per_token[start:end], token_weights(mask[start:end], bounds, aggregation, counts))

    assert torch.isclose(loss(0, 4), loss(0, 1) + loss(1, 3) + loss(3, 4))


@pytest.mark.parametrize(
    ("value", "loss", "grad"),
    [
        pytest.param(0.2, 0.32, -0.8, id="inside the clip: squared error"),
        pytest.param(0.9, 0.125, 0.0, id="moved too far towards the return: held at old + c"),
        pytest.param(-2.0, 4.5, -3.0, id="moved away: the larger error counts"),
    ],
)
def test_value_loss(value: float, loss: float, grad: float) -> None:
    values = torch.tensor([value], requires_grad=True)

    result = value_loss(values, torch.zeros(1), ONE, ONE, clip=0.5)

    result.backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    assert result.item() == pytest.approx(loss)
    assert values.grad.item() == pytest.approx(grad)


def test_sft_loss_is_the_mean_over_demonstrated_tokens() -> None:
    logprobs = torch.tensor([-1.0, math.nan, -3.0])

    assert sft_loss(logprobs, torch.tensor([0.5, 0.0, 0.5])).item() == 2.0
