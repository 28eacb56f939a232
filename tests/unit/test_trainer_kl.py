"""KL estimators: hand-made values, and that they estimate what they claim."""

import math

import pytest
import torch
from gymfleet_trainer.kl import KlEstimator, kl_estimate

LOGP, REFERENCE = torch.tensor([math.log(0.5), math.log(0.2)]), torch.tensor([math.log(0.25), math.log(0.2)])


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        pytest.param("k1", math.log(2), id="k1: x"),
        pytest.param("k2", math.log(2) ** 2 / 2, id="k2: x**2 / 2"),
        pytest.param("k3", 0.5 - 1 + math.log(2), id="k3: exp(-x) - 1 + x"),
    ],
)
def test_values(estimator: KlEstimator, expected: float) -> None:
    assert kl_estimate(LOGP, REFERENCE, estimator).tolist() == pytest.approx([expected, 0.0], abs=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_mean_over_the_policys_own_samples_is_the_divergence(estimator: KlEstimator) -> None:
    policy, reference = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    divergence = (policy * (policy / reference).log()).sum()

    expectation = (policy * kl_estimate(policy.log(), reference.log(), estimator)).sum()

    assert torch.isclose(expectation, divergence)


@pytest.mark.parametrize(
    ("estimator", "has_gradient"),
    [
        pytest.param("k1", False, id="k1 has no gradient in expectation"),
        pytest.param("k2", True, id="k2 has the divergence's"),
    ],
)
def test_gradient_as_a_loss(estimator: KlEstimator, has_gradient: bool) -> None:
    logits = torch.tensor([0.3, -0.2, 0.1], requires_grad=True)
    reference = torch.tensor([0.2, 0.2, 0.6]).log()
    logp = logits.log_softmax(0)
    divergence = (logp.exp() * (logp - reference)).sum()
    (wanted,) = torch.autograd.grad(divergence, logits, retain_graph=True)

    expectation = (logp.detach().exp() * kl_estimate(logp, reference, estimator)).sum()

    (actual,) = torch.autograd.grad(expectation, logits)
    assert torch.allclose(actual, wanted if has_gradient else torch.zeros(3), atol=1e-6)


def test_k3_stays_finite() -> None:
    assert torch.isfinite(kl_estimate(torch.tensor([-200.0, 0.0]), torch.tensor([0.0, -200.0]), "k3")).all()
