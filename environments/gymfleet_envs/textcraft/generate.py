"""Generated recipe trees: items of our own, a goal of a given depth, commands that lead nowhere."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gymfleet_envs.tasks import GeneratedTasks
from gymfleet_envs.textcraft.expert import next_move
from gymfleet_envs.textcraft.recipes import Amount, Recipe, RecipeBook
from gymfleet_envs.textcraft.task import CraftTask

_MATERIALS: Final = (
    "amber", "ash", "basalt", "birch", "bronze", "cedar", "chalk", "clay", "cobalt", "copper", "coral", "cork", "elm",
    "fern", "flax", "frost", "garnet", "granite", "hazel", "hemp", "ivory", "jade", "larch", "lead", "linen", "maple",
    "marble", "moss", "nickel", "opal", "pearl", "pine", "quartz", "reed", "resin", "ruby", "shale", "silver", "tin",
    "topaz", "walnut", "willow", "wool", "zinc",
)  # fmt: skip
_RAW_FORMS: Final = ("bark", "branch", "chunk", "dust", "leaf", "log", "lump", "ore", "pebble", "root", "seed", "shard")
_MADE_FORMS: Final = (
    "axe", "bell", "blade", "bowl", "box", "brick", "cage", "chain", "cloth", "cup", "door", "drum", "flute", "frame",
    "gear", "hook", "jar", "knife", "ladder", "lamp", "mask", "nail", "pipe", "plate", "ring", "rod", "rope", "sail",
    "shelf", "spoon", "stool", "table", "tile", "vase", "wheel", "wire",
)  # fmt: skip
_RAW_FORM_SET: Final = frozenset(_RAW_FORMS)


@dataclass(frozen=True, slots=True)
class _Shape:
    depth: int
    max_inputs: int
    max_count: int
    num_distractors: tuple[int, int]
    generic_share: float = 0.0
    """How often a made ingredient is named by its kind alone."""
    max_steps: int = 20
    """A task that takes more steps is drawn again."""


_SHAPES: Final = {
    "depth_1": _Shape(depth=1, max_inputs=2, max_count=4, num_distractors=(1, 2)),
    "depth_2": _Shape(depth=2, max_inputs=2, max_count=3, num_distractors=(2, 3)),
    "depth_3": _Shape(depth=3, max_inputs=2, max_count=3, num_distractors=(3, 4), generic_share=0.2),
    "depth_4": _Shape(depth=4, max_inputs=3, max_count=3, num_distractors=(4, 6), generic_share=0.3),
}


class _Builder:
    """Grows the tree from the goal down; items are new or reused, but never their own ingredients."""

    def __init__(self, rng: random.Random, shape: _Shape) -> None:
        self._rng = rng
        self._shape = shape
        self._names = {True: self._fresh_names(_RAW_FORMS), False: self._fresh_names(_MADE_FORMS)}
        self._depths: dict[str, int] = {}
        self._recipes: list[Recipe] = []
        self._kinds: dict[str, set[str]] = {}

    def build(self) -> CraftTask:
        goal = self._make(self._shape.depth)
        for _ in range(self._rng.randint(*self._shape.num_distractors)):
            self._add_recipe(depth=1, reuse=0.7)
        book = RecipeBook(self._recipes, self._kinds)
        commands = [recipe.command for recipe in self._recipes]
        self._rng.shuffle(commands)
        return CraftTask(book, goal, tuple(commands))

    def _fresh_names(self, forms: tuple[str, ...]) -> Iterator[str]:
        names = [f"{material} {form}" for material in _MATERIALS for form in forms]
        return iter(self._rng.sample(names, 100))

    def _make(self, depth: int) -> str:
        """Return an item of exactly this depth."""
        if depth == 0:
            name = next(self._names[True])
            self._depths[name] = 0
            return name
        return self._add_recipe(depth, reuse=0.3)

    def _add_recipe(self, depth: int, reuse: float) -> str:
        names = [self._pick(depth - 1, reuse if depth == 1 else 0.0)]
        for _ in range(self._rng.randint(1, self._shape.max_inputs) - 1):
            # Side branches are shallow, because a tree of depth 4 would otherwise outgrow the turns of an episode.
            name = self._pick(self._rng.randint(0, min(depth - 1, 1)), reuse)
            if name not in names:
                names.append(name)
        inputs = tuple(Amount(self._count(name), self._call(name)) for name in names)
        name = next(self._names[False])
        self._depths[name] = depth
        count = self._rng.choice((1, 1, 1, 2, 4)) if depth < self._shape.depth else 1
        self._recipes.append(Recipe(inputs, Amount(count, name)))
        return name

    def _pick(self, depth: int, reuse: float) -> str:
        known = sorted(name for name, at in self._depths.items() if at == depth)
        return self._rng.choice(known) if known and self._rng.random() < reuse else self._make(depth)

    def _count(self, name: str) -> int:
        return self._rng.randint(1, self._shape.max_count if self._depths[name] == 0 else 2)

    def _call(self, name: str) -> str:
        """Return the item's own name, or its kind: `walnut wheel` or `wheel`."""
        kind = name.rpartition(" ")[2]
        if kind in _RAW_FORM_SET or (kind not in self._kinds and self._rng.random() >= self._shape.generic_share):
            return name
        self._kinds.setdefault(kind, set()).add(name)
        return kind


def _generate(rng: random.Random, level: str) -> CraftTask:
    """Draw until the planner needs a fair number of steps."""
    shape = _SHAPES[level]
    while True:
        task = _Builder(rng, shape).build()
        if _is_solved_within(shape.max_steps, task):
            return task


def _is_solved_within(max_steps: int, task: CraftTask) -> bool:
    inventory: dict[str, int] = {}
    for _ in range(max_steps + 1):
        if inventory.get(task.goal):
            return True
        move = next_move(task.book, inventory, task.goal)
        if move is None:
            break
        _play(task.book, inventory, move.action)
    return False


def _play(book: RecipeBook, inventory: dict[str, int], action: str) -> None:
    """Apply the planner's own command, which is known to be legal."""
    verb, _, rest = action.partition(" ")
    if verb == "get":
        count, _, name = rest.partition(" ")
        inventory[name] = inventory.get(name, 0) + int(count)
        return
    output, _, inputs = rest.partition(" using ")
    given = [Amount(int(count), name) for count, _, name in (part.partition(" ") for part in inputs.split(", "))]
    recipe = book.match(output.partition(" ")[2], given)
    assert recipe is not None  # noqa: S101 - the planner applies recipes of this book
    for amount in given:
        inventory[amount.name] -= amount.count
    inventory[recipe.output.name] = inventory.get(recipe.output.name, 0) + recipe.output.count


def _fingerprint(task: CraftTask) -> str:
    return "\n".join([task.goal, *sorted(task.commands)])


def generated_tasks() -> GeneratedTasks[CraftTask]:
    """Return tasks of four levels, which are the depths of the goal's recipe tree."""
    return GeneratedTasks("textcraft", _generate, _fingerprint, levels=tuple(_SHAPES), default_level="depth_2")
