"""Generated databases of one to three tables with foreign keys, and questions with their gold queries."""

import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from gymfleet_envs.sql.engine import build
from gymfleet_envs.sql.schema import Schema, in_words
from gymfleet_envs.sql.task import SqlTask, TableData, Value
from gymfleet_envs.tasks import GeneratedTasks

_PEOPLE: Final = (
    "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ida", "Jon", "Kira", "Leo", "Mona", "Nils", "Olga",
    "Paul", "Rita", "Sam", "Tina", "Uwe", "Vera", "Will", "Yara", "Zoe",
)  # fmt: skip
_PLACES: Final = ("Ashford", "Brook", "Crestview", "Dale", "Eastgate", "Fairview", "Glen", "Hilltop", "Lakeside")
_COLORS: Final = ("blue", "gold", "green", "orange", "purple", "red", "silver", "white")


@dataclass(frozen=True, slots=True)
class _Theme:
    """The names of the tables: groups have members, members have events with a number in a year."""

    name: str
    group: str
    member: str
    event: str
    measure: str
    trait: str


_THEMES: Final = (
    _Theme("sports_league", "club", "player", "match_result", "points", "age"),
    _Theme("delivery_service", "depot", "driver", "trip", "distance", "age"),
    _Theme("reading_circle", "library", "reader", "loan", "days", "age"),
    _Theme("craft_fair", "hall", "maker", "sale", "price", "years_active"),
    _Theme("orchard_work", "farm", "picker", "harvest", "crates", "age"),
    _Theme("music_school", "studio", "student", "lesson", "minutes", "age"),
)


@dataclass(frozen=True, slots=True)
class _World:
    """Rows of the three tables; a level shows the first tables that it needs."""

    rng: random.Random
    theme: _Theme
    groups: list[tuple[Value, ...]]
    """id, name, color."""
    members: list[tuple[Value, ...]]
    """id, name, trait, group's id."""
    events: list[tuple[Value, ...]]
    """id, member's id, measure, year."""


@dataclass(frozen=True, slots=True)
class _Question:
    text: str
    sql: str


def _world(rng: random.Random, level: str) -> _World:
    theme = rng.choice(_THEMES)
    num_members = rng.randint(*{"easy": (3, 5), "medium": (8, 14), "hard": (10, 16)}[level])
    num_groups = rng.randint(2, 5)
    names = rng.sample(_PLACES, num_groups)
    groups: list[tuple[Value, ...]] = [(n, name, rng.choice(_COLORS)) for n, name in enumerate(names, start=1)]
    members: list[tuple[Value, ...]] = [
        (number, name, rng.randint(18, 70), rng.randint(1, num_groups))
        for number, name in enumerate(rng.sample(_PEOPLE, num_members), start=1)
    ]
    events: list[tuple[Value, ...]] = [
        (number, rng.randint(1, num_members), rng.randint(1, 99), rng.randint(2018, 2023))
        for number in range(1, rng.randint(15, 40))
    ]
    return _World(rng, theme, groups, members, events)


def _tables(world: _World, level: str) -> list[tuple[str, list[str], str, list[tuple[Value, ...]]]]:
    """Return name, columns, constraints and rows of the tables of a level."""
    theme = world.theme
    key, member_key = f"{theme.group}_id", f"{theme.member}_id"
    group = (theme.group, [key, "name", "color"], "", world.groups)
    foreign = f", FOREIGN KEY ({key}) REFERENCES {theme.group} ({key})"
    member = (theme.member, [member_key, "name", theme.trait, key], foreign, world.members)
    if level == "easy":
        alone = (theme.member, [member_key, "name", theme.trait], "", [row[:3] for row in world.members])
        return [alone]
    foreign = f", FOREIGN KEY ({member_key}) REFERENCES {theme.member} ({member_key})"
    event = (theme.event, [f"{theme.event}_id", member_key, theme.measure, "year"], foreign, world.events)
    return [group, member] if level == "medium" else [group, member, event]


def _definition(name: str, columns: list[str], constraints: str, rows: list[tuple[Value, ...]]) -> TableData:
    kinds = ["INTEGER PRIMARY KEY", *("TEXT" if isinstance(value, str) else "INTEGER" for value in rows[0][1:])]
    listed = ", ".join(f"{column} {kind}" for column, kind in zip(columns, kinds, strict=True))
    return TableData(name, f"CREATE TABLE {name} ({listed}{constraints})", tuple(rows))


def _schema(world: _World, level: str) -> Schema:
    tables = _tables(world, level)
    columns: list[tuple[int, str]] = [(-1, "*")]
    keys: list[int] = []
    for number, (_, names, _, _) in enumerate(tables):
        keys.append(len(columns))
        columns += [(number, name) for name in names]
    foreign = [(7, 1)] if level == "medium" else [(7, 1), (9, 4)] if level == "hard" else []
    shown = tuple(table[0] for table in tables)
    return Schema(world.theme.name, shown, tuple(columns), frozenset(keys), tuple(foreign))


def _lookup(world: _World) -> _Question:
    theme, name = world.theme, world.rng.choice(world.members)[1]
    sql = f"SELECT {theme.trait} FROM {theme.member} WHERE name = '{name}'"  # noqa: S608 - our own words, as below
    return _Question(f"What is the {theme.trait} of {name}?", sql)


def _older(world: _World) -> _Question:
    theme, limit = world.theme, world.rng.choice(world.members)[2]
    sql = f"SELECT name FROM {theme.member} WHERE {theme.trait} >= {limit}"  # noqa: S608
    return _Question(f"Which {theme.member}s have a {theme.trait} of at least {limit}? List the names.", sql)


