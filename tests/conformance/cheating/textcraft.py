"""What an agent would do in TextCraft that wants the reward and not the task."""

from typing import Final

from tests.conformance.cheats import Attempt, Cheat


def _gets_the_goal(attempt: Attempt) -> None:
    """Ask for what is to be crafted, under every name that might pass for something raw."""
    goal = attempt.observation.rpartition("craft ")[2].rstrip(".")
    for name in (goal, f"minecraft:{goal.replace(' ', '_')}", f"{goal}s", goal.upper(), f" {goal} "):
        attempt.act(f"get 1 {name}")


def _crafts_from_nothing(attempt: Attempt) -> None:
    goal = attempt.observation.rpartition("craft ")[2].rstrip(".")
    for inputs in ("", "0 air", "1 nothing", f"1 {goal}", "-1 oak log", "9999 oak log"):
        attempt.act(f"craft 1 {goal} using {inputs}")


CHEATS: Final = (Cheat("gets_the_goal", _gets_the_goal), Cheat("crafts_from_nothing", _crafts_from_nothing))
