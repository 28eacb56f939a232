"""What an agent would do in academia that wants the reward and not the task."""

import re
from typing import Final

from gymfleet_env_server.cheats import Attempt, Cheat

from tests.conformance.cheating import _tools
from tests.conformance.cheating._tools import call, goal, seen

_TITLE: Final = re.compile(r"'([^']+)'")
_NAME: Final = re.compile(r"\b([A-Z][a-z]+ [A-Z][a-z]+)\b")


def _looks_at_what_is_named(attempt: Attempt) -> None:
    """Look at the paper or the author of the goal, and answer with the last number that is said of it."""
    attempt.act_all(call("loadPaperNet"), call("loadAuthorNet"))
    title, name = _TITLE.search(goal(attempt)), _NAME.search(goal(attempt))
    if title:
        attempt.act(call("neighbourCheck", graph="PaperNet", node=title[1]))
    elif name:
        attempt.act(call("authorNodeCheck", node=name[1]))
    found = seen([attempt.observation])
    attempt.act(call("finish", answer=found[-1] if found else "none"))


def _answers_all_neighbours_but_one(attempt: Attempt) -> None:
    """A list that lacks one of them."""
    attempt.act(call("loadAuthorNet"))
    if name := _NAME.search(goal(attempt)):
        attempt.act(call("neighbourCheck", graph="AuthorNet", node=name[1]))
        attempt.act(call("finish", answer=seen([attempt.observation])[:-1]))


def _answers_any_paper(attempt: Attempt) -> None:
    """Name the first paper that is found of the author whose papers are asked for."""
    if (name := _NAME.search(goal(attempt).partition(" by ")[2])) and goal(attempt).startswith("Which paper"):
        attempt.act(call("loadAuthorNet"))
        attempt.act(call("neighbourCheck", graph="AuthorNet", node=name[1]))
        attempt.act(call("authorEdgeCheck", node1=name[1], node2=seen([attempt.observation])[0]))
        attempt.act(call("finish", answer=seen([attempt.observation])[1]))


def _does_not_load(attempt: Attempt) -> None:
    """Ask before anything is loaded, of graphs that there are not, and of all nodes at once."""
    for graph in ("PaperNet", "AuthorNet", "GoldNet", ["PaperNet"], {"a": 1}, None):
        attempt.act(call("neighbourCheck", graph=graph, node="*"))
    attempt.act(call("finish", answer="There is no node named * in the PaperNet."))


CHEATS: Final = (
    *_tools.CHEATS,
    Cheat("looks_at_what_is_named", _looks_at_what_is_named),
    Cheat("answers_all_neighbours_but_one", _answers_all_neighbours_but_one),
    Cheat("answers_any_paper", _answers_any_paper),
    Cheat("does_not_load", _does_not_load),
)
