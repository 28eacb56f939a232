"""AdamW: its schedule, its groups, its clipping, and that it resumes."""

import copy
import math

import pytest
import torch
from gymfleet_trainer.model.optimizer import OptimizerOptions, build_optimizer, scheduled_rate
from torch import Tensor, nn


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(5, 4)
        self.linear = nn.Linear(4, 3)
        self.norm = nn.LayerNorm(3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.linear(self.embedding(ids)))  # type: ignore[no-any-return]


def learn(model: nn.Module, scale: float = 1.0) -> None:
    (model(torch.tensor([0, 1, 2])).square().sum(-1) * torch.tensor([1.0, 2.0, 3.0]) * scale).sum().backward()


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.25, 0.5, 0.75, 1.0, 1.0, 0.55, 0.1]),
        ("cosine", [0.25, 0.5, 0.75, 1.0, 1.0, 0.55, 0.1]),
    ],
)
def test_schedule(schedule: str, expected: list[float]) -> None:
    # Four steps of warm-up, then 8 down to a tenth; steps 0 to 4, the middle and the end.
    section = OptimizerOptions.model_validate(
        {"learning_rate": 2.0, "warmup_steps": 4, "schedule": schedule, "min_lr_ratio": 0.1}
    )

    rates = [scheduled_rate(section, step, 12) for step in (0, 1, 2, 3, 4, 8, 12)]

    assert rates == pytest.approx([2.0 * part for part in expected])
    assert scheduled_rate(section, 400, 12) == pytest.approx(rates[-1])


def test_updates_that_are_not_made_count_for_the_schedule_but_not_for_the_warm_up() -> None:
    section = OptimizerOptions(learning_rate=1.0, warmup_steps=2, schedule="linear")

    # Four missed ones, then two updates of warm-up, whose rate is not above that of the schedule, and the rest of ten.
    rates = [scheduled_rate(section, step, 10, num_missed=4) for step in range(7)]

    assert rates == pytest.approx([0.5, 0.625, 0.5, 0.375, 0.25, 0.125, 0.0])
    constant = OptimizerOptions(learning_rate=1.0, warmup_steps=2)
    assert [scheduled_rate(constant, step, 10, num_missed=4) for step in range(3)] == [0.5, 1.0, 1.0]


def test_cosine_is_slow_at_its_ends() -> None:
    section = OptimizerOptions(learning_rate=1.0, schedule="cosine")

    assert scheduled_rate(section, 2, 8) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


def test_norms_biases_and_embeddings_do_not_decay() -> None:
    model = Toy()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = build_optimizer(model, OptimizerOptions(learning_rate=0.1, weight_decay=0.5), 10)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)

    optimizer.step()

    for name, parameter in model.named_parameters():
        factor = 0.95 if name == "linear.weight" else 1.0
        assert torch.allclose(parameter, before[name] * factor), name


def test_the_norm_is_clipped_and_reported() -> None:
    model = Toy()
    optimizer = build_optimizer(model, OptimizerOptions(learning_rate=1e-3, max_grad_norm=0.5), 10)
    learn(model)
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.stack([grad.norm() for grad in grads]).norm()
    assert norm > 0.5

    reported = optimizer.step()

    assert torch.isclose(reported, norm)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    model = Toy()
    optimizer = build_optimizer(model, OptimizerOptions(learning_rate=0.1), 10)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    learn(model, scale=math.inf)

    norm = optimizer.step()

    assert not torch.isfinite(norm)
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
    assert optimizer.num_steps == 1


def test_resumed_is_bit_identical() -> None:
    section = OptimizerOptions(learning_rate=0.01, warmup_steps=2, schedule="cosine", weight_decay=0.1)
    straight, resumed = Toy(), Toy()
    optimizer = build_optimizer(straight, section, 8)
    for _ in range(3):
        learn(straight)
        optimizer.step()
    optimizer.num_missed = 2
    resumed.load_state_dict(straight.state_dict())
    second = build_optimizer(resumed, section, 8)
    second.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    for model, owner in ((straight, optimizer), (resumed, second)):
        for _ in range(3):
            learn(model)
            owner.step()

    assert second.num_steps == 6
    for one, other in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)
