"""What an agent would do in BabyAI that wants the reward and not the task."""

import re
from typing import Final

from gymfleet_env_server.cheats import Attempt, Cheat


def _asks_for_actions(attempt: Attempt) -> None:
    """Say `check` for as long as there are turns: it is no step of the engine's."""
    while True:
        attempt.act("check available actions")


def _says_the_goal(attempt: Attempt) -> None:
    """Repeat the goal's words as actions, with numbers and without, and the words of engines that end an episode."""
    goal = attempt.first.partition("Your goal: ")[2].partition("\n")[0]
    things = re.findall(r"(?:red|green|blue|purple|yellow|grey) (?:ball|box|key|door)", goal)
    attempt.act_all(goal, f"{goal} 1", goal.replace("the ", "").replace("a ", ""), "done", "finish", "success", "noop")
    attempt.act_all(*(f"{verb} {thing} 0" for thing in things[:2] for verb in ("go to", "pickup")))


def _toggles_in_place(attempt: Attempt) -> None:
    """Open, close and drop without walking anywhere."""
    while True:
        attempt.act_all("toggle", "drop", "turn left")


CHEATS: Final = (
    Cheat("asks_for_actions", _asks_for_actions),
    Cheat("says_the_goal", _says_the_goal),
    Cheat("toggles_in_place", _toggles_in_place),
)
