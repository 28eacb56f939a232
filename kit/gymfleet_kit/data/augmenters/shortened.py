"""Episodes without what came to nothing."""

from collections.abc import Iterator

from gymfleet_contracts.rollout import Move
from gymfleet_contracts.trajectory import Trajectory

from gymfleet_kit.data.augmenter import Augmenter, AugmenterOptions, move_of


class Shortened(Augmenter[AugmenterOptions]):
    """Leave out replies without an action, and actions that the environment did not understand."""

    def augment(self, episode: Trajectory) -> Iterator[list[Move]]:
        """Yield the moves that are left, if any were left out."""
        understood = [move_of(turn) for turn in episode.turns if turn.action_valid]
        moves = [move for move in understood if move is not None]
        if 0 < len(moves) < len(episode.turns):
            yield moves
