"""Episodes that go wrong for a turn, and recover."""

from typing import Annotated, Final

from gymfleet_contracts.rollout import Move
from gymfleet_contracts.trajectory import AGENT, RoleName
from pydantic import Field

from gymfleet_kit.data.augmenters._pool import Inserting, InsertOptions

MISTAKE: Final = "mistake"


class RecoveryOptions(InsertOptions):
    """The wrong actions, and how they are noticed."""

    notice: Annotated[str, Field(max_length=1000)] = "That was the wrong action, so I try another one."
    """Text put before the thought that follows the wrong action."""
    role: RoleName = MISTAKE
    """Role of the wrong turns: with `roles = ["agent"]` a stage `sft` learns to recover, but not to go wrong."""


class Recovery(Inserting[RecoveryOptions]):
    """Insert wrong actions, each with the thought of the right one, and admit them before going on."""

    Options = RecoveryOptions

    def instead(self, move: Move, other: str) -> list[Move]:
        """See `Inserting`. An earlier mistake stays one."""
        if move.role != AGENT:
            return [move]
        return [
            Move(thought=move.thought, action=other, role=self.options.role),
            Move(thought=f"{self.options.notice} {move.thought}".strip(), action=move.action),
        ]
