"""Open-R1's way to reply: a thought in tags, then an answer in tags."""

import re
from typing import Final, Literal

from gymfleet_contracts.trajectory import Trajectory

from gymfleet_reward.component import Component, ComponentOptions, turns_of

_OPENED: Final = "<think>\n"
_BETWEEN: Final = "\n</think>\n<answer>\n"
_CLOSED: Final = re.compile(r"\n</answer>$", re.MULTILINE)
_TAGS: Final = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")


class ThinkFormatOptions(ComponentOptions):
    """How strictly replies are read."""

    measure: Literal["whole", "tags"] = "whole"
    """`whole`: 1 for a reply that is thought and answer and nothing else; `tags`: a quarter for each of the four tags
    that occurs exactly once, with its line breaks."""


class ThinkFormat(Component[ThinkFormatOptions]):
    """The mean over replies of how well they follow `<think>...</think><answer>...</answer>`, as Open-R1 scores it."""

    Options = ThinkFormatOptions
    version = "1"

    def score(self, episode: Trajectory) -> float:
        """See `Component`."""
        turns = turns_of(episode)
        scored = self._whole if self.options.measure == "whole" else self._tags
        return sum(scored(turn.text) for turn in turns) / len(turns)

    def _whole(self, text: str) -> float:
        # As Open-R1's regular expression, whose time grows with the square of a reply that repeats its tags.
        place = text.find(_BETWEEN, len(_OPENED)) if text.startswith(_OPENED) else -1
        return float(place >= 0 and _CLOSED.search(text, place + len(_BETWEEN)) is not None)

    def _tags(self, text: str) -> float:
        return sum(text.count(tag) == 1 for tag in _TAGS) / len(_TAGS)
