"""Episodes with turns that lead nowhere."""

from collections.abc import Iterator

from gymfleet_contracts.rollout import Move
from gymfleet_contracts.trajectory import Trajectory

from gymfleet_kit.data.augmenter import Augmenter
from gymfleet_kit.data.augmenters._pool import InsertOptions, Pool, moves_of, places


class DistractorOptions(InsertOptions):
    """What is inserted; `actions = ["look", "inventory"]` suits environments that have them."""

    thought: str = "I take a look at where I am."
    """What is thought of the action that is inserted."""


class Distractor(Augmenter[DistractorOptions]):
    """Insert actions that the environment understood elsewhere, then go on; the replay shows what they spoil."""

    Options = DistractorOptions

    def __init__(self, options: DistractorOptions) -> None:
        super().__init__(options)
        self._pool = Pool()

    def note(self, episode: Trajectory) -> None:
        """Remember what the environment understands."""
        self._pool.note(episode)

    def augment(self, episode: Trajectory) -> Iterator[list[Move]]:
        """Yield copies of the moves with others among them, drawn anew for each."""
        moves = moves_of(episode)
        for copy in range(self.options.copies):
            draw, chosen = places(moves, self.options, copy, episode)
            longer: list[Move] = []
            for place, move in enumerate(moves):
                others = [one for one in self._pool.of(episode.task.env, self.options.actions) if one != move.action]
                if place in chosen and others:
                    longer.append(Move(thought=self.options.thought, action=draw.choice(others)))
                longer.append(move)
            if len(longer) > len(moves):
                yield longer
