"""OpenManus-RL's way to reply: think, remember, plan, think again, act."""

import re
from typing import Final

from gymfleet_contracts.trajectory import Trajectory

from gymfleet_reward.component import Component, ComponentOptions, turns_of

_ORDER: Final = ("<think>", "<memory>", "<plan>", "<think>", "<act>")
_TAG: Final = re.compile("|".join(dict.fromkeys(_ORDER)))
_IN_ORDER, _ALL, _SOME, _NONE = 1.0, 1 / 3, 0.25, -0.5


class TagOrder(Component[ComponentOptions]):
    """Whether the replies, one after the other, think, remember, plan, think and act in this order.

    1 for this order, a third if all four tags occur somewhere, a quarter for `<think>` and `<act>`, else -0.5: the
    format reward of OpenManus-RL.
    """

    Options = ComponentOptions
    version = "1"

    def score(self, episode: Trajectory) -> float:
        """See `Component`."""
        turns = turns_of(episode)
        found = [tag for turn in turns for tag in _TAG.findall(turn.text)]
        left = iter(found)
        if all(tag in left for tag in _ORDER):
            return _IN_ORDER
        if set(_ORDER) <= set(found):
            return _ALL
        return _SOME if {"<think>", "<act>"} <= set(found) else _NONE
