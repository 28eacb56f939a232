"""The turns of a batch as steps of their episodes, to which per-turn credit is given."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gymfleet_trainer.model.batching import TrainSequence, TurnSpan


@dataclass(frozen=True, slots=True)
class Step:
    """A turn with tokens that are trained, and the reward gained in it."""

    row: int
    """The index of its row."""
    span: TurnSpan
    reward: float
    """The sum over its tokens."""


def steps_of(rows: Sequence[TrainSequence], indices: Sequence[int], rewards: Sequence[Sequence[float]]) -> list[Step]:
    """Return the steps, in order, of the episode whose rows have these indices.

    A turn of a role that is not trained is no step: to the trained roles it is part of the environment, and its reward
    already counts for the step before it.
    """
    return [
        Step(index, span, sum(rewards[index][span.start : span.end]))
        for index in indices
        for span in rows[index].turns
        if any(rows[index].loss_mask[max(span.start, 1) : span.end])
    ]


def discounted(rewards: Sequence[float], gamma: float) -> list[float]:
    r"""Return the return from each step on, with a discount per step: :math:`R_t = r_t + \gamma R_{t+1}`."""
    returns: list[float] = []
    following = 0.0
    for reward in reversed(rewards):
        following = reward + gamma * following
        returns.append(following)
    return returns[::-1]


def on_tokens(rows: Sequence[TrainSequence], credit: Sequence[tuple[Step, float]], dtype: torch.dtype) -> list[Tensor]:
    """Return an (L,) tensor per row: each step's credit on its trained tokens, and 0 elsewhere."""
    spread = [torch.zeros(len(row.token_ids), dtype=dtype) for row in rows]
    for step, value in credit:
        spread[step.row][step.span.start : step.span.end] = value
    return [values * row.mask() for values, row in zip(spread, rows, strict=True)]


def require_turns(rows: Sequence[TrainSequence], algorithm: str) -> None:
    """Raise ValueError for a row with a trained token that belongs to no turn."""
    for row in rows:
        covered = sum(sum(row.loss_mask[max(span.start, 1) : span.end]) for span in row.turns)
        if covered != row.num_trained:
            raise ValueError(
                f"{row.trajectory_id}: {row.num_trained - covered} trained tokens are of no turn, and {algorithm} "
                "gives credit by turn: keep the `turns` of the rows that sequences_from_trajectory makes"
            )


def shared_turns_once(rows: Sequence[TrainSequence]) -> list[TrainSequence]:
    """Return the rows of a group, where each turn of a tree carries a loss only in the first row that has it."""
    known: set[str] = set()
    found = []
    for row in rows:
        mask = list(row.loss_mask)
        for span in row.turns:
            if span.node is None:
                continue
            if span.node in known:
                mask[span.start : span.end] = [False] * (span.end - span.start)
            known.add(span.node)
        found.append(row if mask == row.loss_mask else replace(row, loss_mask=mask))
    return found
