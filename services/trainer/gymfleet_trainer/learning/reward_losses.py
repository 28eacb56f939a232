"""The losses of a reward model: on pairs of episodes, and on the turns of one."""

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid


def bradley_terry_loss(chosen: Tensor, rejected: Tensor, *, centring: float, num_pairs: int) -> Tensor:
    r"""Return the negative log-likelihood of the preferences, and a pull of both numbers towards 0.

    .. math::
        L = \frac{1}{P} \sum_p -\log\sigma(r^+_p - r^-_p) + c\,(r^+_p + r^-_p)^2

    Bradley and Terry 1952, as InstructGPT uses it (arXiv:2203.02155, eq. 1). A difference leaves open where 0 is; the
    second term settles it (arXiv:2312.09244, section 4).

    Args:
        chosen: (P,) float, the numbers of the better episodes.
        rejected: (P,) float, those of the others.
        centring: c.
        num_pairs: of the whole update, so that micro-batches and ranks add up to its loss.
    """
    return (-logsigmoid(chosen - rejected) + centring * (chosen + rejected).square()).sum() / num_pairs


def step_loss(numbers: Tensor, labels: Tensor, *, num_turns: int) -> Tensor:
    r"""Return the binary cross-entropy of turns, whose labels are probabilities.

    .. math::
        L = -\frac{1}{N} \sum_t y_t \log\sigma(s_t) + (1 - y_t) \log(1 - \sigma(s_t))

    Process reward models: arXiv:2211.14275 and arXiv:2305.20050; soft labels: Math-Shepherd, arXiv:2312.08935, eq. 4.

    Args:
        numbers: (N,) float, as the head returns them.
        labels: (N,) float in 0 to 1.
        num_turns: of the whole update.
    """
    return binary_cross_entropy_with_logits(numbers, labels, reduction="sum") / num_turns
