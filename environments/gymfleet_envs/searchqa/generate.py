"""Generated questions over made-up encyclopedias: of one passage, of two, of a comparison, and of three."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, NamedTuple, TypeVar

from gymfleet_envs.searchqa.corpus import Corpus, memory_corpus
from gymfleet_envs.searchqa.options import SearchQAOptions
from gymfleet_envs.searchqa.prose import encyclopedia
from gymfleet_envs.searchqa.task import SearchTask
from gymfleet_envs.searchqa.world import Person, Size, Town, World, make_world
from gymfleet_envs.tasks import GeneratedTasks, TaskDataError, split_of

WORLDS: Final = 100
"""The number of encyclopedias of each level; each belongs to one split."""


class Asked(NamedTuple):
    """A question, its answer, and the titles of the passages that lead to it."""

    question: str
    answer: str
    support: tuple[str, ...]


Thing = TypeVar("Thing")
Form = Callable[[random.Random, World], Asked]


def _born_where(rng: random.Random, world: World) -> Asked:
    person = rng.choice(world.people)
    return Asked(f"In which town was {person.name} born?", person.birthplace.name, (person.name,))


def _born_when(rng: random.Random, world: World) -> Asked:
    person = rng.choice(world.people)
    return Asked(f"On which date was {person.name} born?", person.birthday, (person.name,))


def _made_by(rng: random.Random, world: World) -> Asked:
    work = rng.choice(world.works)
    return Asked(f"Whose work is the {work.kind} {work.name}?", work.author.name, (work.name,))


def _founded_by(rng: random.Random, world: World) -> Asked:
    company = rng.choice(world.companies)
    return Asked(f"Who founded the company {company.name}?", company.founder.name, (company.name,))


def _river_of(rng: random.Random, world: World) -> Asked:
    town = rng.choice(world.towns)
    return Asked(f"On which river does the town of {town.name} lie?", town.river, (town.name,))


def _author_born_where(rng: random.Random, world: World) -> Asked:
    work = rng.choice(world.works)
    author = work.author
    question = f"In which town was the author of the {work.kind} {work.name} born?"
    return Asked(question, author.birthplace.name, (work.name, author.name))


def _founder_born_when(rng: random.Random, world: World) -> Asked:
    company = rng.choice(world.companies)
    founder = company.founder
    return Asked(
        f"On which date was the founder of the company {company.name} born?",
        founder.birthday,
        (company.name, founder.name),
    )


def _river_of_birthplace(rng: random.Random, world: World) -> Asked:
    person = rng.choice(world.people)
    town = person.birthplace
    return Asked(f"On which river lies the birthplace of {person.name}?", town.river, (person.name, town.name))


def _river_of_seat(rng: random.Random, world: World) -> Asked:
    company = rng.choice(world.companies)
    seat = company.seat
    question = f"On which river lies the town where the company {company.name} has its seat?"
    return Asked(question, seat.river, (company.name, seat.name))


def _elder_born_where(rng: random.Random, world: World) -> Asked:
    def differ(one: Person, other: Person) -> bool:
        return one.birthplace is not other.birthplace and one.born != other.born

    one, other = _two(rng, world.people, differ)
    elder = min(one, other, key=lambda person: person.born)
    question = f"In which town was the elder of {one.name} and {other.name} born?"
    return Asked(question, elder.birthplace.name, (one.name, other.name))


def _earlier_made_by(rng: random.Random, world: World) -> Asked:
    one, other = _two(rng, world.works, lambda one, other: one.author is not other.author and one.year != other.year)
    earlier = min(one, other, key=lambda work: work.year)
    question = f"Who is the author of the earlier of {one.name} and {other.name}?"
    return Asked(question, earlier.author.name, (one.name, other.name))


def _river_of_older_town(rng: random.Random, world: World) -> Asked:
    def differ(one: Town, other: Town) -> bool:
        return one is not other

    one, other = _two(rng, world.towns, differ)
    older = min(one, other, key=lambda town: town.charter)
    question = f"Of the towns {one.name} and {other.name}, on which river lies the one that was chartered first?"
    return Asked(question, older.river, (one.name, other.name))


def _river_of_authors_birthplace(rng: random.Random, world: World) -> Asked:
    work = rng.choice(world.works)
    author, town = work.author, work.author.birthplace
    question = f"On which river lies the birthplace of the author of the {work.kind} {work.name}?"
    return Asked(question, town.river, (work.name, author.name, town.name))


def _river_of_founders_birthplace(rng: random.Random, world: World) -> Asked:
    company = rng.choice(world.companies)
    founder, town = company.founder, company.founder.birthplace
    question = f"On which river lies the birthplace of the founder of the company {company.name}?"
    return Asked(question, town.river, (company.name, founder.name, town.name))


def _two(rng: random.Random, things: Sequence[Thing], differ: Callable[[Thing, Thing], bool]) -> tuple[Thing, Thing]:
    """Draw two things that differ in the property compared and in the property asked for."""
    while True:
        one, other = rng.sample(things, 2)
        if differ(one, other):
            return one, other


@dataclass(frozen=True, slots=True)
class _Level:
    forms: tuple[Form, ...]
    size: Size


_LOOKUP: Final = (_born_where, _born_when, _made_by, _founded_by, _river_of)
_BRIDGE: Final = (_author_born_where, _founder_born_when, _river_of_birthplace, _river_of_seat)
_COMPARISON: Final = (_elder_born_where, _earlier_made_by, _river_of_older_town)
_CHAIN: Final = (_river_of_authors_birthplace, _river_of_founders_birthplace)
_LEVELS: Final[Mapping[str, _Level]] = {
    "lookup": _Level(_LOOKUP, Size(towns=8, people=18, works=12, companies=6)),
    "bridge": _Level(_BRIDGE, Size(towns=12, people=30, works=20, companies=10)),
    "comparison": _Level(_COMPARISON, Size(towns=12, people=30, works=20, companies=10)),
    "mixed": _Level((*_BRIDGE, *_COMPARISON, *_CHAIN, *_CHAIN), Size(towns=24, people=60, works=40, companies=20)),
}


@lru_cache(maxsize=2 * WORLDS)
def _world(level: str, name: str) -> World:
    return make_world(name, split_of(name), _LEVELS[level].size)


@lru_cache(maxsize=2 * WORLDS)
def _corpus(level: str, name: str) -> Corpus:
    return memory_corpus(encyclopedia(_world(level, name)))


def _generate(rng: random.Random, level: str, attempts: int | None) -> SearchTask:
    name = f"searchqa/{level}/{rng.randrange(WORLDS)}"
    asked = rng.choice(_LEVELS[level].forms)(rng, _world(level, name))
    return SearchTask(asked.question, (asked.answer,), asked.support, name, partial(_corpus, level, name), attempts)


def generated_tasks(options: SearchQAOptions) -> GeneratedTasks[SearchTask]:
    """Return questions over the encyclopedias, by level. Raises `TaskDataError` if the options require vectors."""
    if options.search != "bm25":
        raise TaskDataError(
            f"searchqa: search={options.search} needs vectors, which an import makes: generated passages have none"
        )
    attempts = 1 if options.attempts == "auto" else None if options.attempts == "unlimited" else options.attempts
    return GeneratedTasks(
        "searchqa",
        lambda rng, level: _generate(rng, level, attempts),
        # The encyclopedia, not the question, decides the split: training texts hold nothing of held-out questions.
        lambda task: task.corpus_name,
        levels=tuple(_LEVELS),
        counts={"train": 100_000, "validation": 1_000, "test": 1_000},
    )
