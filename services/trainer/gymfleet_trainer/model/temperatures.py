"""Rows that were sampled at different temperatures: each micro-batch has rows of one temperature."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from gymfleet_trainer.model.batching import PackedBatch, TrainSequence, pack


def pack_by_temperature(
    rows: Sequence[TrainSequence],
    tokens_per_microbatch: int,
    *,
    default: float,
    multiple_of: int = 1,
    dtype: torch.dtype = torch.float32,
) -> list[PackedBatch]:
    """Pack rows, see `pack`, so that all rows of a micro-batch were sampled at one temperature, which it names.

    `default` is the temperature of rows that name none. Rows of a unit, such as a pair, are assumed to have it too.
    """
    places: dict[float, list[int]] = {}
    for place, row in enumerate(rows):
        own = default if row.temperature is None or row.unit is not None else row.temperature
        places.setdefault(own, []).append(place)
    return [
        replace(batch, temperature=temperature, indices=tuple(chosen[index] for index in batch.indices))
        for temperature, chosen in sorted(places.items())
        for batch in pack(
            [rows[place] for place in chosen], tokens_per_microbatch, multiple_of=multiple_of, dtype=dtype
        )
    ]
