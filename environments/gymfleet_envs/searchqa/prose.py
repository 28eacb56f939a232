"""The encyclopedia of a made-up world. Each passage also names a person or a place that it is not about."""

import random
from collections.abc import Mapping
from typing import Final, TypeAlias, TypeVar

from gymfleet_envs.searchqa.passages import Passage
from gymfleet_envs.searchqa.world import Company, Person, Town, Work, World

_TOWN: Final = (
    "{name} is a town on the river {river}, known for its {trade}. It received its charter in {charter}.",
    "The town of {name}, chartered in {charter}, lies on the river {river}. Most of its people live from {trade}.",
    "{name} lies where the old road crosses the river {river}. Its charter is of {charter}, its trade is {trade}.",
)
_TOWN_GUEST: Final = (
    "The {craft} {other} spent a summer here.",
    "A street by the market is named after the {craft} {other}.",
    "Its library holds letters of the {craft} {other}.",
)
_PERSON: Final = (
    "{name} (born {day} in {place}) was a {craft}.",
    "{name} was a {craft} who was born in {place} on {day}.",
    "The {craft} {name}, born on {day}, came from {place}.",
)
_PERSON_ELSEWHERE: Final = (
    "{family} moved to {other} at an early age and worked there for many years.",
    "Later {family} lived in {other}, and was buried there.",
    "{family} studied in {other} and taught there for a while.",
)
_WORK: Final = (
    "{name} is a {kind} by {author}. It appeared in {year}.",
    "{name}, a {kind} of {year}, is the best known work of {author}.",
    "{author} finished the {kind} {name} in {year}.",
)
_WORK_READER: Final = (
    "The {craft} {other} called it a masterpiece.",
    "It was dedicated to the {craft} {other}.",
    "The {craft} {other} translated it twice.",
)
_COMPANY: Final = (
    "{name} is a company for {trade} based in {seat}. {founder} founded it in {year}.",
    "Founded by {founder} in {year}, {name} makes its money with {trade}. Its seat is in {seat}.",
    "The company {name} of {seat} was founded in {year} by {founder}, and deals in {trade}.",
)
_COMPANY_HEAD: Final = (
    "It was led by {other} for a decade.",
    "{other} later held a third of it.",
    "Its first works were designed by {other}.",
)
Facts: TypeAlias = Mapping[str, str | int]
ThingT = TypeVar("ThingT")


def encyclopedia(world: World) -> list[Passage]:
    """Return a passage on each thing, in an order without meaning; the same for the same world."""
    prose = _Prose(world)
    found = [prose.town(town) for town in world.towns]
    found += [prose.person(person) for person in world.people]
    found += [prose.work(work) for work in world.works]
    found += [prose.company(company) for company in world.companies]
    prose.rng.shuffle(found)
    return found


class _Prose:
    """Draws the sentences."""

    def __init__(self, world: World) -> None:
        self.rng = random.Random(f"{world.seed}/prose")
        self._world = world

    def town(self, town: Town) -> Passage:
        facts: Facts = {"river": town.river, "charter": town.charter, "trade": town.trade}
        return self._passage(town.name, _TOWN, _TOWN_GUEST, facts, self._other(self._world.people))

    def person(self, person: Person) -> Passage:
        family = person.name.split()[-1]
        facts: Facts = {
            "day": person.birthday,
            "place": person.birthplace.name,
            "craft": person.craft,
            "family": family,
        }
        elsewhere = self._other(self._world.towns, person.birthplace)
        return self._passage(person.name, _PERSON, _PERSON_ELSEWHERE, facts, elsewhere)

    def work(self, work: Work) -> Passage:
        facts: Facts = {"kind": work.kind, "author": work.author.name, "year": work.year}
        return self._passage(work.name, _WORK, _WORK_READER, facts, self._other(self._world.people, work.author))

    def company(self, company: Company) -> Passage:
        facts: Facts = {"seat": company.seat.name, "founder": company.founder.name, "year": company.year}
        head = self._other(self._world.people, company.founder)
        return self._passage(company.name, _COMPANY, _COMPANY_HEAD, {**facts, "trade": company.trade}, head)

    def _passage(
        self,
        name: str,
        about: tuple[str, ...],
        more: tuple[str, ...],
        facts: Facts,
        other: Person | Town,
    ) -> Passage:
        said = self.rng.choice(about).format(name=name, **facts)
        craft = other.craft if isinstance(other, Person) else ""
        return Passage(name, f"{said} {self.rng.choice(more).format(**{**facts, 'other': other.name, 'craft': craft})}")

    def _other(self, things: tuple[ThingT, ...], besides: ThingT | None = None) -> ThingT:
        return self.rng.choice([thing for thing in things if thing is not besides])
