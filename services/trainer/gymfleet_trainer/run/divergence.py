"""The check that updates train: a line for each update that did not, and an end if that continues."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

import structlog

from gymfleet_trainer.errors import Diverged
from gymfleet_trainer.learning.actor_critic import VALUE_SIZE
from gymfleet_trainer.run.groups import Group
from gymfleet_trainer.run.state import RunState

log = structlog.get_logger()

_FAR: Final = 10.0
"""A critic has diverged if its values are this many times as large as the largest return, taken as at least 1."""


class DivergenceWatch:
    """Watch the updates of a stage, in one process: updates from before a restart are forgotten."""

    def __init__(self, state: RunState, table: str, max_diverged_steps: int) -> None:
        """Take the stage's table, with which the lines name the options to change."""
        self._state = state
        self._table = table
        self._max_diverged_steps = max_diverged_steps
        self._in_a_row = 0

    def look_at(self, update: dict[str, float], groups: list[Group]) -> None:
        """Warn of faults in the update of a step.

        Raises:
            Diverged: there were faults in `max_diverged_steps` steps in a row.
        """
        refused = self._refused(update)
        reason = self._far_off(update, groups) or refused  # what a critic that is far off says is the cause of both
        self._in_a_row = self._in_a_row + 1 if reason else 0
        if self._in_a_row >= self._max_diverged_steps:
            raise Diverged(
                f"{self._table}: nothing was learned in {self._in_a_row} steps in a row: {reason}; "
                "max_diverged_steps says how many there may be"
            )
        has_critic = "value_grad_norm" in update
        if not update["num_updates"] and not has_critic:
            self._state.count("steps_without_signal")
            log.warning(
                "step.without_signal", step=self._state.step,
                reason="no episode of the batch has an advantage or makes a pair: all returns of a group are equal",
            )  # fmt: skip

    def _refused(self, update: dict[str, float]) -> str:
        """Warn of updates whose gradients were not finite; return why the step counts as diverged."""
        if not (num_refused := int(update["num_nonfinite"])):
            return ""
        self._state.count("updates_refused", num_refused)
        log.warning(
            "update.refused", step=self._state.step, updates=num_refused,
            reason="their gradients were not finite; the weights are as they were",
        )  # fmt: skip
        was_any_made = update["num_updates"] and update["grad_norm"] > 0
        return "" if was_any_made else f"the gradients were not finite: lower {self._table}.optimizer.learning_rate"

    def _far_off(self, update: dict[str, float], groups: list[Group]) -> str:
        """Warn of a critic that is far from any return; return why the step counts as diverged."""
        if VALUE_SIZE not in update:
            return ""
        largest, size = max([1.0, *map(abs, _returns(groups))]), update[VALUE_SIZE]
        if size <= _FAR * largest:
            return ""
        self._state.count("steps_with_diverged_critic")
        advice = f"lower {self._table}.critic.optimizer.learning_rate"
        log.warning(
            "critic.diverged", step=self._state.step, value_size=round(size, 4), largest_return=largest, advice=advice
        )
        return f"the critic's values are {size:.4g} on average, and no return is above {largest:g}: {advice}"


def _returns(groups: Sequence[Group]) -> Iterator[float]:
    """Yield the return from each turn of each episode on, without a discount.

    It may be larger than the total reward: with `allocation = "discounted"`, each turn has up to all of that.
    """
    for group in groups:
        for reward in (scored.reward for scored in group.trajectories):
            if reward is not None:
                yield from accumulate(sum(row) for row in reversed(reward.token_rewards))
