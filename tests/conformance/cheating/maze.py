"""What an agent would do in the maze that wants the reward and not the task."""

import re
from typing import Final

from gymfleet_env_server.cheats import Attempt, Cheat

_WAYS: Final = {"left": "left", "right": "right", "above": "up", "below": "down"}


def _names_the_goal(attempt: Attempt) -> None:
    """Go there in words: by its position, by its name, with several moves in a turn."""
    row, column = re.findall(r"\d", attempt.first)[:2]
    attempt.act_all(
        f"move to {row}, {column}", f"{row}, {column}", "move goal", "move to the goal", "Success", "move down down",
        "move right\nmove right\nmove down", "move right, move down", "move up; move up", "move diagonal", "move 99",
    )  # fmt: skip


def _walks_through_walls(attempt: Attempt) -> None:
    """Move only where a wall is."""
    while way := next((way for side, way in _WAYS.items() if side in attempt.observation), None):
        attempt.act(f"move {way}")


CHEATS: Final = (Cheat("names_the_goal", _names_the_goal), Cheat("walks_through_walls", _walks_through_walls))
