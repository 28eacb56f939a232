r"""Per-token estimators of KL(policy || reference) from tokens that the policy sampled.

With :math:`x = \log\pi_\theta - \log\pi_{ref}` of the sampled token (Schulman 2020, "Approximating KL divergence").
"""

from typing import Literal

from torch import Tensor

KlEstimator = Literal["k1", "k2", "k3"]

_MAX_LOG_RATIO = 20.0
_MAX_K3 = 10.0
_MAX_ERROR = 0.2


def k1(logprobs: Tensor, reference_logp: Tensor) -> Tensor:
    """`x`: unbiased, of high variance, may be negative. As a loss its gradient is 0 in expectation. Shapes (...)."""
    return logprobs - reference_logp


def k2(logprobs: Tensor, reference_logp: Tensor) -> Tensor:
    """`x**2 / 2`: biased in value; differentiated, it has the gradient of the KL divergence. Shapes (...)."""
    return 0.5 * (logprobs - reference_logp).square()


def k3(logprobs: Tensor, reference_logp: Tensor) -> Tensor:
    """`exp(-x) - 1 + x`: unbiased within its bounds, never negative. Shapes (...).

    It is clamped as in verl: `-x` to +-20, so that it stays finite, and the value to 10 (from `-x` = 2.6 on).
    Otherwise one token that the policy has all but ruled out would outweigh all others, with a value of 1.8e8 at
    19 nats and a similar gradient. A clamped token has no gradient.
    """
    minus_x = (reference_logp - logprobs).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return (minus_x.expm1() - minus_x).clamp(max=_MAX_K3)


def kl_estimate(logprobs: Tensor, reference_logp: Tensor, estimator: KlEstimator) -> Tensor:
    """Apply the estimator with this name in a recipe; (...) float, one value per token."""
    return {"k1": k1, "k2": k2, "k3": k3}[estimator](logprobs, reference_logp)


def adapted_coefficient(coefficient: float, measured: float, *, target: float, horizon: float) -> float:
    r"""Return the coefficient of a KL term for the next batch, moved so that the measured KL comes near the target.

    .. math::
        e = \mathrm{clip}\Bigl(\frac{\mathrm{KL} - \mathrm{KL}_{target}}{\mathrm{KL}_{target}}, -0.2, 0.2\Bigr), \qquad
        \beta \leftarrow \beta\,(1 + e / h)

    Ziegler et al. 2019, arXiv:1909.08593, where 1 / h is the gain :math:`K_\beta` = 0.1.

    Args:
        coefficient: :math:`\beta`.
        measured: the mean estimate of the batch.
        target: above 0, an estimate of the same kind.
        horizon: h, in batches.
    """
    error = min(max(measured / target - 1, -_MAX_ERROR), _MAX_ERROR)
    return coefficient * (1 + error / horizon)
