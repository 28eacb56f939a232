"""Episodes without the turns that led nowhere."""

from collections.abc import Iterator, Sequence

from gymfleet_contracts.rollout import Move
from gymfleet_contracts.trajectory import Trajectory, Turn
from pydantic import PositiveInt

from gymfleet_kit.data.augmenter import Augmenter, AugmenterOptions, move_of


class ShortenedOptions(AugmenterOptions):
    """Which turns count as leading nowhere."""

    loops: bool = True
    """Also leave out turns that led back to an earlier observation."""
    copies: PositiveInt = 4
    """The most proposals per episode."""


class Shortened(Augmenter[ShortenedOptions]):
    """Leave out replies without an action, actions that were not understood, and loops.

    A repeated observation need not mean the same state: in addition to the episode without any loop, each loop is left
    out alone, the longest first, and the replay shows which was really one.
    """

    Options = ShortenedOptions

    def augment(self, episode: Trajectory) -> Iterator[list[Move]]:
        """Yield the remaining moves, each list once, if any were left out."""
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
    """Return the turns without those between two equal observations, like a walk without its loops."""
    left: list[Turn] = []
    for turn in turns:
        again = next((place for place, one in enumerate(left) if one.observation == turn.observation), len(left))
        left = [*left[:again], turn]
    return left


def _without_each_loop(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Return, for each loop, the turns without it, the longest loop first."""
    last: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    for place, turn in enumerate(turns):
        if turn.observation in last:
            loops.append((last[turn.observation], place))
        last[turn.observation] = place
    loops.sort(key=lambda loop: (loop[0] - loop[1], loop))
    return [[*turns[:begin], *turns[end:]] for begin, end in loops]
