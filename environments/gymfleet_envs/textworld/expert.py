"""The walkthrough as an expert: it continues where the player left it, and undoes the steps that led away."""

from dataclasses import dataclass, replace
from typing import Final
from weakref import WeakKeyDictionary

from gymfleet_envs.textworld.engine import State, begin
from gymfleet_envs.textworld.game import Game
from gymfleet_envs.textworld.logic import Action, Fact

_MOST_STEPS_AWAY: Final = 200


@dataclass(frozen=True, slots=True)
class Way:
    """A player's place on the walkthrough. Copies of a session share it."""

    game: Game
    at: int = 0
    """The number of commands of the walkthrough that are done."""
    away: tuple[Action, ...] | None = ()
    """The actions since then that are not the walkthrough's; None if they are too many to undo."""

    def after(self, action: Action, before: State, state: State) -> "Way":
        """Return the player's place after an action that led from one state to another."""
        path = _path(self.game)
        if not self.away and self.at < len(path.commands) and path.commands[self.at] == action.command:
            return replace(self, at=self.at + 1)
        if state.facts == before.facts or self.away is None:
            return self
        at = path.places.get(state.facts ^ self.game.changing)
        if at is not None and state.done == path.done[at]:
            return Way(self.game, at)
        if self.away and _undone(self.away[-1], before) == state.facts:
            return replace(self, away=self.away[:-1])
        return replace(self, away=(*self.away, action) if len(self.away) < _MOST_STEPS_AWAY else None)

    def command(self, state: State) -> str | None:
        """Return the next command on the way to win; None if none is known."""
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
    """The data of a walkthrough, kept as long as its game: small, as thousands of games may be played at once."""

    commands: tuple[str, ...]
    """The commands of the walkthrough that are possible in turn."""
    done: tuple[frozenset[int], ...]
    """The quests completed before each command, and at the end."""
    places: dict[frozenset[Fact], int]
    """The last place of each state on the walkthrough, by the facts that differ from the beginning."""
    wins: bool


_PATHS: Final[WeakKeyDictionary[Game, _Path]] = WeakKeyDictionary()


def _path(game: Game) -> _Path:
    if (known := _PATHS.get(game)) is not None:
        return known
    state = begin(game)
    commands, done, places = [], [state.done], {frozenset[Fact](): 0}
    for command in game.walkthrough:
        action = state.action(command)
        if action is not None:
            state = state.after(action)
            commands.append(command)
            done.append(state.done)
            places[state.facts ^ game.changing] = len(commands)
    return _PATHS.setdefault(game, _Path(tuple(commands), tuple(done), places, state.end == "won"))


def solves(game: Game) -> bool:
    """Return whether the walkthrough wins the game."""
    return _path(game).wins


def _undone(action: Action, state: State) -> frozenset[Fact]:
    return (state.facts - action.added) | action.removed
