"""Losses over preferences: pure functions of log-probabilities that are summed, or averaged, over a side's tokens."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

DpoLoss = Literal["sigmoid", "hinge", "ipo", "robust"]
_LEAST: float = 1e-7
"""How far below 0 a mean log-probability is assumed to be, where the odds would be infinite."""


def dpo_loss(margins: Tensor, *, kind: DpoLoss, beta: float, label_smoothing: float = 0.0) -> Tensor:
    r"""Return the loss of each pair, (P,) float with grad.

    With h the margin by which the policy prefers the chosen side more than the reference does:

    ======= ==================================================================================
    sigmoid :math:`-(1-e) \log\sigma(\beta h) - e \log\sigma(-\beta h)`, DPO, arXiv:2305.18290, eq. 7
    hinge   :math:`\max(0, 1 - \beta h)`, SLiC, arXiv:2305.10425
    ipo     :math:`(h - 1 / (2\beta))^2`, IPO, arXiv:2310.12036, eq. 17
    robust  :math:`(-(1-e) \log\sigma(\beta h) + e \log\sigma(-\beta h)) / (1 - 2e)`, arXiv:2403.00409
    ======= ==================================================================================

    Args:
        margins: (P,) float, h.
        kind: which of the four.
        beta: how strongly the policy is held to the reference.
        label_smoothing: e, the share of the pairs assumed to be labelled the wrong way round.
    """
    if kind == "hinge":
        return torch.relu(1 - beta * margins)
    if kind == "ipo":
        return (margins - 1 / (2 * beta)).square()
    right, wrong = -logsigmoid(beta * margins), -logsigmoid(-beta * margins)
    if kind == "robust":
        return ((1 - label_smoothing) * right - label_smoothing * wrong) / (1 - 2 * label_smoothing)
    return (1 - label_smoothing) * right + label_smoothing * wrong


def kto_loss(
    gains: Tensor, desirable: Tensor, kl: Tensor, *, beta: float, desirable_weight: float, undesirable_weight: float
) -> Tensor:
    r"""Return the loss of each episode, (E,) float with grad.

    .. math::
        w_d\,(1 - \sigma(\beta(h - z))) \quad\text{or}\quad w_u\,(1 - \sigma(\beta(z - h)))

    KTO, arXiv:2402.01306, eq. 8.

    Args:
        gains: (E,) float, h, log-probability of the episode's tokens less that under the reference.
        desirable: (E,) bool.
        kl: () float, z, at least 0 and without grad.
        beta: how strongly the policy is held to the reference.
        desirable_weight: :math:`w_d`.
        undesirable_weight: :math:`w_u`.
    """
    good = desirable_weight * (1 - torch.sigmoid(beta * (gains - kl)))
    bad = undesirable_weight * (1 - torch.sigmoid(beta * (kl - gains)))
    return torch.where(desirable, good, bad)


def log_odds_ratio(chosen: Tensor, rejected: Tensor) -> Tensor:
    r"""Return :math:`\log\frac{odds(y^+)}{odds(y^-)}`, :math:`odds = p / (1 - p)`; ORPO, arXiv:2403.07691, eq. 4 and 7.

    Args:
        chosen: (P,) float, log p, the mean log-probability of the chosen side's tokens.
        rejected: (P,) float, of the rejected side's.
    """
    chosen, rejected = chosen.clamp(max=-_LEAST), rejected.clamp(max=-_LEAST)
    return (chosen - rejected) - (torch.log(-torch.expm1(chosen)) - torch.log(-torch.expm1(rejected)))
