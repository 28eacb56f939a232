"""The common part of augmenters that insert actions: the actions to insert."""

import random
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Annotated, Final, TypeVar

from gymfleet_contracts.rollout import Move
from gymfleet_contracts.trajectory import Trajectory
from pydantic import Field, NonNegativeInt, PositiveInt

from gymfleet_kit.data.augmenter import Augmenter, AugmenterOptions, move_of

_MOST_ACTIONS: Final = 1000
"""The most actions to remember of an environment: the first ones."""


class InsertOptions(AugmenterOptions):
    """The actions to insert, and how often."""

    actions: tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...] = ()
    """The actions to draw from, as far as they suit; by default all that the environment understood in the episodes."""
    copies: PositiveInt = 2
    """Proposals per episode."""
    turns: PositiveInt = 1
    """Actions inserted into each proposal."""
    seed: NonNegativeInt = 0
    """Determines the draws, together with the episode's id."""


class Pool:
    """The actions that each environment understood in the noted episodes."""

    def __init__(self) -> None:
        self._actions: dict[str, dict[str, None]] = defaultdict(dict)

    def note(self, episode: Trajectory) -> None:
        """Remember the actions of an episode."""
        actions = self._actions[episode.task.env]
        for turn in episode.turns:
            if turn.action is not None and turn.action_valid and len(actions) < _MOST_ACTIONS:
                actions[turn.action] = None

    def of(self, env: str, wanted: Sequence[str]) -> list[str]:
        """Return the actions of an environment, or the wanted ones among them."""
        known = self._actions.get(env, {})
        return [action for action in (wanted or known) if action in known]


OptionsT = TypeVar("OptionsT", bound=InsertOptions)


class Inserting(Augmenter[OptionsT]):
    """Inserts actions before some of the moves, drawn anew for each copy."""

    def __init__(self, options: OptionsT) -> None:
        super().__init__(options)
        self._pool = Pool()

    def note(self, episode: Trajectory) -> None:
        """Remember the actions that the environment understands."""
        self._pool.note(episode)

    def augment(self, episode: Trajectory) -> Iterator[list[Move]]:
        """Yield copies of the moves with others inserted."""
        moves = moves_of(episode)
        known = self._pool.of(episode.task.env, self.options.actions)
        for copy in range(self.options.copies):
            draw, chosen = places(moves, self.options, copy, episode)
            longer: list[Move] = []
            for place, move in enumerate(moves):
                others = [one for one in known if one != move.action]
                longer += self.instead(move, draw.choice(others)) if place in chosen and others else [move]
            if len(longer) > len(moves):
                yield longer

    @abstractmethod
    def instead(self, move: Move, other: str) -> list[Move]:
        """Return the moves to make in place of a move, given another action that the environment understands."""


def moves_of(episode: Trajectory) -> list[Move]:
    """Return the moves of an episode, without replies that had no action."""
    return [move for turn in episode.turns if (move := move_of(turn)) is not None]


def places(
    moves: Sequence[Move], options: InsertOptions, copy: int, episode: Trajectory
) -> tuple[random.Random, set[int]]:
    """Return the random generator for a copy of an episode, and the moves before which something is inserted."""
    draw = random.Random(f"{options.seed}/{episode.trajectory_id}/{copy}")
    return draw, set(draw.sample(range(len(moves)), min(options.turns, len(moves))))
