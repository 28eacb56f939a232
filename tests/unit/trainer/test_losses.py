"""Losses: one token by hand, gradients included, and micro-batches that add up to the whole."""

import math
from typing import get_args

import pytest
import torch
from gymfleet_trainer.learning.losses import (
    GlobalCounts,
    ImportanceLevel,
    LossAggregation,
    Tokens,
    clipped_surrogate,
    importance_weight,
    sft_loss,
    token_weights,
    value_loss,
    weighted_mean,
)

ONE = torch.ones(1)
AGGREGATIONS: tuple[LossAggregation, ...] = get_args(LossAggregation)


def one_token(logprobs: torch.Tensor, advantage: float) -> Tokens:
    """A token whose old log-probability is 0."""
    mask = torch.ones(1, dtype=torch.bool)
    return Tokens.of(logprobs, torch.zeros(1), torch.tensor([advantage]), mask, torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "grad"),
    [
        pytest.param(1.0, 2.0, -2.0, -2.0, id="on-policy: plain policy gradient"),
        pytest.param(1.5, 1.0, -1.2, 0.0, id="good token, already up: clipped at 1 + high"),
        pytest.param(0.5, 1.0, -0.5, -0.5, id="good token, went down: not clipped"),
        pytest.param(0.5, -1.0, 0.8, 0.0, id="bad token, already down: clipped at 1 - low"),
        pytest.param(1.5, -1.0, 1.5, 1.5, id="bad token, went up: not clipped"),
    ],
)
def test_one_token(ratio: float, advantage: float, loss: float, grad: float) -> None:
    logprobs = torch.tensor([math.log(ratio)], requires_grad=True)

    tokens = one_token(logprobs, advantage)
    result = clipped_surrogate(tokens, clip_low=0.2, clip_high=0.2)

    result.losses.sum().backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert result.losses.item() == pytest.approx(loss, abs=1e-6)
    assert logprobs.grad.item() == pytest.approx(grad, abs=1e-6)
    assert result.clipped.item() == (grad == 0.0)
    assert tokens.ratio.item() == pytest.approx(ratio, abs=1e-6)
    assert result.dual_clipped is not None
    assert not result.dual_clipped.any()


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

    result = clipped_surrogate(one_token(logprobs, advantage), clip_low=0.2, clip_high=0.28, dual_clip=3.0)

    result.losses.sum().backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert result.dual_clipped is not None
    assert result.losses.item() == pytest.approx(loss, abs=1e-5)
    assert logprobs.grad.item() == pytest.approx(grad, abs=1e-5)
    assert result.dual_clipped.item() == bounded


def test_untrained_positions_never_reach_the_loss() -> None:
    logprobs = torch.tensor([0.0, math.nan, 900.0, -math.inf], requires_grad=True)
    other = torch.tensor([0.0, 0.0, -900.0, math.inf])

    mask = torch.tensor([True, False, False, False])
    tokens = Tokens.of(logprobs, other, torch.tensor([1.0, math.nan, 1.0, 1.0]), mask, torch.tensor([0, 4]))
    result = clipped_surrogate(tokens, clip_low=0.2, clip_high=0.2, dual_clip=3.0)

    loss = weighted_mean(result.losses, mask.float())
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == -1.0
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-1.0, 0.0, 0.0, 0.0]


# Two sequences: of three tokens, of which the last two have a loss (w = 0.5 and 3), and of two (w = 0.5).
OLD = torch.tensor([math.nan, math.log(0.3), math.log(0.6), math.nan, math.log(0.2)])
BEHAVIOUR = torch.tensor([0.0, math.log(0.6), math.log(0.2), 0.0, math.log(0.4)])
TRAINED = torch.tensor([False, True, True, False, True])
BOUNDS = torch.tensor([0, 3, 5])


@pytest.mark.parametrize(
    ("level", "cap", "masked", "expected"),
    [
        pytest.param("token", 2.0, False, [1, 0.5, 2.0, 1, 0.5], id="each token, bounded"),
        pytest.param("token", 2.5, True, [1, 0.5, 0.0, 1, 0.5], id="each token, left out above"),
        pytest.param("token", 1.5, True, [1, 0.0, 0.0, 1, 0.0], id="each token, left out below"),
        pytest.param("sequence", 2.0, False, [1, 1.5, 1.5, 1, 0.5], id="products"),
        pytest.param("sequence", 1.6, True, [1, 1.5, 1.5, 1, 0.0], id="products, one left out"),
        pytest.param("sequence_geometric", 2.0, False, [1, 1.5**0.5, 1.5**0.5, 1, 0.5], id="geometric means"),
    ],
)
def test_importance_weight(level: ImportanceLevel, cap: float, masked: bool, expected: list[float]) -> None:
    old = OLD.clone().requires_grad_()

    weight = importance_weight(old, BEHAVIOUR, TRAINED, BOUNDS, level=level, cap=cap, masked=masked)

    assert weight.tolist() == pytest.approx(expected)
    assert not weight.requires_grad


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
        "sequence_mean_token_sum_norm": [0, 0.05, 0.05, 0, 0.05, 0, 0],
    }
    for aggregation in AGGREGATIONS:
        weights = token_weights(mask, bounds, aggregation, counts, norm_tokens=10)
        assert weights.tolist() == pytest.approx(expected[aggregation])


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
