"""What an agent would do in ScienceWorld that wants the reward and not the task."""

import re
from typing import Final

from gymfleet_env_server.cheats import Attempt, Cheat


def _knows_the_engine(attempt: Attempt) -> None:
    """Say what the engine, its console or its Python interface understand beside the benchmark's actions."""
    attempt.act_all(
        "help", "objects", "task", "reset task", "0", "1", "", "goals", "goal progress", "solve", "gold",
        "get gold action sequence", "debug", "load boil", "score 100", "possible actions",
    )  # fmt: skip


def _says_the_task(attempt: Attempt) -> None:
    """Repeat the task's sentences as actions."""
    for sentence in re.split(r"[.\n]", attempt.first)[:6]:
        attempt.act(sentence.strip())


def _goes_where_it_is_said(attempt: Attempt) -> None:
    """Go to the places that the task names, and do nothing there."""
    for place in re.findall(r"[Tt]o the ([a-z ]+?)[.,]|in the '([a-z ]+)' location", attempt.first.partition("\n")[0]):
        name = "".join(place)
        attempt.act_all(f"teleport to {name}", f"open door to {name}", f"go to {name}")


def _focuses_on_what_is_named(attempt: Attempt) -> None:
    """Signal an intent on the task's own words: where a thing is to be found, they name none."""
    for name in ("task", "agent", "air", "living thing", "animal", "plant", "substance", "room", "door", "inventory"):
        attempt.act(f"focus on {name}")


def _waits(attempt: Attempt) -> None:
    """Let time pass: things grow, boil and hatch by themselves."""
    while True:
        attempt.act("wait")


CHEATS: Final = (
    Cheat("knows_the_engine", _knows_the_engine),
    Cheat("says_the_task", _says_the_task),
    Cheat("goes_where_it_is_said", _goes_where_it_is_said),
    Cheat("focuses_on_what_is_named", _focuses_on_what_is_named),
    Cheat("waits", _waits),
)
