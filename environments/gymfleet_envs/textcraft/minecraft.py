"""Minecraft's own recipes, as TextCraft (ADaPT, AgentGym) selects and reads them."""

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

from gymfleet_contracts.faults import faults
from gymfleet_contracts.session import Split
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gymfleet_envs.task_files import read_text
from gymfleet_envs.tasks import ListedTasks, Task, TaskDataError
from gymfleet_envs.textcraft.recipes import UNREACHABLE, Amount, Recipe, RecipeBook, item_name
from gymfleet_envs.textcraft.task import CraftTask

_MAX_FILES: Final = 20_000
_MAX_FILE_BYTES: Final = 64 * 1024
_MAX_DISTRACTORS: Final = 10
_Identifier = Annotated[str, Field(pattern=r"^minecraft:[a-z0-9_]{1,64}$")]


class _Choice(BaseModel):
    """One ingredient: an item, or a tag that stands for several."""

    model_config = ConfigDict(frozen=True)
    item: _Identifier | None = None
    tag: _Identifier | None = None

    @property
    def name(self) -> str:
        return item_name(self.item or self.tag or "")


class _Result(BaseModel):
    item: _Identifier
    count: Annotated[int, Field(ge=1, le=64)] = 1


_Slot = _Choice | Annotated[list[_Choice], Field(min_length=1)]


class _Crafting(BaseModel, ABC):
    result: _Result
    group: Annotated[str, Field(pattern=r"^[a-z0-9_]{0,64}$")] = ""

    @abstractmethod
    def slots(self) -> Iterator[_Slot]:
        """Yield the ingredient for each filled place of the grid."""


class _Shaped(_Crafting):
    type: Literal["minecraft:crafting_shaped"]
    pattern: Annotated[list[str], Field(min_length=1, max_length=3)]
    key: dict[Annotated[str, Field(min_length=1, max_length=1)], _Slot]

    def slots(self) -> Iterator[_Slot]:
        grid = "".join(self.pattern)
        for symbol, slot in self.key.items():
            if symbol not in grid:
                raise ValueError(f"key {symbol!r} does not occur in the pattern")
            yield from [slot] * grid.count(symbol)
        if missing := sorted(set(grid) - self.key.keys() - {" "}):
            raise ValueError(f"the pattern has {missing[0]!r}, which the key does not explain")


class _Shapeless(_Crafting):
    type: Literal["minecraft:crafting_shapeless"]
    ingredients: Annotated[list[_Slot], Field(min_length=1, max_length=9)]

    def slots(self) -> Iterator[_Slot]:
        yield from self.ingredients


_RECIPE: Final[TypeAdapter[_Shaped | _Shapeless]] = TypeAdapter(
    Annotated[_Shaped | _Shapeless, Field(discriminator="type")]
)
_CRAFTING_TYPES: Final = ("minecraft:crafting_shaped", "minecraft:crafting_shapeless")


def minecraft_tasks(data: Path) -> ListedTasks[CraftTask]:
    """Return a task for every craftable item; ids number the goals by depth, then by name.

    Goals whose id ends in 0 to 7 are for training, in 8 for validation, in 9 for testing. Raises `TaskDataError`.
    """
    book = load_recipes(data)
    goals = sorted((book.depth(name), name) for name in {recipe.output.name for recipe in book.recipes})
    split_of: dict[int, Split] = {8: "validation", 9: "test"}
    tasks = [
        Task(
            task_id=str(number),
            split=split_of.get(number % 10, "train"),
            level=f"depth_{depth}",
            data=CraftTask(book, goal, _commands(book, goal)),
        )
        for number, (depth, goal) in enumerate(goal for goal in goals if goal[0] < UNREACHABLE)
    ]
    if not tasks:
        raise TaskDataError(f"textcraft: {data / 'recipes'} makes no item craftable")
    return ListedTasks("textcraft", "minecraft", tasks)


def load_recipes(data: Path) -> RecipeBook:
    """Read `data/recipes/*.json` in the order of their names. Raises `TaskDataError`."""
    folder = data / "recipes"
    files = sorted(folder.glob("*.json"))
    if not files:
        raise TaskDataError(f"textcraft: {folder} holds no recipe (*.json)")
    if len(files) > _MAX_FILES:
        raise TaskDataError(f"textcraft: {folder} holds {len(files)} files; at most {_MAX_FILES} are read")
    selection = _Selection()
    for path in files:
        crafting = _read(path)
        if crafting is not None:
            selection.add(path, crafting)
    return selection.book()


