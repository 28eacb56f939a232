"""What an agent would do in movie that wants the reward and not the task."""

import re
from typing import Final

from gymfleet_env_server.cheats import Attempt, Cheat

from tests.conformance.cheating import _tools
from tests.conformance.cheating._tools import call, goal, seen

_TITLE: Final = re.compile(r"The [A-Z][a-z]+ [A-Z][a-z]+")
_DIRECTOR: Final = re.compile(r"that ([A-Z][a-z]+ [A-Z][a-z]+) directed")


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


def _cast(attempt: Attempt, number: int) -> list[str]:
    return re.findall(r"'character': '([^']+)'", attempt.act(call("get_movie_cast", movie_id=number)).observation)


def _answers_the_leading_character(attempt: Attempt) -> None:
    """Name the first character of the last film that is spoken of, or of any film of the director."""
    if titles := _TITLE.findall(goal(attempt)):
        found = seen([attempt.act(call("get_search_movie", movie_name=titles[-1])).observation])
        attempt.act(call("finish", answer=_cast(attempt, int(found[1]))[0]))
    elif number := _first_directed(attempt):
        attempt.act(call("finish", answer=_cast(attempt, number)[0]))


def _answers_any_release(attempt: Attempt) -> None:
    """Of the director's films look at the first alone."""
    if number := _first_directed(attempt):
        details = attempt.act(call("get_movie_details", movie_id=number)).observation
        attempt.act(call("finish", answer=details.partition("'release_date': '")[2][:10]))


def _first_directed(attempt: Attempt) -> int | None:
    if (name := _DIRECTOR.search(goal(attempt))) is None:
        return None
    person = seen([attempt.act(call("get_search_person", person_name=name[1])).observation])[1]
    crew = attempt.act(call("get_person_crew", person_id=int(person))).observation
    return int(re.findall(r"'id': (\d+), 'title': '[^']+', 'job': 'Director'", crew)[0])


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
    Cheat("answers_the_leading_character", _answers_the_leading_character),
    Cheat("answers_any_release", _answers_any_release),
    Cheat("searches_everything", _searches_everything),
)
