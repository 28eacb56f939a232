"""Thoughts of the right length."""

from typing import Annotated, Literal, Self

from gymfleet_contracts.numbers import NUMBER
from gymfleet_contracts.trajectory import Trajectory
from gymfleet_kit.plugins import ASCENDING
from pydantic import ConfigDict, Field, model_validator

from gymfleet_reward.component import Component, ComponentOptions, turns_of

_BEST = 0.5
_LOSS = 0.375
_EMPTY = -0.25


class ThoughtLengthOptions(ComponentOptions):
    """How long the thoughts of an episode should be."""

    model_config = ConfigDict(json_schema_extra={ASCENDING: ["min_words", "max_words"]})

    min_words: Annotated[int, Field(ge=1), NUMBER] = 35
    """Fewer words lose in proportion."""
    max_words: Annotated[int, Field(ge=1), NUMBER] = 65
    """More words lose in proportion, at most as much as twice this many; at least `min_words`."""

    thoughts: Literal["all", "last"] = "all"
    """`all`: the words of all thoughts together; `last`: those of the last thought."""

    @model_validator(mode="after")
    def bounds_are_ordered(self) -> Self:
        """Require `min_words <= max_words`."""
        if self.min_words > self.max_words:
            raise ValueError("min_words must not exceed max_words")
        return self


class ThoughtLength(Component[ThoughtLengthOptions]):
    """0.5 for thoughts of `min_words` to `max_words`, down to 0.125 outside this range, and -0.25 without a thought.

    Thoughts are what the reply format reads as such. This is the length reward of OpenManus-RL.
    """

    Options = ThoughtLengthOptions
    version = "1"

    def score(self, episode: Trajectory) -> float:
        """See `Component`."""
        turns = turns_of(episode)
        low, high = self.options.min_words, self.options.max_words
        counts = [count for turn in turns if (count := len(turn.thought.split()))]
        words = sum(counts[-1:] if self.options.thoughts == "last" else counts)
        if not words:
            return _EMPTY
        off = max(1 - words / low, (words - high) / high, 0.0)
        return _BEST - _LOSS * min(1.0, off)
