"""The same actions, with thoughts in other words."""

import random
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Final

from gymfleet_contracts.rollout import Move
from gymfleet_contracts.trajectory import Trajectory
from pydantic import Field, NonNegativeInt, PositiveInt

from gymfleet_kit.data.augmenter import Augmenter, AugmenterOptions
from gymfleet_kit.data.augmenters._pool import moves_of

_Phrase = Annotated[str, Field(min_length=1, max_length=200)]

RULES: Final[Mapping[str, tuple[str, ...]]] = {
    "I need to": ("I have to", "I must"),
    "I have to": ("I need to", "I must"),
    "I need": ("I still need", "What I need is"),
    "I should": ("I had better", "I ought to"),
    "I will": ("I am going to", "I shall"),
    "I'll": ("I will", "I am going to"),
    "I can see": ("I see", "In front of me I see"),
    "I go to": ("I walk to", "I head for"),
    "I go through": ("I walk through", "I pass through"),
    "I turn": ("Let me turn", "I am going to turn"),
    "I open": ("Let me open", "I am going to open"),
    "I get it": ("I fetch it", "I take it"),
    "I go on": ("I continue", "I keep going"),
    "I choose": ("I pick", "My choice is"),
    "I look": ("I take a look", "I have a look"),
    "Going": ("I go", "Moving"),
    "The goal is": ("My goal is", "What I want to reach is"),
    "That is": ("This is",),
    "There is": ("Here is", "I see that there is"),
    "is in the way": ("blocks the way", "stands in the way"),
    "so I": ("and so I", "therefore I"),
    "because": ("since", "as"),
    "in order to": ("so as to",),
    "First,": ("To begin with,", "As a first step,"),
    "Next,": ("Then,", "After that,"),
    "Now": ("At this point", "By now"),
}
"""Phrases, and their possible replacements."""


class ParaphraseOptions(AugmenterOptions):
    """How much to put in other words."""

    copies: PositiveInt = 2
    """The most proposals per episode; equal ones count as one."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.8
    """The probability that a phrase is put in other words."""
    rules: dict[_Phrase, tuple[_Phrase, ...]] = Field(default_factory=dict)
    """Further rules, which take precedence over the built-in ones: a phrase, and its possible replacements."""
    seed: NonNegativeInt = 0
    """Determines the draws, together with the episode's id."""


class Paraphrase(Augmenter[ParaphraseOptions]):
    """Put the thoughts in other words, by a table of phrases; the actions stay as they are."""

    Options = ParaphraseOptions

    def __init__(self, options: ParaphraseOptions) -> None:
        super().__init__(options)
        self._rules = {phrase: tuple(others) for phrase, others in {**RULES, **options.rules}.items() if others}
        longest_first = sorted(self._rules, key=len, reverse=True)
        self._phrases = re.compile("|".join(rf"(?<!\w){re.escape(phrase)}(?!\w)" for phrase in longest_first))

    def augment(self, episode: Trajectory) -> Iterator[list[Move]]:
        """Yield copies whose thoughts differ, if any thought can be put in other words."""
        moves = moves_of(episode)
        made = [moves]
        for copy in range(self.options.copies):
            draw = random.Random(f"{self.options.seed}/{episode.trajectory_id}/{copy}")
            other = [move.model_copy(update={"thought": self._in_other_words(move.thought, draw)}) for move in moves]
            if other not in made:
                made.append(other)
                yield other

    def _in_other_words(self, thought: str, draw: random.Random) -> str:
        def other(found: re.Match[str]) -> str:
            return draw.choice(self._rules[found[0]]) if draw.random() < self.options.share else found[0]

        return self._phrases.sub(other, thought)
