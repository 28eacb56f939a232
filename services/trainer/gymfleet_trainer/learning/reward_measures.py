"""Measures of a reward model: its accuracy and calibration, and baselines that do without it."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gymfleet_trainer.learning.reward_data import Example, Pair

_BINS: Final = 10
_WORD: Final = re.compile(r"\w+|[^\w\s]")


def accuracy(chosen: Sequence[float], rejected: Sequence[float]) -> float:
    """Return the share of pairs whose better side has the greater number; equal ones count half. NaN without any."""
    right = [1.0 if one > other else 0.5 if one == other else 0.0 for one, other in zip(chosen, rejected, strict=True)]
    return sum(right) / len(right) if right else math.nan


@dataclass(frozen=True, slots=True)
class Bin:
    """Predictions of about equal confidence."""

    predicted: float
    """Their mean probability."""
    happened: float
    """How often the predicted outcome happened."""
    count: int


def calibration(probabilities: Sequence[float], outcomes: Sequence[float]) -> list[Bin]:
    """Return the predictions in ten bins of equal width, without empty bins. Outcomes may be shares."""
    bins: dict[int, list[tuple[float, float]]] = {}
    for probability, outcome in zip(probabilities, outcomes, strict=True):
        bins.setdefault(min(int(probability * _BINS), _BINS - 1), []).append((probability, outcome))
    return [
        Bin(sum(p for p, _ in found) / len(found), sum(o for _, o in found) / len(found), len(found))
        for _, found in sorted(bins.items())
    ]


def calibration_error(bins: Sequence[Bin]) -> float:
    """Return the expected calibration error (arXiv:1706.04599, eq. 3): |predicted - happened|, weighted by counts."""
    total = sum(one.count for one in bins)
    return sum(one.count * abs(one.predicted - one.happened) for one in bins) / total if total else math.nan


def sureness(chosen: Sequence[float], rejected: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return how probable the model finds the side that it prefers, and whether that is the better one (Bradley-Terry).

    A model that gives both sides the same number is thus not sure, and right in half of the cases.
    """
    gaps = [one - other for one, other in zip(chosen, rejected, strict=True)]
    return [sigmoid(abs(gap)) for gap in gaps], [0.5 if gap == 0 else float(gap > 0) for gap in gaps]


def sigmoid(number: float) -> float:
    """Return the probability that a head's number represents."""
    return 0.5 * (1.0 + math.tanh(0.5 * number))


def best_of(n: int, numbers: Sequence[float], values: Sequence[float]) -> float:
    r"""Return the expected value of the item with the greatest number among `n` drawn without replacement.

    .. math::
        \sum_{i \ge n} \binom{i - 1}{n - 1} \Big/ \binom{N}{n} \; v_{(i)}

    where v_(i) is the value of the i-th smallest number of N. Equal numbers count in the order of their places.
    """
    ranked = [value for _, value in sorted(zip(numbers, values, strict=True), key=lambda one: one[0])]
    draws = math.comb(len(ranked), n)
    return math.fsum(math.comb(place, n - 1) / draws * value for place, value in enumerate(ranked))


def best_of_kl(n: int) -> float:
    """Return how far the best of `n` is from the policy, in nats: ln n - (n - 1) / n (arXiv:2210.10760, eq. 1)."""
    return math.log(n) - (n - 1) / n


class LengthBaseline:
    """Prefer the longer episode, or the shorter, whichever was better more often in the pairs that it is given."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        longer = sum(pair.chosen.num_tokens > pair.rejected.num_tokens for pair in pairs)
        shorter = sum(pair.chosen.num_tokens < pair.rejected.num_tokens for pair in pairs)
        self._sign = 1.0 if longer >= shorter else -1.0

    def accuracy(self, pairs: Sequence[Pair]) -> float:
        """Return its accuracy on other pairs."""
        return accuracy(*(tuple(self._sign * one.num_tokens for one in side) for side in sides(pairs)))


class LastLineBaseline:
    """Naive Bayes on the words of the last line that a model reads, with add-one smoothing."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        good, bad = (Counter(word for one in side for word in _words(one)) for side in sides(pairs))
        known = len(good | bad) or 1
        self._odds = {
            word: math.log((good[word] + 1) / (good.total() + known))
            - math.log((bad[word] + 1) / (bad.total() + known))
            for word in good | bad
        }

    def accuracy(self, pairs: Sequence[Pair]) -> float:
        """Return its accuracy on other pairs."""
        return accuracy(*(tuple(map(self._score, side)) for side in sides(pairs)))

    def _score(self, example: Example) -> float:
        return math.fsum(self._odds.get(word, 0.0) for word in _words(example))


def sides(pairs: Sequence[Pair]) -> tuple[list[Example], list[Example]]:
    """Return the better and the other episodes of pairs."""
    return [pair.chosen for pair in pairs], [pair.rejected for pair in pairs]


def _words(example: Example) -> list[str]:
    lines = [line for line in example.scored.trajectory.turns[-1].text.splitlines() if line.strip()]
    return _WORD.findall(lines[-1].lower()) if lines else []
