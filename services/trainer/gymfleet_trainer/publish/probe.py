"""The fixed prompts that check every published version, and the comparison itself."""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gymfleet_contracts.rollout import EngineProbe
from gymfleet_contracts.trajectory import ScoredTrajectory

Prompts = list[list[int]]


@dataclass(frozen=True, slots=True)
class Parity:
    """|log-probability of the trainer - log-probability of the engine| over sampled tokens."""

    mean_abs: float
    max_abs: float
    num_tokens: int

    def within(self, tolerance: float) -> bool:
        """Return whether the mean is within `tolerance`; single tokens of peaked models can be off. NaN never is."""
        return self.num_tokens > 0 and self.mean_abs <= tolerance

    def worse(self, other: "Parity") -> "Parity":
        """Return the parity with the larger mean; NaN is the largest."""
        return self if math.isnan(self.mean_abs) or self.mean_abs >= other.mean_abs else other


def compare(trainer: Sequence[Sequence[float]], engine: Sequence[Sequence[float]]) -> Parity:
    """Return the parity of aligned rows. A row of a different length counts as infinitely far off."""
    differences: list[float] = []
    for ours, theirs in zip(trainer, engine, strict=True):
        if len(ours) != len(theirs):
            return Parity(math.inf, math.inf, max(len(ours), len(theirs)))
        differences += [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    if not differences:
        return Parity(math.inf, math.inf, 0)
    # max() ignores a NaN that does not come first.
    worst = math.nan if any(math.isnan(d) for d in differences) else max(differences)
    return Parity(math.fsum(differences) / len(differences), worst, len(differences))


def answers(replica: EngineProbe, num_prompts: int) -> tuple[list[list[int]], list[list[float]]] | None:
    """Return a replica's sampled tokens and their log-probabilities, or None if any prompt has no answer."""
    if len(replica.samples) != num_prompts or not all(sample.token_ids for sample in replica.samples):
        return None
    return [list(s.token_ids) for s in replica.samples], [list(s.logprobs) for s in replica.samples]


def real_prompts(trajectories: Iterable[ScoredTrajectory], count: int, max_tokens: int, seed: int) -> Prompts:
    """Return prefixes of played episodes, each ending where the model's next reply begins.

    Every second one is the longest that fits `max_tokens`, so that prompts span
    several blocks of the prefix cache; the rest end at a random turn.
    """
    generator = random.Random(f"probe/{seed}")
    prefixes = [cut for scored in trajectories if (cut := _prefixes(scored, max_tokens))]
    if not prefixes:
        return []
    generator.shuffle(prefixes)
    chosen: dict[tuple[int, ...], None] = {}
    for attempt in range(4 * count):
        options = prefixes[attempt % len(prefixes)]
        chosen.setdefault(max(options, key=len) if attempt % 2 == 0 else generator.choice(options))
        if len(chosen) == count:
            break
    return [list(prompt) for prompt in chosen]


def random_prompts(vocab_size: int, count: int, max_tokens: int, seed: int) -> Prompts:
    """Return random tokens for a run that has seen no episode yet; half of the prompts are as long as allowed."""
    generator = random.Random(f"probe/{seed}")
    lengths = [max_tokens if index % 2 == 0 else generator.randint(1, max_tokens) for index in range(count)]
    return [[generator.randrange(vocab_size) for _ in range(length)] for length in lengths]


def _prefixes(scored: ScoredTrajectory, max_tokens: int) -> list[tuple[int, ...]]:
    cuts = []
    for turns in scored.trajectory.sequences():
        tokens: list[int] = []
        for turn in turns:
            tokens += turn.prompt_token_ids
            if not tokens or len(tokens) > max_tokens:
                break
            cuts.append(tuple(tokens))
            tokens += turn.response_token_ids
    return cuts
