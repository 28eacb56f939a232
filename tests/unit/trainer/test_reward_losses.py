"""What a reward model loses, worked out by hand, with its gradients."""

import math

import pytest
import torch
from gymfleet_trainer.learning.reward_losses import bradley_terry_loss, step_loss


@pytest.mark.parametrize(
    ("chosen", "rejected", "centring", "loss", "grad"),
    [
        pytest.param(0.0, 0.0, 0.01, math.log(2), (-0.5, 0.5), id="it knows nothing: ln 2"),
        pytest.param(math.log(3), 0.0, 0.0, math.log(4 / 3), (-0.25, 0.25), id="three to one for the better side"),
        pytest.param(0.0, math.log(3), 0.0, math.log(4), (-0.75, 0.75), id="three to one for the other"),
        pytest.param(
            2.0, 1.0, 0.1, math.log(1 + math.exp(-1)) + 0.9,
            (-1 / (1 + math.e) + 0.6, 1 / (1 + math.e) + 0.6), id="both are pulled to 0: 0.1 * 3 squared",
        ),
        pytest.param(
            1.5, -1.5, 100.0, math.log(1 + math.exp(-3)), (-1 / (1 + math.exp(3)), 1 / (1 + math.exp(3))),
            id="on opposite sides of 0 nothing pulls",
        ),
    ],
)  # fmt: skip
def test_one_pair(chosen: float, rejected: float, centring: float, loss: float, grad: tuple[float, float]) -> None:
    numbers = torch.tensor([chosen, rejected], dtype=torch.float64, requires_grad=True)

    value = bradley_terry_loss(numbers[:1], numbers[1:], centring=centring, num_pairs=1)
    value.backward()  # type: ignore[no-untyped-call]

    assert value.item() == pytest.approx(loss)
    assert numbers.grad is not None
    assert numbers.grad.tolist() == pytest.approx(list(grad))


def test_pairs_are_averaged_over_the_whole_update() -> None:
    chosen, rejected = torch.tensor([0.0, 0.0]), torch.tensor([0.0, 0.0])

    part = bradley_terry_loss(chosen, rejected, centring=0.0, num_pairs=8)

    assert float(part) == pytest.approx(2 / 8 * math.log(2))


@pytest.mark.parametrize(
    ("number", "label", "loss", "grad"),
    [
        pytest.param(0.0, 1.0, math.log(2), -0.5, id="it knows nothing"),
        pytest.param(math.log(3), 1.0, math.log(4 / 3), -0.25, id="right at three to one"),
        pytest.param(math.log(3), 0.0, math.log(4), 0.75, id="wrong at three to one"),
        pytest.param(
            math.log(3), 0.75, -0.75 * math.log(0.75) - 0.25 * math.log(0.25), 0.0, id="a soft label that it has met"
        ),
    ],
)
def test_one_turn(number: float, label: float, loss: float, grad: float) -> None:
    numbers = torch.tensor([number], dtype=torch.float64, requires_grad=True)

    value = step_loss(numbers, torch.tensor([label], dtype=torch.float64), num_turns=1)
    value.backward()  # type: ignore[no-untyped-call]

    assert value.item() == pytest.approx(loss)
    assert numbers.grad is not None
    assert numbers.grad.item() == pytest.approx(grad, abs=1e-12)


def test_turns_are_averaged_over_the_whole_update() -> None:
    part = step_loss(torch.zeros(3), torch.tensor([0.0, 1.0, 0.5]), num_turns=12)

    assert float(part) == pytest.approx(3 / 12 * math.log(2))
