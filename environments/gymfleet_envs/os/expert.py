"""Plays a task's plan: its commands, then the answer that the last one printed."""

from collections.abc import Sequence

from gymfleet_contracts.session import ExpertMove

from gymfleet_envs.os.actions import bash
from gymfleet_envs.os.task import OsTask


def next_move(task: OsTask, printed: Sequence[str]) -> ExpertMove | None:
    """The move after these outputs; None for a task without a plan."""
    if len(printed) < len(task.plan):
        thought, command = task.plan[len(printed)]
        return ExpertMove(thought=thought, action=bash(command))
    if not task.plan:
        return None
    if task.chore:
        return ExpertMove(thought="All is done.", action="finish")
    answer = printed[-1].strip()
    return ExpertMove(thought=f"The answer is {answer}." if "\n" not in answer else "That is the answer.",
                      action=f"answer({answer})")  # fmt: skip
