"""Generated tables and questions about them: own content, answers computed independently of the SQL.

All numbers of a column have the same number of digits, so they sort alike as numbers and as texts: every column is
TEXT, as in DBBench.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gymfleet_envs.db.tables import Table, quoted, state_digest
from gymfleet_envs.db.task import DbTask
from gymfleet_envs.tasks import GeneratedTasks

_NAMES: Final = (
    "anchor", "apron", "arrow", "badge", "barrel", "basket", "bench", "blanket", "bottle", "brush", "bucket", "button",
    "candle", "canvas", "chair", "clock", "coat", "compass", "cup", "curtain", "desk", "drum", "fan", "feather",
    "flag", "flute", "fork", "glove", "hammer", "harp", "hat", "hook", "jar", "kettle", "key", "kite", "ladder",
    "lamp", "lantern", "lock", "mask", "mirror", "mug", "nail", "needle", "net", "oar", "paddle", "pan", "pen",
    "pillow", "pipe", "plate", "rake", "ribbon", "rope", "rug", "saddle", "saw", "scarf", "shelf", "shovel", "spoon",
    "stool", "table", "tent", "torch", "towel", "tray", "trunk", "vase", "wagon", "wheel", "whistle",
)  # fmt: skip
_KINDS: Final = {
    "color": ("black", "blue", "brown", "green", "grey", "pink", "red", "white", "yellow"),
    "maker": ("Alder", "Birch", "Cedar", "Drift", "Ember", "Fern", "Grove", "Haven"),
    "room": ("attic", "cellar", "hall", "kitchen", "loft", "porch", "studio", "yard"),
    "state": ("broken", "clean", "dusty", "fair", "new", "old", "worn"),
}  # fmt: skip
_NUMBERS: Final = {"age": (10, 99), "cost": (100, 999), "count": (10, 99), "size": (10, 99), "weight": (1000, 9999)}
_TABLES: Final = ("stock", "shop", "store", "museum", "workshop", "barn list", "market", "estate sale")
_ROWS: Final = {"easy": (3, 3), "medium": (5, 8), "hard": (8, 14)}


@dataclass(frozen=True, slots=True)
class _World:
    """A table being generated: its rows as dictionaries, and its columns by type."""

    rng: random.Random
    name: str
    rows: list[dict[str, str]]
    kinds: list[str]
    numbers: list[str]

    @property
    def columns(self) -> list[str]:
        return ["item", *self.kinds, *self.numbers]


@dataclass(frozen=True, slots=True)
class _Question:
    text: str
    sql: str
    answers: tuple[str, ...] = ()
    kind: str = "SELECT"
    after: list[dict[str, str]] | None = None
    """The rows after a change."""


def _world(rng: random.Random, level: str) -> _World:
    num_kinds, num_numbers = {"easy": (0, 1), "medium": (1, 2), "hard": (2, 2)}[level]
    kinds = rng.sample(sorted(_KINDS), num_kinds)
    numbers = rng.sample(sorted(_NUMBERS), num_numbers)
    names = rng.sample(_NAMES, rng.randint(*_ROWS[level]))
    values = {kind: rng.sample(_KINDS[kind], 3) for kind in kinds}  # few, or no group has two members
    columns = {
        number: rng.sample(range(_NUMBERS[number][0], _NUMBERS[number][1] + 1), len(names)) for number in numbers
    }
    rows = [
        {"item": name}
        | {kind: rng.choice(values[kind]) for kind in kinds}
        | {number: str(columns[number][place]) for number in numbers}
        for place, name in enumerate(names)
    ]
    return _World(rng, rng.choice(_TABLES), rows, kinds, numbers)


def _where(**conditions: str) -> str:
    return " AND ".join(f"{quoted(column)} = '{value}'" for column, value in conditions.items())


def _lookup(world: _World) -> _Question:
    row, column = world.rng.choice(world.rows), world.rng.choice(world.columns[1:])
    sql = f"SELECT {quoted(column)} FROM {quoted(world.name)} WHERE {_where(item=row['item'])}"  # noqa: S608
    return _Question(f"What is the {column} of the {row['item']}?", sql, (row[column],))


def _filtered(world: _World, conditions: dict[str, str]) -> list[dict[str, str]]:
    return [row for row in world.rows if all(row[column] == value for column, value in conditions.items())]


def _in_words(conditions: dict[str, str]) -> str:
    return " and ".join(f"{column} {value}" for column, value in conditions.items())


def _conditions(world: _World, count: int) -> dict[str, str]:
    row = world.rng.choice(world.rows)
    return {kind: row[kind] for kind in world.rng.sample(world.kinds, min(count, len(world.kinds)))}


def _count(world: _World) -> _Question:
    number = world.rng.choice(world.numbers)
    limit = world.rng.choice(world.rows)[number]
    found = [row for row in world.rows if int(row[number]) > int(limit)]
    sql = f"SELECT COUNT(*) FROM {quoted(world.name)} WHERE {quoted(number)} > {limit}"  # noqa: S608
    return _Question(f"How many items have a {number} above {limit}?", sql, (str(len(found)),))


def _extreme(world: _World) -> _Question:
    number, most = world.rng.choice(world.numbers), world.rng.random() < 0.5
    row = (max if most else min)(world.rows, key=lambda row: int(row[number]))
    order = "DESC" if most else "ASC"
    sql = f"SELECT item FROM {quoted(world.name)} ORDER BY {quoted(number)} {order} LIMIT 1"  # noqa: S608
    word = "highest" if most else "lowest"
    return _Question(f"Which item has the {word} {number}?", sql, (row["item"],))


def _list(world: _World) -> _Question:
    conditions = _conditions(world, 1)
    sql = f"SELECT item FROM {quoted(world.name)} WHERE {_where(**conditions)}"  # noqa: S608
    answers = tuple(row["item"] for row in _filtered(world, conditions))
    return _Question(f"Which items have the {_in_words(conditions)}? List all.", sql, answers)


def _total(world: _World) -> _Question:
    number, conditions = world.rng.choice(world.numbers), _conditions(world, world.rng.choice((1, 2)))
    values = [int(row[number]) for row in _filtered(world, conditions)]
    average = world.rng.random() < 0.5
    function, word = ("AVG", "average") if average else ("SUM", "total")
    result = f"{sum(values) / len(values):.4f}".rstrip("0").rstrip(".") if average else str(sum(values))
    sql = f"SELECT {function}({quoted(number)}) FROM {quoted(world.name)} WHERE {_where(**conditions)}"  # noqa: S608
    return _Question(f"What is the {word} {number} of the items with the {_in_words(conditions)}?", sql, (result,))


def _best_of_some(world: _World) -> _Question:
    number, conditions = world.rng.choice(world.numbers), _conditions(world, 1)
    row = max(_filtered(world, conditions), key=lambda row: int(row[number]))
    sql = (
        f"SELECT item FROM {quoted(world.name)} WHERE {_where(**conditions)} "  # noqa: S608
        f"ORDER BY {quoted(number)} DESC LIMIT 1"
    )
    return _Question(f"Which item with the {_in_words(conditions)} has the highest {number}?", sql, (row["item"],))


def _groups(world: _World) -> _Question:
    kind = world.rng.choice(world.kinds)
    sizes = {value: sum(row[kind] == value for row in world.rows) for value in {row[kind] for row in world.rows}}
    least = world.rng.randint(1, max(sizes.values()))
    answers = tuple(sorted(value for value, size in sizes.items() if size >= least))
    name = quoted(kind)
    sql = f"SELECT {name} FROM {quoted(world.name)} GROUP BY {name} HAVING COUNT(*) >= {least}"  # noqa: S608
    return _Question(f"Which values of {kind} have at least {least} items? List all.", sql, answers)


def _two_sided(world: _World) -> _Question:
    number, other = world.numbers
    row = world.rng.choice(world.rows)
    conditions = _conditions(world, 1)
    found = [r for r in _filtered(world, conditions) if int(r[number]) >= int(row[number])]
    rest = f"{_where(**conditions)} AND {quoted(number)} >= {row[number]}"
    sql = f"SELECT MIN({quoted(other)}) FROM {quoted(world.name)} WHERE {rest}"  # noqa: S608
    text = f"What is the lowest {other} of the items with the {_in_words(conditions)} and a {number} of at least"
    answer = min((r[other] for r in found), key=int, default="none")
    return _Question(f"{text} {row[number]}? Answer none if there is none.", sql, (answer,))


def _insert(world: _World) -> _Question:
    taken = {row["item"] for row in world.rows}
    item = world.rng.choice([name for name in _NAMES if name not in taken])
    new = {"item": item} | {kind: world.rng.choice(_KINDS[kind]) for kind in world.kinds}
    new |= {number: str(world.rng.randint(*_NUMBERS[number])) for number in world.numbers}
    names = ", ".join(map(quoted, new))
    values = ", ".join(f"'{value}'" for value in new.values())
    sql = f"INSERT INTO {quoted(world.name)} ({names}) VALUES ({values})"  # noqa: S608
    text = f"Insert the item {item} with the {_in_words({k: v for k, v in new.items() if k != 'item'})}."
    return _Question(text, sql, kind="INSERT", after=[*world.rows, new])


def _update(world: _World) -> _Question:
    number = world.rng.choice(world.numbers)
    drawn = world.rng.randint(*_NUMBERS[number])
    conditions = {"item": world.rng.choice(world.rows)["item"]}
    if len(world.rows) >= _ROWS["hard"][0]:
        conditions = _conditions(world, 2)
    chosen = _filtered(world, conditions)
    # A value that none of the rows has, or doing nothing would be right; a column has more values than a table rows.
    lowest, highest = _NUMBERS[number]
    there = {row[number] for row in chosen}
    new = next(str(n) for n in (*range(drawn, highest + 1), *range(lowest, drawn)) if str(n) not in there)
    after = [row | {number: new} if row in chosen else row for row in world.rows]
    where = _where(**conditions)
    sql = f"UPDATE {quoted(world.name)} SET {quoted(number)} = '{new}' WHERE {where}"  # noqa: S608
    text = f"Set the {number} to {new} where the {_in_words(conditions).replace('item ', 'item is ')}."
    return _Question(text, sql, kind="UPDATE", after=after)


def _delete(world: _World) -> _Question:
    number = world.rng.choice(world.numbers)
    limit = sorted((row[number] for row in world.rows), key=int)[1]
    after = [row for row in world.rows if int(row[number]) >= int(limit)]
    sql = f"DELETE FROM {quoted(world.name)} WHERE {quoted(number)} < {limit}"  # noqa: S608
    return _Question(f"Delete all items with a {number} below {limit}.", sql, kind="DELETE", after=after)


_QUESTIONS: Final[dict[str, tuple[Callable[[_World], _Question], ...]]] = {
    "easy": (_lookup,),
    "medium": (_lookup, _count, _extreme, _list, _total, _insert, _update, _delete),
    "hard": (_total, _best_of_some, _groups, _two_sided, _insert, _update, _delete),
}


def _generate(rng: random.Random, level: str) -> DbTask:
    world = _world(rng, level)
    question = rng.choice(_QUESTIONS[level])(world)
    rows = tuple(tuple(row.values()) for row in world.rows)
    headers = ",".join(world.columns)
    note = f"The name of this table is {world.name}, and the headers of this table are {headers}."
    return DbTask(
        prompt=f"{question.text}\n{note}",
        kind=question.kind,
        tables=(Table(world.name, tuple(world.columns), rows),),
        gold_sql=question.sql,
        answers=question.answers,
        state=state_digest([[tuple(row.values()) for row in question.after]]) if question.after is not None else "",
    )


def generated_tasks() -> GeneratedTasks[DbTask]:
    """Three levels: one value of a small table; conditions and single changes; combinations of them."""
    return GeneratedTasks("db", _generate, lambda task: repr((task.prompt, task.tables)), levels=tuple(_QUESTIONS))
