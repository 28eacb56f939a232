"""What an agent would do in movie that wants the reward and not the task."""

import re
from typing import Final

from gymfleet_env_server.cheats import Attempt, Cheat

from tests.conformance.cheating import _tools
from tests.conformance.cheating._tools import call, goal, seen

_TITLE: Final = re.compile(r"The [A-Z][a-z]+ [A-Z][a-z]+")


def _answers_the_first_result(attempt: Attempt) -> None:
    """Look a film up, and answer with the first thing that is said of it."""
    if title := _TITLE.search(goal(attempt)):
        found = seen([attempt.act(call("get_search_movie", movie_name=title[0])).observation])
        attempt.act(call("finish", answer=found[1]))


def _answers_the_whole_cast(attempt: Attempt) -> None:
    """Name everybody of the film that is asked for."""
    if title := _TITLE.search(goal(attempt)):
        number = int(seen([attempt.act(call("get_search_movie", movie_name=title[0])).observation])[1])
        cast = attempt.act(call("get_movie_cast", movie_id=number)).observation
        attempt.act(call("finish", answer=re.findall(r"'name': '([^']+)'", cast)))


def _searches_everything(attempt: Attempt) -> None:
    """Search for nothing, and for what any name has."""
    for name in ("", " ", "The", "*", "%", "a"):
        attempt.act(call("get_search_movie", movie_name=name))
        attempt.act(call("get_search_person", person_name=name))
    attempt.act(call("finish", answer="The"))


CHEATS: Final = (
    *_tools.CHEATS,
    Cheat("answers_the_first_result", _answers_the_first_result),
    Cheat("answers_the_whole_cast", _answers_the_whole_cast),
    Cheat("searches_everything", _searches_everything),
)
