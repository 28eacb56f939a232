"""Generated worlds of own content: people, places, companies and works, with relations named as in Freebase."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gymfleet_contracts.session import Split
from pyoxigraph import Quad, Store

from gymfleet_envs.kg.graph import Graph, Words, link, number
from gymfleet_envs.kg.sampling import LEVELS, draw
from gymfleet_envs.kg.task import KgTask
from gymfleet_envs.tasks import GeneratedTasks

WORLDS: Final = 64
"""The number of graphs; a process makes one when a question first needs it and keeps it: some 1 MB."""
_COUNTS: Final[Mapping[Split, int]] = {"train": 50_000, "validation": 500, "test": 500}


@dataclass(frozen=True, slots=True)
class _Relation:
    """A relation and its inverse, each with its words."""

    source: str
    target: str
    forward: str
    forward_words: str
    back: str
    back_words: str
    most: int = 1
    """The most targets of a source; each has at least 1."""


_SIZES: Final = {
    "people.person": 60, "location.city": 12, "location.country": 4, "organization.company": 9,
    "education.university": 6, "people.profession": 7, "film.film": 30, "film.genre": 6, "book.book": 24,
    "business.industry": 4,
}  # fmt: skip
_RELATIONS: Final = (
    _Relation("people.person", "location.city", "people.person.place_of_birth", "the place of birth of {}",
              "location.city.people_born_here", "the people born in {}"),
    _Relation("people.person", "location.city", "people.person.place_lived", "the places where {} lived",
              "location.city.residents", "the people who lived in {}", most=2),
    _Relation("people.person", "people.profession", "people.person.profession", "the professions of {}",
              "people.profession.people_with_this_profession", "the people whose profession is {}", most=2),
    _Relation("people.person", "education.university", "people.person.education", "the university of {}",
              "education.university.graduates", "the graduates of {}"),
    _Relation("people.person", "organization.company", "people.person.employer", "the employer of {}",
              "organization.company.employees", "the employees of {}"),
    _Relation("people.person", "people.person", "people.person.teacher", "the teachers of {}",
              "people.person.students", "the students of {}", most=2),
    _Relation("film.film", "people.person", "film.film.directed_by", "the director of {}",
              "film.director.films", "the films directed by {}"),
    _Relation("film.film", "people.person", "film.film.starring", "the actors of {}",
              "film.actor.films", "the films in which {} acted", most=4),
    _Relation("film.film", "film.genre", "film.film.genre", "the genres of {}",
              "film.genre.films_in_this_genre", "the films whose genre is {}", most=2),
    _Relation("film.film", "location.city", "film.film.filming_location", "the filming location of {}",
              "film.location.films_shot_here", "the films shot in {}"),
    _Relation("film.film", "book.book", "film.film.based_on", "the book that was filmed as {}",
              "book.book.adaptations", "the films based on {}"),
    _Relation("book.book", "people.person", "book.book.author", "the authors of {}",
              "book.author.books", "the books written by {}", most=2),
    _Relation("book.book", "organization.company", "book.book.publisher", "the publisher of {}",
              "organization.company.books_published", "the books published by {}"),
    _Relation("book.book", "location.city", "book.book.set_in", "the setting of {}",
              "location.city.books_set_here", "the books set in {}"),
    _Relation("location.city", "location.country", "location.city.country", "the country of {}",
              "location.country.cities", "the cities of {}"),
    _Relation("organization.company", "location.city", "organization.company.headquarters", "the headquarters of {}",
              "location.city.companies", "the companies with headquarters in {}"),
    _Relation("organization.company", "business.industry", "organization.company.industry", "the industries of {}",
              "business.industry.companies", "the companies whose industry is {}", most=2),
    _Relation("education.university", "location.city", "education.university.location", "the city of {}",
              "location.city.universities", "the universities of {}"),
)  # fmt: skip
_ATTRIBUTES: Final = {
    "people.person": {"people.person.height_cm": (150, 205), "people.person.year_of_birth": (1900, 1999)},
    "location.city": {"location.city.population": (10_000, 5_000_000), "location.city.elevation_m": (0, 2_500)},
    "organization.company": {"organization.company.year_founded": (1850, 2015),
                             "organization.company.revenue": (1_000, 900_000)},
    "education.university": {"education.university.number_of_students": (2_000, 60_000),
                             "education.university.year_founded": (1300, 1990)},
    "film.film": {"film.film.length_minutes": (70, 200), "film.film.year_of_release": (1930, 2020)},
    "book.book": {"book.book.number_of_pages": (60, 1200), "book.book.year_of_publication": (1800, 2020)},
}  # fmt: skip
_FIRST: Final = (
    "Ada", "Bela", "Carl", "Dora", "Egon", "Frida", "Georg", "Hanna", "Ivo", "Jara", "Kurt", "Lena", "Milo", "Nora",
    "Otis", "Pia", "Rolf", "Sina", "Theo", "Ulla", "Veit", "Wanda", "Yuri", "Zita",
)  # fmt: skip
_SYLLABLES: Final = (
    "bar", "bel", "cor", "dal", "den", "fen", "gar", "hol", "kar", "lan", "lin", "mar", "mor", "nor", "ost", "pel",
    "ran", "ros", "sel", "tar", "tor", "ul", "ver", "wal", "zan",
)  # fmt: skip
_ADJECTIVES: Final = (
    "Amber", "Blue", "Broken", "Crimson", "Distant", "Empty", "Frozen", "Golden", "Hidden", "Iron", "Last", "Lonely",
    "Quiet", "Second", "Silver", "Stolen", "Velvet", "White", "Wild", "Winter",
)  # fmt: skip
_NOUNS: Final = (
    "Bridge", "Clock", "Coast", "Door", "Garden", "Harbour", "House", "Lamp", "Letter", "Mirror", "Mountain", "Orchard",
    "River", "Road", "Shadow", "Station", "Summer", "Tower", "Voyage", "Window",
)  # fmt: skip
_FIXED: Final = {
    "people.profession": ("actor", "architect", "baker", "composer", "engineer", "novelist", "physician"),
    "film.genre": ("comedy", "documentary", "drama", "musical", "thriller", "western"),
    "business.industry": ("brewing", "printing", "shipping", "weaving"),
}
_ENDINGS: Final = {
    "location.city": ("ton", "burg", "mouth", "ville"), "location.country": ("ia", "land"),
    "organization.company": (" Works", " & Sons", " Trading", " Press"),
    "education.university": (" University", " College"),
}  # fmt: skip


@lru_cache(maxsize=WORLDS)
def world(index: int) -> Graph:
    """Return one of the generated graphs; the same number gives the same graph on every machine."""
    rng = random.Random(f"gymfleet/kg/world/{index}")
    names: dict[str, str] = {}
    ids: dict[str, list[str]] = {}
    for kind, size in _SIZES.items():
        ids[kind] = [f"m.0{index:02x}{len(names) + place:03x}" for place in range(size)]
        names |= dict(zip(ids[kind], _names(rng, kind, size, set(names.values())), strict=True))
    quads = [quad for relation in _RELATIONS for quad in _links(rng, relation, ids)]
    for kind, attributes in _ATTRIBUTES.items():
        for attribute, (low, high) in attributes.items():
            # Distinct, so that an extreme is one entity.
            values = rng.sample(range(low, high + 1), min(len(ids[kind]), high + 1 - low))
            values += rng.choices(range(low, high + 1), k=len(ids[kind]) - len(values))
            quads += [number(one, attribute, value) for one, value in zip(ids[kind], values, strict=True)]
    store = Store()
    store.extend(quads)
    return Graph(store, Words(names, _PHRASES, _RANGES, least_choices=4))


_PHRASES: Final = {
    name: words for one in _RELATIONS for name, words in ((one.forward, one.forward_words), (one.back, one.back_words))
}
_RANGES: Final = {
    name: kind for one in _RELATIONS for name, kind in ((one.forward, one.target), (one.back, one.source))
}


def _links(rng: random.Random, relation: _Relation, ids: dict[str, list[str]]) -> list[Quad]:
    quads = []
    for source in ids[relation.source]:
        others = [target for target in ids[relation.target] if target != source]
        for target in rng.sample(others, rng.randint(1, relation.most)):
            quads += [link(source, relation.forward, target), link(target, relation.back, source)]
    return quads


def _names(rng: random.Random, kind: str, size: int, taken: set[str]) -> list[str]:
    if kind in _FIXED:
        return list(_FIXED[kind])
    names: list[str] = []
    while len(names) < size:
        name = _name(rng, kind)
        if name not in taken and name not in names:
            names.append(name)
    return names


def _name(rng: random.Random, kind: str) -> str:
    word = "".join(rng.sample(_SYLLABLES, 2)).capitalize()
    if kind == "people.person":
        return f"{rng.choice(_FIRST)} {word}"
    if kind in ("film.film", "book.book"):
        return f"The {rng.choice(_ADJECTIVES)} {rng.choice(_NOUNS)}{rng.choice(('', f' of {word}'))}"
    return word + rng.choice(_ENDINGS[kind])


def generated_tasks() -> GeneratedTasks[KgTask]:
    """Six levels: one to three hops, a count, an extreme, an intersection."""
    return GeneratedTasks("kg", _generate, fingerprint, levels=LEVELS, counts=_COUNTS)


def _generate(rng: random.Random, level: str) -> KgTask:
    while True:
        index = rng.randrange(WORLDS)
        if (task := draw(rng, world(index), level, index)) is not None:
            return task


def fingerprint(task: KgTask) -> str:
    """Return a text that is equal for equal questions of one graph."""
    return repr((task.question, task.entities, sorted(task.gold), task.source))
