"""The covariance of a token's probability and its advantage, which makes a policy's entropy fall."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gymfleet_trainer.learning.algorithm import Models
from gymfleet_trainer.learning.policy_gradient import ADVANTAGES
from gymfleet_trainer.model.batching import TrainSequence


def covariances(rows: Sequence[TrainSequence], models: Models) -> Tensor:
    r"""Return (N,) covariances of the batch's N tokens with a loss, row after row; the rows have their advantages.

    .. math:: \mathrm{cov}_t = (\log\pi(y_t) - \mathrm{mean})(A_t - \mathrm{mean})

    arXiv:2505.22617. The log-probabilities are those before the batch, so that the tokens chosen by them
    do not depend on how the batch is divided; the paper's code takes those of each micro-batch in turn.
    """
    logprobs = _written(rows, models.logprobs(rows))
    advantages = _written(rows, [row.fields[ADVANTAGES] for row in rows])
    return (logprobs - logprobs.mean()) * (advantages - advantages.mean())


def marked(rows: Sequence[TrainSequence], chosen: Iterable[int], name: str) -> list[TrainSequence]:
    """Return the rows with a field that is 1 on the chosen ones among the tokens with a loss, and 0 elsewhere."""
    flags = torch.zeros(sum(len(row.token_ids) for row in rows))
    places = torch.cat([row.mask() for row in rows]).nonzero().flatten() if rows else flags.long()
    flags[places[torch.tensor(list(chosen), dtype=torch.int64)]] = 1.0
    parts = torch.split(flags, [len(row.token_ids) for row in rows]) if rows else ()
    return [row.with_fields(**{name: part}) for row, part in zip(rows, parts, strict=True)]


def _written(rows: Sequence[TrainSequence], values: Sequence[Tensor]) -> Tensor:
    return torch.cat([value[row.mask()] for row, value in zip(rows, values, strict=True)])
