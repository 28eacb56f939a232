"""The kinds of generated questions: each makes the calls of its plan and reads the answer from their results."""

import random
from collections import Counter
from typing import Any

from gymfleet_envs.agentgym_tools.base import Move
from gymfleet_envs.movie.catalogue import LISTED, Catalogue, Film
from gymfleet_envs.movie.draw import draw_catalogue

_NUMBER = "Please answer me with a number."
_STRING = "Please answer me with a string."
_DAY = "Please answer me in the YYYY-MM-DD format."
_LIST = "Please answer me with a list of strings."


class Draft:
    """A question in the making. `call` makes a call and adds it to the plan."""

    def __init__(self, rng: random.Random, catalogue: Catalogue) -> None:
        self.rng = rng
        self.catalogue = catalogue
        self.films = rng.sample(catalogue.films, len(catalogue.films))
        self.goal = ""
        self.answer: Any = None
        self.moves: list[Move] = []

    def call(self, thought: str, tool: str, **arguments: Any) -> Any:
        """Make a call and return its result."""
        self.moves.append(Move.of(thought, tool, **arguments))
        return self.catalogue.use(tool, arguments)

    def search(self, film: Film) -> str:
        """Search for a film; return its id."""
        found = self.call(f"I need the id of {film.title}.", "get_search_movie", movie_name=film.title)
        return str(found[0]["id"])

    def of_film(self, film: Film, tool: str) -> Any:
        """Search for a film, then call a tool with its id."""
        return self.call("I ask for what I need of it.", tool, movie_id=self.search(film))

    def search_person(self, name: str) -> str:
        """Search for a person; return the id."""
        return str(self.call(f"I need the id of {name}.", "get_search_person", person_name=name)[0]["id"])


def release_date(draft: Draft) -> None:
    """Ask when a film was released."""
    draft.goal = f"When was the movie {draft.films[0].title} released? {_DAY}"
    draft.answer = draft.of_film(draft.films[0], "get_movie_details")["release_date"]


def revenue(draft: Draft) -> None:
    """Ask what a film earned."""
    draft.goal = f"What is the revenue of the movie {draft.films[0].title}? {_NUMBER}"
    draft.answer = draft.of_film(draft.films[0], "get_movie_details")["revenue"]


def character(draft: Draft) -> None:
    """Ask which character a person played in a film."""
    film = draft.films[0]
    number, _ = draft.rng.choice(film.cast)
    name = draft.catalogue.person(number).name
    draft.goal = f"What character did {name} play in {film.title}? {_STRING}"
    cast = draft.of_film(film, "get_movie_cast")["cast"]
    draft.answer = next(part["character"] for part in cast if part["name"] == name)


def keywords(draft: Draft) -> None:
    """Ask for a film's keywords."""
    draft.goal = f"What are the keywords of the movie {draft.films[0].title}? {_LIST}"
    draft.answer = sorted(draft.of_film(draft.films[0], "get_movie_keywords")["keywords"])


def instagram(draft: Draft) -> None:
    """Ask for a person's Instagram id."""
    name = draft.rng.choice(draft.catalogue.people).name
    draft.goal = f"What is the Instagram id of {name}? {_STRING}"
    found = draft.call("I ask for it.", "get_person_external_ids", person_id=draft.search_person(name))
    draft.answer = found["instagram_id"]


def _director(draft: Draft, film: Film) -> int:
    crew = draft.of_film(film, "get_movie_crew")["crew"]
    number: int = next(part["id"] for part in crew if part["job"] == "Director")
    return number


def birthday_of_director(draft: Draft) -> None:
    """Ask when the director of a film was born."""
    draft.goal = f"When was the director of {draft.films[0].title} born? {_DAY}"
    number = _director(draft, draft.films[0])
    draft.answer = draft.call("I look the director up.", "get_person_details", person_id=str(number))["birthday"]


