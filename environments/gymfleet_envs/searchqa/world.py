"""A made-up world: towns, people, works and companies."""

import random
from dataclasses import dataclass
from typing import Final

from gymfleet_contracts.session import Split

from gymfleet_envs.searchqa.names import Names

_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_CRAFTS: Final = ("writer", "composer", "painter", "engineer", "physician", "botanist", "architect", "astronomer")
_TRADES: Final = ("shipbuilding", "glass", "porcelain", "clockmaking", "textiles", "printing", "salt", "instruments")
_KINDS: Final = ("novel", "play", "opera", "poem", "symphony")
_LAST_DAY: Final = 28


@dataclass(frozen=True, slots=True)
class Town:
    """A town, where people live."""

    name: str
    river: str
    charter: int
    trade: str


@dataclass(frozen=True, slots=True)
class Person:
    """A person, born in a town. `born` is year, month and day."""

    name: str
    born: tuple[int, int, int]
    birthplace: Town
    craft: str

    @property
    def birthday(self) -> str:
        """Return the date of birth in words."""
        year, month, day = self.born
        return f"{day} {_MONTHS[month - 1]} {year}"


@dataclass(frozen=True, slots=True)
class Work:
    """A work that a person made."""

    name: str
    kind: str
    author: Person
    year: int


@dataclass(frozen=True, slots=True)
class Company:
    """A company that a person founded."""

    name: str
    founder: Person
    seat: Town
    year: int
    trade: str


@dataclass(frozen=True, slots=True)
class Size:
    """The number of things of each kind."""

    towns: int
    people: int
    works: int
    companies: int


@dataclass(frozen=True)
class World:
    """All things of a world."""

    towns: tuple[Town, ...]
    people: tuple[Person, ...]
    works: tuple[Work, ...]
    companies: tuple[Company, ...]
    seed: str
    """The seed, from which its prose is drawn too."""


def make_world(seed: str, split: Split, size: Size) -> World:
    """Return the world of a seed, with names of one split. A third of the people share a family name with another."""
    rng = random.Random(seed)
    names = Names(rng, split)
    years = rng.sample(range(1100, 1700), size.towns)
    towns = tuple(Town(names.town(), names.river(), year, rng.choice(_TRADES)) for year in years)
    people: list[Person] = []
    for number in range(size.people):
        name = names.relative(people[-1].name) if number % 3 == 2 else names.person()
        born = (rng.randint(1700, 1899), rng.randint(1, 12), rng.randint(1, _LAST_DAY))
        people.append(Person(name, born, rng.choice(towns), rng.choice(_CRAFTS)))
    works = tuple(
        Work(names.title(), rng.choice(_KINDS), author, author.born[0] + rng.randint(20, 60))
        for author in (rng.choice(people) for _ in range(size.works))
    )
    companies = tuple(
        Company(names.company(), founder, rng.choice(towns), founder.born[0] + rng.randint(20, 60), rng.choice(_TRADES))
        for founder in (rng.choice(people) for _ in range(size.companies))
    )
    return World(towns, tuple(people), works, companies, seed)
