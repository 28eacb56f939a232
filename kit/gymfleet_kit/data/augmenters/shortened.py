"""Episodes without what came to nothing."""

from collections.abc import Iterator, Sequence

from gymfleet_contracts.rollout import Move
from gymfleet_contracts.trajectory import Trajectory, Turn
from pydantic import PositiveInt

from gymfleet_kit.data.augmenter import Augmenter, AugmenterOptions, move_of


class ShortenedOptions(AugmenterOptions):
    """What counts as nothing."""

    loops: bool = True
    """Leave out also what led back to an observation that was seen before."""
    copies: PositiveInt = 4
    """Proposals per episode, at most."""


class Shortened(Augmenter[ShortenedOptions]):
    """Leave out replies without an action, actions that were not understood, and ways that led back.

    An observation that is seen again need not mean the same state: beside the episode without any loop, each loop is
    left out alone, the longest first, and the replay says which was one.
    """

    Options = ShortenedOptions

    def augment(self, episode: Trajectory) -> Iterator[list[Move]]:
        """Yield the moves that are left, each list once, if any were left out."""
        understood = [turn for turn in episode.turns if turn.action_valid and turn.action is not None]
        proposals = [understood]
        if self.options.loops:
            proposals += [_without_loops(understood), *_without_each_loop(understood)]
        given: list[list[Move]] = []
        for turns in proposals:
            moves = [move for turn in turns if (move := move_of(turn)) is not None]
            if 0 < len(moves) < len(episode.turns) and moves not in given and len(given) < self.options.copies:
                given.append(moves)
                yield moves


def _without_loops(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns without any between two equal observations, as a walk without its loops."""
    left: list[Turn] = []
    for turn in turns:
        again = next((place for place, one in enumerate(left) if one.observation == turn.observation), len(left))
        left = [*left[:again], turn]
    return left


def _without_each_loop(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Return the turns without one of the loops, for each, the longest first."""
    last: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    for place, turn in enumerate(turns):
        if turn.observation in last:
            loops.append((last[turn.observation], place))
        last[turn.observation] = place
    loops.sort(key=lambda loop: (loop[0] - loop[1], loop))
    return [[*turns[:begin], *turns[end:]] for begin, end in loops]
