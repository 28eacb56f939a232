"""Actions of a known solution."""

from typing import Any, Literal

from gymfleet_contracts.trajectory import Trajectory

from gymfleet_reward.component import Component, ComponentError, ComponentOptions, turns_of
from gymfleet_reward.ground_truth import Place, ground_truth


class ActionPathOptions(ComponentOptions):
    """Where to find the solution, and how it is compared."""

    ground_truth_from: Place
    """`private.KEY` or `info.KEY`: where to find the list of the solution's actions."""
    match: Literal["in_order", "prefix"] = "in_order"
    """`in_order`: actions of the solution count in their order, whatever is done in between; `prefix`: only those
    before the first other action."""


class ActionPath(Component[ActionPathOptions]):
    """The share of a known solution's actions that the episode took, in their order.

    Case and spaces do not count. This is the goal reward of OpenManus-RL, except that an episode without a solution to
    compare with has no reward.
    """

    Options = ActionPathOptions
    version = "1"

    def score(self, episode: Trajectory) -> float:
        """See `Component`."""
        turns = turns_of(episode)
        place = self.options.ground_truth_from
        wanted = _actions(ground_truth(self, place, episode), place)
        taken = [_bare(turn.action) for turn in turns if turn.action is not None]
        matched = 0
        for action in taken:
            if matched < len(wanted) and action == wanted[matched]:
                matched += 1
            elif self.options.match == "prefix":
                break
        return matched / len(wanted)


def _actions(told: Any, place: str) -> list[str]:
    if not isinstance(told, list) or not told or not all(isinstance(one, str) for one in told):
        raise ComponentError(f"{place} must be a list of actions")
    return [_bare(one) for one in told]


def _bare(action: str) -> str:
    return " ".join(action.lower().split())
