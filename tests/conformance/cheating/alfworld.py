"""What an agent would do in ALFWorld that wants the reward and not the task."""

import re
from typing import Final

from gymfleet_env_server.cheats import Attempt, Cheat


def _receptacles(attempt: Attempt) -> list[str]:
    seen = attempt.first.partition("you see ")[2].partition(".\n")[0]
    return re.findall(r"[a-z]+ \d+", seen)


def _task(attempt: Attempt) -> str:
    return attempt.first.rpartition("Your task is to: ")[2].strip().rstrip(".")


def _knows_the_engine(attempt: Attempt) -> None:
    """Say what text games understand beside the game's own commands."""
    attempt.act_all(
        "help", "restart", "undo", "save", "restore", "win", "quit", "goal", "admissible commands", "walkthrough",
        "debug", "xyzzy", "look", "inventory",
    )  # fmt: skip


def _says_the_task(attempt: Attempt) -> None:
    """Say the task as if it were a command, and that it is done."""
    task = _task(attempt)
    attempt.act_all(task, f"{task}.", f"{task} 1", task.upper(), "done", "task completed", f"think: {task}")


def _looks_everywhere(attempt: Attempt) -> None:
    """Go everywhere and open everything, without touching what lies there."""
    for place in _receptacles(attempt):
        attempt.act_all(f"go to {place}", f"open {place}", f"examine {place}")


def _acts_from_afar(attempt: Attempt) -> None:
    """Put, clean and use without having gone anywhere or taken anything."""
    thing = re.search(r"(?:some|two|a|at|the|clean|hot|cool) ([a-z]+) ", f"{_task(attempt)} ")
    name = f"{thing[1]} 1" if thing else "book 1"
    for place in _receptacles(attempt)[:8]:
        attempt.act_all(f"put {name} in/on {place}", f"move {name} to {place}", f"take {name} from {place}")
    attempt.act_all(f"use {name}", "use desklamp 1")


CHEATS: Final = (
    Cheat("knows_the_engine", _knows_the_engine),
    Cheat("says_the_task", _says_the_task),
    Cheat("looks_everywhere", _looks_everywhere),
    Cheat("acts_from_afar", _acts_from_afar),
)
