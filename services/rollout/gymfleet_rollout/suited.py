"""Whether an environment can be played the way that a group asks for, as far as its description tells."""

from gymfleet_contracts.recipe_sections import StrategyFacts
from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.session import EnvironmentSpec, ForkSupport

from gymfleet_rollout.errors import StrategyError


def require_suited(group: GroupRequest, facts: StrategyFacts, spec: EnvironmentSpec) -> None:
    """Raise StrategyError if the environment lacks what the strategy needs, or what the policy is to be shown."""
    _require_shown(group, spec)
    _require_strategy(group.strategy.use, facts, spec)


def _require_strategy(use: str, facts: StrategyFacts, spec: EnvironmentSpec) -> None:
    can = spec.capabilities
    if facts.forks and can.fork is ForkSupport.NONE:
        raise StrategyError(
            f"{spec.name} cannot fork, and {use} forks its sessions: give another strategy or another environment"
        )
    if facts.forks and can.irreversible:
        raise StrategyError(
            f"{spec.name} has actions that cannot be taken back, and {use} takes actions to see what comes of them: "
            "give a strategy without forks"
        )
    if facts.actions and not can.admissible_actions:
        raise StrategyError(
            f"{spec.name} does not list the actions that are possible, and {use} chooses by the list: give another "
            "strategy or another environment"
        )
    if spec.seats and not facts.games:
        raise StrategyError(
            f"{spec.name} is a game of {', '.join(spec.seats)}, each with an episode of its own: play it with a "
            "strategy for games, such as self_play"
        )
    if facts.games and not spec.seats:
        raise StrategyError(f"{spec.name} is no game: its sessions have one player, and the strategy is for games")


def _require_shown(group: GroupRequest, spec: EnvironmentSpec) -> None:
    can = spec.capabilities
    if spec.images == "only" and group.images == "text":
        raise StrategyError(
            f"{spec.name} shows images alone, and the policy is shown text: give the environment the option "
            'observation = "both", or rollout.images = "seen"'
        )
    if group.actions.shown and not can.admissible_actions:
        raise StrategyError(f"{spec.name} does not list its actions: leave out actions.shown")
    if group.hint_probability and not can.expert:
        raise StrategyError(f"{spec.name} has no expert that could give hints: leave out hints")
    if spec.seats and (group.actions.shown or group.hint_probability):
        raise StrategyError(f"{spec.name} is a game: neither actions nor hints are shown to its players")
