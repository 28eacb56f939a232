"""The engine's own solution, one action at a time."""

import re
from collections.abc import Sequence
from typing import Final

from gymfleet_contracts.session import ExpertMove

from gymfleet_envs.sciworld.tasks import SciTask

_GO: Final = re.compile(r"go to (.+)")
_DOOR: Final = re.compile(r"(?:open|close) door to .+")
_THOUGHTS: Final[Sequence[tuple[str, str]]] = (
    ("teleport to ", "What I need is in another place, {what}."),
    ("go to ", "My way leads to {what}."),
    ("open door to ", "My way leads through the door to {what}."),
    ("look around", "I see what is here."),
    ("focus on ", "The task is about {what}, so I say so."),
    ("pick up ", "I need {what} with me."),
    ("put down ", "I need {what} here, not in my hands."),
    ("move ", "Next, I move {what}."),
    ("pour ", "Next, I pour {what}."),
    ("mix ", "All is in {what}: I mix it."),
    ("use ", "Now I use {what}."),
    ("read ", "I read {what}, to know what to do."),
    ("open ", "I need what is in {what}."),
    ("close ", "I close {what}, so that it works."),
    ("activate ", "I turn on {what}."),
    ("deactivate ", "I turn off {what}."),
    ("connect ", "The circuit needs a connection: {what}."),
    ("wait", "This takes time, so I wait."),
    ("examine ", "I look how {what} is by now."),
    ("look ", "I look closely."),
)


class GoldPath:
    """Follows the solution as long as the episode keeps to it.

    Another action that changes nothing (looking, or one that was not understood) does no harm; after any other, the
    solution no longer holds, and there is no move.
    """

    def __init__(self, task: SciTask, gold: Sequence[str]) -> None:
        self._gold = shortened(gold) if task.task.startswith("lifespan-") and _teleports(task) else tuple(gold)
        self._place = 0
        self._lost = False

    def follow(self, action: str, *, harmless: bool) -> None:
        """Take note of an action."""
        if not self._lost and self._place < len(self._gold) and action == self._gold[self._place]:
            self._place += 1
        elif not harmless:
            self._lost = True

    def next_move(self) -> ExpertMove | None:
        """Return the solution's next action; None if the episode has left the solution, and at its end."""
        if self._lost or self._place >= len(self._gold):
            return None
        action = self._gold[self._place]
        return ExpertMove(thought=_thought(action), action=action)


def shortened(gold: Sequence[str]) -> tuple[str, ...]:
    """Return the solution with one teleport in place of each walk through doors."""
    actions: list[str] = []
    goal = ""
    for action in gold:
        if match := _GO.fullmatch(action):
            goal = match[1]
        elif not _DOOR.fullmatch(action):
            if goal:
                actions.append(f"teleport to {goal}")
                goal = ""
            if action != "look around":
                actions.append(action)
    return tuple(actions)


def _teleports(task: SciTask) -> bool:
    return task.simplifications == "easy" or "teleportAction" in task.simplifications


def _thought(action: str) -> str:
    for start, thought in _THOUGHTS:
        if action.startswith(start):
            return thought.format(what=_plain(action.removeprefix(start)))
    return "That is the next step."


def _plain(what: str) -> str:
    """Return an object's name on one line, cut to what fits a sentence."""
    return " ".join(what.split())[:120]
