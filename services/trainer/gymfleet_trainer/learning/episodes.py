"""Rows by episode: an episode has several, in order, where its context was replaced."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gymfleet_trainer.learning.advantages import gae, masked_whiten
from gymfleet_trainer.model.batching import TrainSequence


def by_episode(rows: Sequence[TrainSequence]) -> list[list[int]]:
    """Return the indices of each episode's rows, in order."""
    episodes: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        episodes.setdefault(row.trajectory_id, []).append(index)
    return list(episodes.values())


def summed(rows: Sequence[TrainSequence], values: Sequence[float]) -> dict[str, float]:
    """Return, for each episode id, the sum of one value per row."""
    totals: dict[str, float] = {}
    for row, value in zip(rows, values, strict=True):
        totals[row.trajectory_id] = totals.get(row.trajectory_id, 0.0) + value
    return totals


def on_written(rows: Sequence[TrainSequence], values: Mapping[str, Tensor]) -> list[Tensor]:
    """Return an (L,) tensor per row: its episode's () value on the tokens that have a loss, and 0 elsewhere."""
    return [torch.where(torch.tensor(row.loss_mask), values[row.trajectory_id], 0.0) for row in rows]


def joined(rows: Sequence[Tensor], episodes: Sequence[Sequence[int]]) -> Tensor:
    """Place each episode's rows end to end, and stack the episodes as (E, T), padded with zeros."""
    return pad_sequence([torch.cat([rows[index] for index in indices]) for indices in episodes], batch_first=True)


def parted(values: Tensor, episodes: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[Tensor]:
    """Undo `joined`: return a tensor of its length for each row."""
    found: dict[int, Tensor] = {}
    for row, indices in zip(values, episodes, strict=True):
        own = [lengths[index] for index in indices]
        found |= dict(zip(indices, torch.split(row[: sum(own)], own), strict=True))
    return [found[index] for index in range(len(lengths))]


def discounted_returns(
    rows: Sequence[TrainSequence], rewards: Sequence[Sequence[float]], gamma: float, dtype: torch.dtype
) -> list[Tensor]:
    """Return an (L,) tensor per row: at each written token the rewards to its episode's end, 0 elsewhere.

    `gamma` discounts per written token: the environment's tokens take no time.
    """
    if not rows:
        return []
    episodes = by_episode(rows)
    gains = joined([torch.tensor(row, dtype=dtype) for row in rewards], episodes)
    mask = joined([row.mask() for row in rows], episodes)
    # Without values and with lambda 1, an advantage is the return itself.
    returns, _ = gae(gains, torch.zeros_like(gains), gains.new_zeros(len(episodes)), mask, gamma, 1.0)
    return parted(returns, episodes, [len(row.token_ids) for row in rows])


def whitened(rows: Sequence[TrainSequence], values: Sequence[Tensor]) -> list[Tensor]:
    """Return (L,) values with mean 0 and variance 1 over all tokens of the batch that have a loss, and 0 elsewhere.

    Fewer than two such tokens have no variance; the values then stay as they are.
    """
    if sum(row.num_trained for row in rows) < 2:
        return list(values)
    mask = torch.cat([row.mask() for row in rows])
    return list(torch.split(masked_whiten(torch.cat(list(values)), mask), [len(row.token_ids) for row in rows]))
