"""Episodes that go wrong for a turn, and recover."""

from collections.abc import Iterator
from typing import Annotated, Final

from gymfleet_contracts.rollout import Move
from gymfleet_contracts.trajectory import AGENT, RoleName, Trajectory
from pydantic import Field

from gymfleet_kit.data.augmenter import Augmenter
from gymfleet_kit.data.augmenters._pool import InsertOptions, Pool, moves_of, places

MISTAKE: Final = "mistake"


class RecoveryOptions(InsertOptions):
    """What is done wrong, and how it is noticed."""

    notice: Annotated[str, Field(max_length=1000)] = "That was the wrong action, so I try another one."
    """Stands before the thought that comes after the wrong action."""
    role: RoleName = MISTAKE
    """Of the wrong turns: with `roles = ["agent"]` a stage `sft` learns to recover, and not to go wrong."""


class Recovery(Augmenter[RecoveryOptions]):
    """Insert wrong actions, each with the thought of the right one, and say so before going on."""

    Options = RecoveryOptions

    def __init__(self, options: RecoveryOptions) -> None:
        super().__init__(options)
        self._pool = Pool()

    def note(self, episode: Trajectory) -> None:
        """Remember what the environment understands."""
        self._pool.note(episode)

    def augment(self, episode: Trajectory) -> Iterator[list[Move]]:
        """Yield copies of the moves with wrong ones among them, drawn anew for each."""
        moves = moves_of(episode)
        for copy in range(self.options.copies):
            draw, chosen = places(moves, self.options, copy, episode)
            longer: list[Move] = []
            for place, move in enumerate(moves):
                others = [one for one in self._pool.of(episode.task.env, self.options.actions) if one != move.action]
                if place in chosen and others and move.role == AGENT:
                    longer.append(Move(thought=move.thought, action=draw.choice(others), role=self.options.role))
                    longer.append(Move(thought=f"{self.options.notice} {move.thought}".strip(), action=move.action))
                else:
                    longer.append(move)
            if len(longer) > len(moves):
                yield longer
