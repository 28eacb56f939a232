"""WebShop's own products and goals: read from its files, or from a directory that was imported from them."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from gymfleet_contracts.session import Split

from gymfleet_envs.tasks import Task, TaskDataError, UnknownTask
from gymfleet_envs.webshop.goals import GoalKind, GoalRow, GoalTable, collect, goal_of
from gymfleet_envs.webshop.products import Extras, Product, json_entries, json_object, read_products
from gymfleet_envs.webshop.scoring import Goal, RewardRule
from gymfleet_envs.webshop.shop import MANIFEST, Shop, ShopWriter, memory_shop, open_shop

PRODUCT_FILES: Final = ("products_1000.jsonl", "items_shuffle_1000.json", "items_shuffle.json", "products.jsonl")
ATTRIBUTE_FILES: Final = ("items_ins_v2_1000.json", "items_ins_v2.json")
HUMAN_FILE: Final = "items_human_ins.json"
REVIEW_FILE: Final = "reviews.json"
MAX_IN_MEMORY: Final = 20_000
_NUM_TEST: Final = 500
_NUM_EVALUATION: Final = 1_000
GoalChoice = Literal["auto", "synthetic", "human"]


@dataclass(frozen=True, slots=True)
class ShopTask:
    """Buy in `shop` what the goal asks for; options are compared by `rule`."""

    goal: Goal
    shop: Shop = field(repr=False)
    rule: RewardRule


class ShopGoals:
    """The goals of a catalogue. Task id: the goal's number in upstream's shuffled list, AgentGym's `session_id`."""

    name: Final = "webshop"

    def __init__(self, shop: Shop, goals: npt.NDArray[np.int32], kind: GoalKind, rule: RewardRule) -> None:
        self._shop = shop
        self._rule: RewardRule = rule
        self._goals = goals
        self._kind: GoalKind = kind
        self.levels: Sequence[str] = (kind,)
        self.default_level: str = kind
        ends = {"test": _NUM_TEST, "validation": _NUM_TEST + _NUM_EVALUATION, "train": len(goals)}
        begins = {"test": 0, "validation": ends["test"], "train": ends["validation"]}
        self._ranges = {split: range(begins[split], min(ends[split], len(goals))) for split in ends}

    def count(self, split: Split, level: str) -> int:
        """Upstream's splits: the first 500 are for testing, the next 1,000 for validation."""
        return len(self._ranges[split]) if level == self._kind and split in self._ranges else 0

    def by_index(self, split: Split, level: str, index: int) -> Task[ShopTask]:
        """Return a task of a split, in the order of the shuffled list."""
        count = self.count(split, level)
        if not 0 <= index < count:
            raise UnknownTask(
                f"webshop has {count} tasks in {split}/{level}; index {index} is outside; level: {self._kind}",
                count=count,
            )
        return self._task(self._ranges[split][index], split)

    def by_id(self, task_id: str) -> Task[ShopTask]:
        """Return a task by its number in the list."""
        if task_id.isascii() and task_id.isdigit() and len(task_id) <= 9:
            for split, numbers in self._ranges.items():
                if int(task_id) in numbers:
                    return self._task(int(task_id), split)  # type: ignore[arg-type]
        raise UnknownTask(f"webshop has no goal {task_id[:40]!r}; they are numbered from 0 to {len(self._goals) - 1}")

    def _task(self, number: int, split: Split) -> Task[ShopTask]:
        place, item, cap = (int(value) for value in self._goals[number])
        goal = goal_of(self._shop.shelf.at(place), GoalRow(place, item, cap), self._kind)
        return Task(task_id=str(number), split=split, level=self._kind, data=ShopTask(goal, self._shop, self._rule))


def webshop_goals(data: Path, choice: GoalChoice, rule: RewardRule = "agentgym") -> ShopGoals:
    """Return the tasks in a directory. Raises `TaskDataError`."""
    if (data / MANIFEST).is_file():
        shop, manifest, rows = open_shop(data)
        kind: GoalKind = "human" if manifest.get("kind") == "human" else "synthetic"
        if choice not in ("auto", kind):
            raise TaskDataError(f"{data.name} was imported with {kind} goals, not {choice} ones: import it again")
        return ShopGoals(shop, rows, kind, rule)
    source = _Files(data, choice)
    products: list[Product] = []
    for product in source.products():
        products.append(product)
        if len(products) > MAX_IN_MEMORY:
            raise TaskDataError(
                f"{source.products_file.name} has more than {MAX_IN_MEMORY} products: run `gymfleet data import "
                "webshop` on the directory first, which puts them into an index on disk"
            )
    prices, rows = collect(products, source.kind)
    _check_goals(len(rows), source)
    return ShopGoals(memory_shop(products, prices), rows, source.kind, rule)


def import_shop(data: Path, target: Path, choice: GoalChoice) -> None:
    """Put products, index, prices and goals of WebShop's files into `target`. Raises `TaskDataError`."""
    if (data / MANIFEST).is_file():  # imported before: as it is
        webshop_goals(data, choice)
        shutil.copytree(data, target, dirs_exist_ok=True)
        return
    source = _Files(data, choice)
    writer, table = ShopWriter(target), GoalTable(source.kind)
    for product in source.products():
        writer.add(product)
        table.add(product)
    goals = table.finish()
    _check_goals(len(goals), source)
    arrays: dict[str, npt.NDArray[Any]] = {"prices": np.array(table.prices, np.float64), "goals": goals}
    writer.finish(arrays, {"kind": source.kind, "goals": len(goals)})


class _Files:
    """The files of a directory, by upstream's names."""

    def __init__(self, data: Path, choice: GoalChoice) -> None:
        self._data = data
        self.products_file = self._first(PRODUCT_FILES, "products")
        self._attributes_file = self._first(ATTRIBUTE_FILES, "attributes and instructions")
        has_human = (data / HUMAN_FILE).is_file()
        if choice == "human" and not has_human:
            raise TaskDataError(f"{data.name} has no {HUMAN_FILE}: human goals are read from it")
        self.kind: GoalKind = "human" if has_human and choice != "synthetic" else "synthetic"

    def products(self) -> Iterator[Product]:
        """Read all files, and yield the products one by one."""
        human = json_object(self._data / HUMAN_FILE) if self.kind == "human" else {}
        extras = Extras(json_object(self._attributes_file), human, *self._reviews())
        return read_products(self.products_file, extras)

    def _reviews(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return reviews and average ratings by ASIN."""
        path = self._data / REVIEW_FILE
        reviews: dict[str, Any] = {}
        ratings: dict[str, Any] = {}
        if not path.is_file():
            return reviews, ratings
        for number, entry in json_entries(path):
            if not isinstance(entry, dict) or not isinstance(entry.get("asin"), str):
                raise TaskDataError(f"{path.name}: entry {number}: is no object with an asin")
            reviews[entry["asin"]] = entry.get("reviews", [])
            if "average_rating" in entry:
                ratings[entry["asin"]] = entry["average_rating"]
        return reviews, ratings

    def _first(self, names: Sequence[str], what: str) -> Path:
        for name in names:
            if (path := self._data / name).is_file():
                return path
        raise TaskDataError(f"{self._data.name} has no file with {what}: one of {', '.join(names)}")


def _check_goals(count: int, source: _Files) -> None:
    if not count:
        raise TaskDataError(f"{source.products_file.name}: none of its products has a {source.kind} goal")
