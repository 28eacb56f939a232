"""Which processes of the stack are killed, and when."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.stacks import Kind

KILLS: Final[Mapping[Kind, int]] = {
    Kind.ENV_SERVER: 3,
    Kind.ENV_SHARD: 4,
    Kind.GATEWAY: 3,
    Kind.REWARD: 3,
    Kind.ROLLOUT: 2,
    Kind.TRAINER: 3,
    Kind.REDIS: 2,
}
"""Twenty kills. The supervisor gives up on a service at its sixth death in ten minutes."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One entry of the schedule."""

    at_s: float
    kind: Kind


def schedule(kills: Mapping[Kind, int], window_s: float, seed: int) -> list[Kill]:
    """Return all kills in random order, each at a random moment in the first half of its equal part of the window."""
    generator = random.Random(seed)
    kinds = [kind for kind, number in kills.items() for _ in range(number)]
    generator.shuffle(kinds)
    part_s = window_s / len(kinds)
    return [Kill((place + generator.uniform(0.0, 0.5)) * part_s, kind) for place, kind in enumerate(kinds)]