def _extreme(world: _World) -> _Question:
    theme, most = world.theme, world.rng.random() < 0.5
    function, word = ("MAX", "highest") if most else ("MIN", "lowest")
    inner = f"SELECT {function}({theme.trait}) FROM {theme.member}"  # noqa: S608
    sql = f"SELECT name FROM {theme.member} WHERE {theme.trait} = ({inner})"  # noqa: S608
    return _Question(f"Who has the {word} {theme.trait}? List the names.", sql)


def _count_by_group(world: _World) -> _Question:
    theme = world.theme
    name = world.rng.choice(world.groups)[1]
    sql = f"SELECT COUNT(*) FROM {_joined(theme)} WHERE T2.name = '{name}'"  # noqa: S608
    return _Question(f"How many {theme.member}s does the {theme.group} {name} have?", sql)


def _of_color(world: _World) -> _Question:
    theme, color = world.theme, world.rng.choice(world.groups)[2]
    sql = f"SELECT T1.name FROM {_joined(theme)} WHERE T2.color = '{color}'"  # noqa: S608
    return _Question(f"List the names of the {theme.member}s of {theme.group}s whose color is {color}.", sql)


def _mean_by_group(world: _World) -> _Question:
    theme = world.theme
    sql = f"SELECT T2.name, AVG(T1.{theme.trait}) FROM {_joined(theme)} GROUP BY T2.{theme.group}_id"  # noqa: S608
    return _Question(f"For each {theme.group} that has any {theme.member}, what is its name and the average "
                     f"{theme.trait} of its {theme.member}s?", sql)  # fmt: skip


def _total_of_one(world: _World) -> _Question:
    theme, year = world.theme, world.rng.choice(world.events)[3]
    name = world.rng.choice(world.groups)[1]
    sql = f"SELECT SUM(T3.{theme.measure}) FROM {_all(theme)} WHERE T2.name = '{name}' AND T3.year = {year}"  # noqa: S608
    return _Question(f"What is the total {theme.measure} of the {theme.event}s of {theme.member}s of the {theme.group} "
                     f"{name} in {year}?", sql)  # fmt: skip


def _busy(world: _World) -> _Question:
    theme, least = world.theme, world.rng.randint(2, 4)
    sql = f"SELECT T1.name FROM {_all(theme)} GROUP BY T1.{theme.member}_id HAVING COUNT(*) >= {least}"  # noqa: S608
    return _Question(f"Which {theme.member}s have at least {least} {theme.event}s? List the names.", sql)


def _idle(world: _World) -> _Question:
    theme, year = world.theme, world.rng.choice(world.events)[3]
    inner = f"SELECT {theme.member}_id FROM {theme.event} WHERE year = {year}"  # noqa: S608
    sql = f"SELECT name FROM {theme.member} WHERE {theme.member}_id NOT IN ({inner})"  # noqa: S608
    return _Question(f"Which {theme.member}s have no {theme.event} in {year}? List the names.", sql)


def _above_mean(world: _World) -> _Question:
    theme = world.theme
    inner = f"SELECT AVG({theme.measure}) FROM {theme.event}"  # noqa: S608
    sql = f"SELECT DISTINCT T2.name FROM {_all(theme)} WHERE T3.{theme.measure} > ({inner})"  # noqa: S608
    return _Question(f"List the names of the {theme.group}s with a {theme.member} who has a {theme.event} whose "
                     f"{theme.measure} is above the average of all {theme.event}s.", sql)  # fmt: skip


def _joined(theme: _Theme) -> str:
    key = f"{theme.group}_id"
    return f"{theme.member} AS T1 INNER JOIN {theme.group} AS T2 ON T1.{key} = T2.{key}"


def _all(theme: _Theme) -> str:
    key = f"{theme.member}_id"
    return f"{_joined(theme)} INNER JOIN {theme.event} AS T3 ON T3.{key} = T1.{key}"


_QUESTIONS: Final[dict[str, tuple[Callable[[_World], _Question], ...]]] = {
    "easy": (_lookup,),
    "medium": (_older, _extreme, _count_by_group, _of_color, _mean_by_group),
    "hard": (_total_of_one, _busy, _idle, _above_mean, _mean_by_group),
}


def _generate(rng: random.Random, level: str) -> SqlTask:
    """Draw until the answer cannot be found without the question's condition."""
    while True:
        world = _world(rng, level)
        question = rng.choice(_QUESTIONS[level])(world)
        tables = tuple(_definition(*table) for table in _tables(world, level))
        words = in_words(_schema(world, level), published=False)
        task = SqlTask(prompt=f"{words}\n\n{question.text}", gold_sql=question.sql, tables=tables)
        if not _is_free(_answer(task), world):
            return task


def _answer(task: SqlTask) -> set[tuple[Value, ...]]:
    with closing(build(task)) as connection:
        return set(connection.execute(task.gold_sql))


def _is_free(answer: set[tuple[Value, ...]], world: _World) -> bool:
    """Return whether a query that ignores the question gives the answer: no row, NULL, or all the names there are."""
    all_names = [{(row[1],) for row in rows} for rows in (world.groups, world.members)]
    return not answer or any(None in row for row in answer) or answer in all_names


def generated_tasks() -> GeneratedTasks[SqlTask]:
    """Three levels: one value of one table; conditions, aggregates and a join of two; joins of three, subqueries."""
    return GeneratedTasks("sql", _generate, lambda task: repr((task.prompt, task.tables)), levels=tuple(_QUESTIONS))