def _read(path: Path) -> _Shaped | _Shapeless | None:
    """Return a crafting recipe; None for smelting, stonecutting and the like."""
    text = read_text("textcraft", path, max_bytes=_MAX_FILE_BYTES)
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TaskDataError(f"textcraft: {path}: not JSON: {error}") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("type"), str):
        raise TaskDataError(f"textcraft: {path}: not an object with a 'type'")
    if raw["type"] not in _CRAFTING_TYPES:
        return None
    try:
        return _RECIPE.validate_python(raw)
    except ValidationError as error:
        raise TaskDataError(f"textcraft: {path}: {faults(error, most=1)}") from None


class _Selection:
    """TextCraft's reading: the first choice of a slot, no unpacking of blocks, no cycles, groups as kinds."""

    # Three pairs of recipes undo each other. TextCraft keeps whichever the directory lists first, which differs
    # between machines; these are the ones that AgentGym's published episodes do without.
    _DROPPED: Final = frozenset({"gold_nugget.json", "iron_ingot_from_nuggets.json", "honey_block.json"})

    def __init__(self) -> None:
        self._recipes: list[Recipe] = []
        self._tags: set[str] = set()
        self._items: set[str] = set()
        self._group_of: dict[str, str] = {}
        self._made_from: dict[str, set[str]] = {}

    def add(self, path: Path, crafting: _Shaped | _Shapeless) -> None:
        inputs: dict[str, int] = {}
        try:
            for slot in crafting.slots():
                choice = slot[0] if isinstance(slot, list) else slot
                if not choice.name or (choice.item and choice.tag):
                    raise ValueError("an ingredient is either an item or a tag")
                (self._items if choice.item else self._tags).add(choice.name)
                inputs[choice.name] = inputs.get(choice.name, 0) + 1
            if not inputs:
                raise ValueError("there is no ingredient")
        except ValueError as error:
            raise TaskDataError(f"textcraft: {path}: {error}") from None
        output = item_name(crafting.result.item)
        self._items.add(output)
        unpacks_block = len(inputs) == 1 and next(iter(inputs)).endswith(" block")
        if unpacks_block or path.name in self._DROPPED:
            return
        if crafting.group and item_name(crafting.group) != output:
            self._group_of[output] = item_name(crafting.group)
        if any(output in self._made_from.get(name, ()) for name in inputs):
            return
        sources = self._made_from.setdefault(output, set())
        for name in inputs:
            sources |= {name} | self._made_from.get(name, set())
        amounts = tuple(Amount(count, name) for name, count in inputs.items())
        self._recipes.append(Recipe(amounts, Amount(crafting.result.count, output)))

    def book(self) -> RecipeBook:
        craftable = {recipe.output.name for recipe in self._recipes}
        members: dict[str, set[str]] = {}
        for item, group in self._group_of.items():
            members.setdefault(group, set()).add(item)
        kinds = {kind: items for kind, items in members.items() if items & craftable}
        # A tag without a craftable member is an item like any other: "get 1 acacia logs".
        return RecipeBook(self._recipes, kinds, extra_items=(self._items | self._tags) - set(kinds))


def _commands(book: RecipeBook, goal: str) -> tuple[str, ...]:
    """Return all recipes below the goal and up to ten others that use the same ingredients, shuffled."""
    recipes: dict[str, Recipe] = {}
    waiting, seen = [goal], {goal}
    while waiting:
        for recipe in book.recipes_for(waiting.pop()):
            recipes[recipe.command] = recipe
            fresh = [amount.name for amount in recipe.inputs if amount.name not in seen]
            seen.update(fresh)
            waiting += fresh
    used = {amount.name for recipe in recipes.values() for amount in recipe.inputs}
    others = sorted(
        {r.command for r in book.recipes if r.command not in recipes and any(a.name in used for a in r.inputs)}
    )
    rng = random.Random(f"textcraft/{goal}")
    commands = sorted(recipes) + rng.sample(others, min(len(others), _MAX_DISTRACTORS))
    rng.shuffle(commands)
    return tuple(commands)