def difference(draft: Draft) -> None:
    """Compare the revenues of two films."""
    one, other = draft.films[:2]
    draft.goal = (
        f"How much higher is the revenue of {one.title} than that of {other.title}? A negative number means lower. "
        f"{_NUMBER}"
    )
    first, second = (draft.of_film(film, "get_movie_details")["revenue"] for film in (one, other))
    draft.answer = first - second


def other_role(draft: Draft) -> None:
    """Ask which character the player of a character plays in another film."""
    pairs = [
        (film, role, other)
        for film in draft.films
        for number, role in film.cast
        for other in draft.films
        if other != film and any(number == player for player, _ in other.cast)
    ]
    film, role, other = draft.rng.choice(pairs)
    draft.goal = f"Which character did the person who played {role} in {film.title} play in {other.title}? {_STRING}"
    cast = draft.of_film(film, "get_movie_cast")["cast"]
    number = next(part["id"] for part in cast if part["character"] == role)
    played = draft.call("I look up where else this person plays.", "get_person_cast", person_id=str(number))["cast"]
    draft.answer = next(part["character"] for part in played if part["id"] == other.id)


def in_both(draft: Draft) -> None:
    """Ask who plays in both of two films."""
    pairs = [
        (one, other)
        for one in draft.films
        for other in draft.films
        if one != other and {number for number, _ in one.cast} & {number for number, _ in other.cast}
    ]
    one, other = draft.rng.choice(pairs)
    draft.goal = f"Who plays in both {one.title} and {other.title}? {_LIST}"
    first, second = ({part["name"] for part in draft.of_film(film, "get_movie_cast")["cast"]} for film in (one, other))
    draft.answer = sorted(first & second)


def _directors(catalogue: Catalogue) -> list[int]:
    """Return the director of each film, without those who have more roles in crews than a search lists."""
    roles = Counter(number for film in catalogue.films for number, _ in film.crew)
    return [
        number for film in catalogue.films for number, job in film.crew if job == "Director" and roles[number] <= LISTED
    ]


def _directed(draft: Draft) -> tuple[str, list[tuple[int, str, Any]]]:
    """Draw a director, of three to six films if possible; return the name, and the films with details."""
    while not (directors := _directors(draft.catalogue)):
        draft.catalogue = draw_catalogue(draft.rng)
    few = sorted({number for number in directors if 3 <= directors.count(number) <= 6}) or sorted(set(directors))
    name = draft.catalogue.person(draft.rng.choice(few)).name
    crew = draft.call("I look up the films.", "get_person_crew", person_id=draft.search_person(name))["crew"]
    films = {part["id"]: part["title"] for part in crew if part["job"] == "Director"}
    return name, [
        (number, title, draft.call(f"I ask for the details of {title}.", "get_movie_details", movie_id=str(number)))
        for number, title in films.items()
    ]


def total_revenue(draft: Draft) -> None:
    """Ask what all films of a director earned."""
    name, films = _directed(draft)
    draft.goal = f"What is the total revenue of the movies that {name} directed? {_NUMBER}"
    draft.answer = sum(details["revenue"] for _, _, details in films)


def lead_of_most_expensive(draft: Draft) -> None:
    """Ask who leads the cast of a director's most expensive film."""
    name, films = _directed(draft)
    draft.goal = (
        f"Of the movies that {name} directed, take the one with the highest budget. Which character is listed first in "
        f"its cast? {_STRING}"
    )
    number, _, _ = max(films, key=lambda film: film[2]["budget"])
    cast = draft.call("I look at the cast of that film.", "get_movie_cast", movie_id=str(number))["cast"]
    draft.answer = cast[0]["character"]


def first_release(draft: Draft) -> None:
    """Ask when a director's first film was released."""
    name, films = _directed(draft)
    draft.goal = f"When was the first movie that {name} directed released? {_DAY}"
    draft.answer = min(details["release_date"] for _, _, details in films)
