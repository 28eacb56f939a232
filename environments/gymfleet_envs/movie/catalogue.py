"""A catalogue of films and people, and the answers of TMDB's services about it through AgentGym's tools."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from gymfleet_envs.agentgym_tools.base import Faulty, Refused, taken

LISTED: Final = 10
"""The most entries of a list of roles."""
_MAIN_JOBS: Final = ("Director", "Producer", "Writer")
_NOT_FOUND: Final = (
    '{"success":false,"status_code":34,"status_message":"The resource you requested could not be found."}'
)
NO_RESULT: Final = "IndexError(list index out of range)"
"""AgentGym's server takes the first result of a search, even if there is none."""
FoundT = TypeVar("FoundT")


@dataclass(frozen=True, slots=True)
class Person:
    """A person who plays, or works, in films."""

    id: int
    name: str
    birthday: str
    place_of_birth: str
    biography: str
    handle: str

    @property
    def external_ids(self) -> dict[str, Any]:
        """The person's names on other sites."""
        return {
            "imdb_id": f"nm{self.id * 17 % 10**7:07}",
            "facebook_id": self.handle.title(),
            "instagram_id": self.handle,
            "twitter_id": None,
        }


@dataclass(frozen=True, slots=True)
class Film:
    """A film; it names people by their ids."""

    id: int
    title: str
    overview: str
    budget: int
    revenue: int
    vote_average: float
    release_date: str
    genres: tuple[tuple[int, str], ...]
    companies: tuple[tuple[int, str, str], ...]
    countries: tuple[tuple[str, str], ...]
    keywords: tuple[str, ...]
    titles: tuple[tuple[str, str], ...]
    translations: tuple[tuple[str, str, str, str], ...]
    """Country, language, the language's name, and a tagline in it."""
    runtime: int
    cast: tuple[tuple[int, str], ...]
    """Person and character, the leading one first."""
    crew: tuple[tuple[int, str], ...]
    """Person and job."""


class Service(Protocol):
    """TMDB's services, generated or recorded."""

    def use(self, tool: str, arguments: Any) -> Any:
        """Return the result of a tool. Raises `Refused` and `Faulty`."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """A generated catalogue."""

    films: tuple[Film, ...]
    people: tuple[Person, ...] = field(repr=False)

    def use(self, tool: str, arguments: Any) -> Any:
        """See `Service`."""
        if tool == "get_search_movie":
            return self._search_movie(str(taken(arguments, "movie_name")))
        if tool == "get_search_person":
            found = _best(str(taken(arguments, "person_name")), self.people, lambda person: person.name)
            return [{"id": found.id, "name": found.name}] if found else []
        if tool in _OF_FILM:
            return _OF_FILM[tool](self, self.film(taken(arguments, "movie_id")))
        return _OF_PERSON[tool](self, self.person(taken(arguments, "person_id")))

    def film(self, film_id: Any) -> Film:
        """Return a film. Raises `Refused`."""
        found = next((film for film in self.films if str(film.id) == str(film_id)), None)
        if found is None:
            raise Refused(_NOT_FOUND)
        return found

    def person(self, person_id: Any) -> Person:
        """Return a person. Raises `Refused`."""
        found = next((person for person in self.people if str(person.id) == str(person_id)), None)
        if found is None:
            raise Refused(_NOT_FOUND)
        return found

    def _search_movie(self, name: str) -> list[dict[str, Any]]:
        found = _best(name, self.films, lambda film: film.title)
        if found is None:
            raise Faulty(NO_RESULT)
        return [{"id": found.id, "overview": found.overview, "title": found.title}]


def _best(name: str, among: tuple[FoundT, ...], called: Callable[[FoundT], str]) -> FoundT | None:
    """Return the item called `name`, or else one whose name has all of its words."""
    wanted = name.lower().split()
    exact = [found for found in among if called(found).lower().split() == wanted]
    near = [found for found in among if wanted and set(wanted) <= set(called(found).lower().split())]
    return next(iter(exact + near), None)


def _details(_: Catalogue, film: Film) -> dict[str, Any]:
    return {
        "title": film.title,
        "budget": film.budget,
        "genres": [{"id": number, "name": name} for number, name in film.genres],
        "revenue": film.revenue,
        "vote_average": film.vote_average,
        "release_date": film.release_date,
    }


def _companies(_: Catalogue, film: Film) -> dict[str, Any]:
    return {
        "production_companies": [
            {"id": number, "logo_path": None, "name": name, "origin_country": country}
            for number, name, country in film.companies
        ]
    }


def _countries(_: Catalogue, film: Film) -> dict[str, Any]:
    return {"production_countries": [{"iso_3166_1": code, "name": name} for code, name in film.countries]}


def _cast(catalogue: Catalogue, film: Film) -> dict[str, Any]:
    return {
        "cast": [
            {"id": number, "name": catalogue.person(number).name, "character": character}
            for number, character in film.cast[:LISTED]
        ]
    }


def _crew(catalogue: Catalogue, film: Film) -> dict[str, Any]:
    """List directors, producers and writers, then other people until ten are listed, as in AgentGym."""
    main = [(number, job) for number, job in film.crew if job in _MAIN_JOBS]
    known = {number for number, _ in main}
    others = [(number, job) for number, job in film.crew if number not in known]
    listed = main + others[: max(0, LISTED - len(main))]
    return {"crew": [{"id": number, "name": catalogue.person(number).name, "job": job} for number, job in listed]}


def _translations(_: Catalogue, film: Film) -> dict[str, Any]:
    return {
        "id": film.id,
        "translations": [
            {
                "iso_3166_1": country, "iso_639_1": code, "name": name, "english_name": name,
                "data": {"homepage": "", "overview": film.overview, "runtime": film.runtime, "tagline": tagline},
            }
            for country, code, name, tagline in film.translations
        ],
    }  # fmt: skip


def _titles(_: Catalogue, film: Film) -> dict[str, Any]:
    return {
        "id": film.id,
        "titles": [{"iso_3166_1": country, "title": title, "type": ""} for country, title in film.titles],
    }


def _person(_: Catalogue, person: Person) -> dict[str, Any]:
    return {
        "name": person.name,
        "biography": person.biography,
        "birthday": person.birthday,
        "place_of_birth": person.place_of_birth,
    }


def _played(catalogue: Catalogue, person: Person) -> dict[str, Any]:
    return {
        "cast": [
            {"id": film.id, "title": film.title, "character": character}
            for film in catalogue.films
            for number, character in film.cast
            if number == person.id
        ][:LISTED]
    }


def _worked(catalogue: Catalogue, person: Person) -> dict[str, Any]:
    return {
        "crew": [
            {"id": film.id, "title": film.title, "job": job}
            for film in catalogue.films
            for number, job in film.crew
            if number == person.id
        ][:LISTED]
    }


_OF_FILM: Final[dict[str, Callable[[Catalogue, Film], dict[str, Any]]]] = {
    "get_movie_details": _details,
    "get_movie_production_companies": _companies,
    "get_movie_production_countries": _countries,
    "get_movie_cast": _cast,
    "get_movie_crew": _crew,
    "get_movie_keywords": lambda _, film: {"keywords": list(film.keywords)},
    "get_movie_alternative_titles": _titles,
    "get_movie_translation": _translations,
}
_OF_PERSON: Final[dict[str, Callable[[Catalogue, Person], dict[str, Any]]]] = {
    "get_person_details": _person,
    "get_person_cast": _played,
    "get_person_crew": _worked,
    "get_person_external_ids": lambda _, person: person.external_ids,
}
