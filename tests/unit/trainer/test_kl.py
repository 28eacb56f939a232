"""KL estimators: hand-made values, and that they estimate what they claim."""

import math

import pytest
import torch
from gymfleet_trainer.learning.kl import KlEstimator, kl_estimate

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


@pytest.mark.parametrize("distance", [1e-5, -1e-4, 1e-3])
def test_k3_of_policies_that_hardly_differ_is_no_rounding(distance: float) -> None:
    reference = torch.full((), -0.125)

    estimate = kl_estimate(reference + distance, reference, "k3")

    exact = float((reference + distance).double() - reference.double())
    assert estimate.item() == pytest.approx(exact**2 / 2, rel=1e-2)


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
    logprobs = logits.log_softmax(0)
    divergence = (logprobs.exp() * (logprobs - reference)).sum()
    (wanted,) = torch.autograd.grad(divergence, logits, retain_graph=True)

    expectation = (logprobs.detach().exp() * kl_estimate(logprobs, reference, estimator)).sum()

    (actual,) = torch.autograd.grad(expectation, logits)
    assert torch.allclose(actual, wanted if has_gradient else torch.zeros(3), atol=1e-6)


@pytest.mark.parametrize(
    ("minus_x", "value", "slope"),
    [
        # The slope of exp(-x) - 1 + x by x is 1 - exp(-x).
        pytest.param(0.0, 0.0, 0.0, id="equal"),
        pytest.param(math.log(2), 1 - math.log(2), -1.0, id="half as likely as under the reference"),
        pytest.param(-2.0, math.exp(-2) + 1, 1 - math.exp(-2), id="more likely"),
        pytest.param(2.6, math.exp(2.6) - 3.6, 1 - math.exp(2.6), id="just below the bound"),
        pytest.param(2.7, 10.0, 0.0, id="just above the bound"),
        pytest.param(19.0, 10.0, 0.0, id="19 nats: not 1.8e8"),
        pytest.param(200.0, 10.0, 0.0, id="beyond what exp can hold"),
        pytest.param(-200.0, 10.0, 0.0, id="ruled out by the reference"),
    ],
)
def test_k3_is_bounded_in_value_and_gradient(minus_x: float, value: float, slope: float) -> None:
    logprobs = torch.tensor(-minus_x, dtype=torch.float64, requires_grad=True)

    estimate = kl_estimate(logprobs, torch.zeros((), dtype=torch.float64), "k3")

    (gradient,) = torch.autograd.grad(estimate, logprobs)
    assert estimate.item() == pytest.approx(value, abs=1e-12)
    assert gradient.item() == pytest.approx(slope, abs=1e-12)
