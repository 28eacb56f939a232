"""Draw a catalogue: films that were never made, by people who do not exist."""

import datetime
import random
from typing import Final

from gymfleet_envs.movie.catalogue import Catalogue, Film, Person

_FIRST: Final = (
    "Ada", "Bruno", "Carla", "Dario", "Edith", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kaya", "Leon", "Mira",
    "Nils", "Olga", "Pavel", "Rosa", "Selim", "Tara", "Umberto", "Vera", "Wanda", "Yusuf", "Zoe",
)  # fmt: skip
_LAST: Final = (
    "Abel", "Barros", "Castell", "Delgado", "Ekberg", "Fontaine", "Grimaldi", "Haas", "Ivarsson", "Jansen", "Kowal",
    "Lindqvist", "Moreau", "Novak", "Okafor", "Petrov", "Quist", "Rinaldi", "Sandoval", "Tanaka", "Ustinov", "Varga",
    "Weiss", "Zimmer",
)  # fmt: skip
_KIND: Final = (
    "Amber", "Broken", "Crimson", "Distant", "Electric", "Forgotten", "Golden", "Hollow", "Invisible", "Last",
    "Midnight", "Northern", "Paper", "Quiet", "Restless", "Second", "Silver", "Wandering",
)  # fmt: skip
_THING: Final = (
    "Archive", "Bridge", "Carnival", "Detective", "Empire", "Forest", "Garden", "Harbour", "Island", "Journey",
    "Kingdom", "Lighthouse", "Machine", "Orchestra", "Passenger", "River", "Signal", "Voyage",
)  # fmt: skip
_PLACES: Final = (
    "Aarhus, Denmark", "Bergen, Norway", "Cork, Ireland", "Dakar, Senegal", "Essen, Germany", "Faro, Portugal",
    "Ghent, Belgium", "Hobart, Tasmania, Australia", "Izmir, Turkey", "Jaipur, India", "Kaunas, Lithuania",
    "Leeds, England, UK", "Malaga, Spain", "Nagoya, Japan", "Omaha, Nebraska, USA", "Puebla, Mexico", "Quito, Ecuador",
    "Rabat, Morocco", "Salta, Argentina", "Tucson, Arizona, USA", "Utrecht, Netherlands", "Varna, Bulgaria",
    "Winnipeg, Manitoba, Canada", "Zadar, Croatia",
)  # fmt: skip
_GENRES: Final = (
    (28, "Action"), (12, "Adventure"), (35, "Comedy"), (80, "Crime"), (18, "Drama"), (14, "Fantasy"), (36, "History"),
    (27, "Horror"), (9648, "Mystery"), (10749, "Romance"), (878, "Science Fiction"), (53, "Thriller"),
)  # fmt: skip
_COMPANIES: Final = (
    (174, "Anchor Pictures", "US"), (201, "Blue Door Films", "GB"), (333, "Cinema Nord", "NO"),
    (420, "Dune Studios", "FR"), (555, "Elm Street Media", "CA"), (612, "Foxglove", "US"),
    (777, "Grand Canal Film", "IT"), (845, "Hinterland", "DE"),
)  # fmt: skip
_COUNTRIES: Final = (
    ("CA", "Canada"), ("DE", "Germany"), ("FR", "France"), ("GB", "United Kingdom"), ("IT", "Italy"), ("NO", "Norway"),
    ("US", "United States of America"),
)  # fmt: skip
_KEYWORDS: Final = (
    "amnesia", "based on novel or book", "blizzard", "chess", "circus", "detective", "dystopia", "forgery",
    "friendship", "ghost", "heist", "inheritance", "island", "jazz", "lighthouse", "memory", "orphan", "prophecy",
    "revenge", "road trip", "submarine", "time loop", "train", "twins",
)  # fmt: skip
_LANGUAGES: Final = (
    ("US", "en", "English", "Nothing stays hidden."), ("NL", "nl", "Dutch", "Niets blijft verborgen."),
    ("DE", "de", "German", "Nichts bleibt verborgen."), ("RU", "ru", "Russian", "Ничто не скрыто."),
    ("JP", "ja", "Japanese", "何も隠せない。"), ("CN", "zh", "Mandarin", "一切终将揭晓。"),
)  # fmt: skip
_JOBS: Final = ("Producer", "Writer", "Editor", "Costume Design", "Original Music Composer", "Art Direction")
_NAMES: Final = tuple(f"{first} {last}" for first in _FIRST for last in _LAST)
_TITLES: Final = tuple(f"The {kind} {thing}" for kind in _KIND for thing in _THING)
_PEOPLE: Final = 14
_FILMS: Final = 10
_DIRECTORS: Final = 3
_EPOCH: Final = datetime.date(1930, 1, 1)


def draw_catalogue(rng: random.Random) -> Catalogue:
    """Return a catalogue in which people recur: three direct all films, and the others play in many."""
    names = rng.sample(_NAMES, _PEOPLE)
    ids = sorted(rng.sample(range(1_000, 3_000_000), _PEOPLE))
    people = tuple(_person(rng, number, name) for number, name in zip(ids, names, strict=True))
    titles = rng.sample(_TITLES, _FILMS)
    films = tuple(
        _film(rng, number, title, people)
        for number, title in zip(sorted(rng.sample(range(1_000, 1_000_000), _FILMS)), titles, strict=True)
    )
    return Catalogue(films, people)


def _person(rng: random.Random, number: int, name: str) -> Person:
    birthday = (_EPOCH + datetime.timedelta(days=rng.randrange(25_000))).isoformat()
    place = rng.choice(_PLACES)
    handle = name.lower().replace(" ", "") + str(rng.randrange(10, 1000))
    return Person(number, name, birthday, place, f"{name} grew up in {place} and came to film by the theatre.", handle)


def _film(rng: random.Random, number: int, title: str, people: tuple[Person, ...]) -> Film:
    ids = [person.id for person in people]
    directors, players = ids[:_DIRECTORS], ids[_DIRECTORS:]
    characters = rng.sample(_NAMES, len(players))
    cast = tuple(zip(rng.sample(players, rng.randint(4, 6)), characters, strict=False))
    crew = [(rng.choice(directors), "Director")] + [(rng.choice(ids), job) for job in rng.sample(_JOBS, 4)]
    return Film(
        id=number,
        title=title,
        overview=f"In {rng.choice(_PLACES)}, {cast[0][1]} finds out what {title[4:].lower()} means.",
        budget=rng.randrange(2_000_000, 250_000_000, 1_000),
        revenue=rng.randrange(500_000, 900_000_000),
        vote_average=round(rng.uniform(3, 9), 3),
        release_date=(_EPOCH + datetime.timedelta(days=rng.randrange(22_000, 34_000))).isoformat(),
        genres=tuple(sorted(rng.sample(_GENRES, rng.randint(1, 3)))),
        companies=tuple(sorted(rng.sample(_COMPANIES, rng.randint(2, 4)))),
        countries=tuple(sorted(rng.sample(_COUNTRIES, rng.randint(1, 3)))),
        keywords=tuple(rng.sample(_KEYWORDS, rng.randint(3, 6))),
        titles=(("PL", f"{title} (PL)"), ("BR", f"O {title[4:]}")),
        translations=tuple(rng.sample(_LANGUAGES, 3)),
        runtime=rng.randint(80, 180),
        cast=cast,
        crew=tuple(rng.sample(crew, len(crew))),
    )
