"""The walkthrough as an expert: it goes on from where the player has left it, and takes back what led away."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from gymfleet_envs.textworld.engine import State, begin
from gymfleet_envs.textworld.game import Game
from gymfleet_envs.textworld.logic import Action, Fact

_MOST_STEPS_AWAY: Final = 200


@dataclass(frozen=True, slots=True)
class Way:
    """Where a player is on the walkthrough. Copies of a session share it."""

    game: Game
    at: int = 0
    """The number of commands of the walkthrough that are done."""
    away: tuple[Action, ...] | None = ()
    """What was done since, beside the walkthrough; None where it was too much to take back."""

    def after(self, action: Action, before: State, state: State) -> "Way":
        """Return where the player is after an action that led from a state to another."""
        path = _path(self.game)
        if not self.away and self.at < len(path.commands) and path.commands[self.at] == action.command:
            return replace(self, at=self.at + 1)
        if state.facts == before.facts or self.away is None:
            return self
        if (at := path.places.get(state.facts)) is not None and state.done == path.states[at].done:
            return Way(self.game, at)
        if self.away and _undone(self.away[-1], before) == state.facts:
            return replace(self, away=self.away[:-1])
        return replace(self, away=(*self.away, action) if len(self.away) < _MOST_STEPS_AWAY else None)

    def command(self, state: State) -> str | None:
        """Return the next command to win; None where none is known."""
        path = _path(self.game)
        if self.away:
            wanted = _undone(self.away[-1], state)
            for command, action in state.actions.items():
                if (state.facts - action.removed) | action.added == wanted:
                    return command
            return None
        if self.away is None or self.at >= len(path.commands):
            return None
        return path.commands[self.at]


@dataclass(frozen=True, slots=True)
class _Path:
    commands: tuple[str, ...]
    """Those of the walkthrough that can be taken, in turn."""
    states: tuple[State, ...]
    """The state before each, and the last."""
    places: dict[frozenset[Fact], int]
    """The last place of each state on the way."""


@lru_cache(maxsize=64)
def _path(game: Game) -> _Path:
    commands, states = [], [begin(game)]
    for command in game.walkthrough:
        action = states[-1].actions.get(command)
        if action is not None:
            commands.append(command)
            states.append(states[-1].after(action))
    return _Path(tuple(commands), tuple(states), {state.facts: place for place, state in enumerate(states)})


def solves(game: Game) -> bool:
    """Return whether the walkthrough wins the game."""
    return _path(game).states[-1].end == "won"


def _undone(action: Action, state: State) -> frozenset[Fact]:
    return (state.facts - action.added) | action.removed
