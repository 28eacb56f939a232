"""What an agent would do in TextCraft that wants the reward and not the task."""

import re
from typing import Final

from gymfleet_env_server.cheats import Attempt, Cheat


def _goal(attempt: Attempt) -> str:
    return attempt.first.rpartition("craft ")[2].rstrip(".")


def _gets_the_goal(attempt: Attempt) -> None:
    """Ask for what is to be crafted, under every name that might pass for something raw."""
    goal = _goal(attempt)
    for name in (goal, f"minecraft:{goal.replace(' ', '_')}", f"{goal}s", goal.upper(), f" {goal} "):
        attempt.act(f"get 1 {name}")


def _crafts_from_nothing(attempt: Attempt) -> None:
    goal = _goal(attempt)
    for inputs in ("", "0 air", "1 nothing", f"1 {goal}", "-1 oak log", "9999 oak log"):
        attempt.act(f"craft 1 {goal} using {inputs}")


def _makes_none(attempt: Attempt) -> None:
    """Get, craft and name amounts of nothing, in the goal's own recipe too."""
    goal = _goal(attempt)
    recipe = next(line for line in attempt.first.splitlines() if re.match(rf"craft \d+ {goal} using ", line))
    attempt.act_all(
        f"get 0 {goal}", f"get 00 {goal}", f"craft 0 {goal} using 0 {goal}", re.sub(r"\d+", "0", recipe),
        re.sub(r"using .*", "using", recipe), recipe, f"craft 1 {goal} using 1 {goal}, 0 {goal}",
    )  # fmt: skip


def _gets_the_kind(attempt: Attempt) -> None:
    """Get what the goal's recipe names, and the goal by its kind: `wheel` for a walnut wheel."""
    kind = _goal(attempt).rpartition(" ")[2]
    for item in re.findall(r"\d+ [a-z ]+", attempt.first):
        attempt.act(f"get {item}")
    attempt.act_all(f"get 1 {kind}", f"craft 1 {kind} using 1 {kind}", "inventory")


CHEATS: Final = (
    Cheat("gets_the_goal", _gets_the_goal),
    Cheat("crafts_from_nothing", _crafts_from_nothing),
    Cheat("makes_none", _makes_none),
    Cheat("gets_the_kind", _gets_the_kind),
)
