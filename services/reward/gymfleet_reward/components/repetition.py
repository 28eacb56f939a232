"""A cost for replies that repeat themselves."""

from typing import Annotated

from gymfleet_contracts.numbers import NUMBER
from gymfleet_contracts.trajectory import Trajectory
from pydantic import Field

from gymfleet_reward.component import Component, ComponentOptions, Number, turns_of


class RepetitionOptions(ComponentOptions):
    """What counts as a repetition."""

    weight: Number = -1.0
    """Factor of the share of n-grams that occurred earlier in the same reply."""
    ngram: Annotated[int, Field(ge=1, le=64), NUMBER] = 3
    """Number of words in an n-gram."""


class Repetition(Component[RepetitionOptions]):
    """The mean over replies of the share of n-grams of words that repeat earlier ones (arXiv:2502.03373)."""

    Options = RepetitionOptions
    version = "1"

    def score(self, episode: Trajectory) -> float:
        """See `Component`. A reply of fewer words than an n-gram repeats nothing."""
        turns = turns_of(episode)
        return sum(self._share(turn.text) for turn in turns) / len(turns)

    def _share(self, text: str) -> float:
        words, size = text.lower().split(), self.options.ngram
        count = len(words) - size + 1
        if count < 1:
            return 0.0
        return 1.0 - len(set(zip(*(words[start:] for start in range(size)), strict=False))) / count
