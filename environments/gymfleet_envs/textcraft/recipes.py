"""Recipes, and which items can be got, crafted or only named as a kind."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

NAMESPACE: Final = "minecraft:"
UNREACHABLE: Final = 1_000_000


def item_id(name: str) -> str:
    """`oak planks` -> `minecraft:oak_planks`."""
    return NAMESPACE + name.replace(" ", "_")


def item_name(identifier: str) -> str:
    """`minecraft:oak_planks` -> `oak planks`."""
    return identifier.removeprefix(NAMESPACE).replace("_", " ")


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of one item, or of any item of a kind."""

    count: int
    name: str

    def __str__(self) -> str:
        return f"{self.count} {self.name}"


@dataclass(frozen=True, slots=True)
class Recipe:
    """`inputs` become `output`. Each input names an item or a kind."""

    inputs: tuple[Amount, ...]
    output: Amount

    @property
    def command(self) -> str:
        """The crafting command that applies the recipe."""
        return f"craft {self.output} using {', '.join(str(amount) for amount in self.inputs)}"


class RecipeBook:
    """An immutable set of recipes.

    Args:
        recipes: the recipes, in the order in which alternatives are tried.
        kinds: for each kind (Minecraft's "tag"), the items that belong to it.
        extra_items: items that exist without being part of a recipe.
    """

    def __init__(
        self, recipes: Sequence[Recipe], kinds: Mapping[str, Iterable[str]], extra_items: Iterable[str] = ()
    ) -> None:
        self.recipes = tuple(recipes)
        self._kinds = {kind: frozenset(items) for kind, items in kinds.items()}
        self._by_output: dict[str, list[Recipe]] = {}
        items = set(extra_items)
        for recipe in recipes:
            self._by_output.setdefault(recipe.output.name, []).append(recipe)
            items.add(recipe.output.name)
            items.update(amount.name for amount in recipe.inputs if amount.name not in self._kinds)
        self._items = frozenset(items)
        self._depths = self._solve_depths()

    def is_kind(self, name: str) -> bool:
        """Whether the name stands for several items."""
        return name in self._kinds

    def gettable(self, name: str) -> bool:
        """Whether the item is raw: items without a recipe are taken from the surroundings."""
        return name in self._items and name not in self._by_output and name not in self._kinds

    def recipes_for(self, name: str) -> Sequence[Recipe]:
        """Return all ways to make an item, or any item of a kind."""
        if name in self._kinds:
            return [recipe for item in sorted(self._kinds[name]) for recipe in self._by_output.get(item, ())]
        return self._by_output.get(name, ())

    def members(self, name: str) -> Sequence[str]:
        """Return the items that an ingredient's name admits."""
        return sorted(self._kinds.get(name, (name,)))

    def depth(self, name: str) -> int:
        """Return the crafting levels between raw items and this one; `UNREACHABLE` if it cannot be made."""
        if name in self._kinds:
            return min((self._depths.get(item, UNREACHABLE) for item in self._kinds[name]), default=UNREACHABLE)
        return self._depths.get(name, UNREACHABLE)

    def easiest(self, name: str) -> Recipe:
        """Return the recipe with the least depth; raises KeyError for an item that has none."""
        return min(self._by_output[name], key=self._recipe_depth)

    def match(self, output: str, given: Sequence[Amount]) -> Recipe | None:
        """Return the recipe of `output` that uses exactly `given`, each amount as a whole."""
        for recipe in self._by_output.get(output, ()):
            left = list(given)
            # Named items first: a kind must not take the item that a later line names.
            for wanted in sorted(recipe.inputs, key=lambda amount: amount.name in self._kinds):
                admitted = self._kinds.get(wanted.name, (wanted.name,))
                found = next((a for a in left if a.count == wanted.count and a.name in admitted), None)
                if found is None:
                    break
                left.remove(found)
            else:
                if not left:
                    return recipe
        return None

    def _recipe_depth(self, recipe: Recipe) -> int:
        return max(self.depth(amount.name) for amount in recipe.inputs)

    def _solve_depths(self) -> dict[str, int]:
        """Raw items have depth 0; an item's depth is one more than its easiest recipe's deepest input."""
        self._depths = {name: 0 for name in self._items if self.gettable(name)}
        while True:
            found = {
                name: min(self._recipe_depth(recipe) for recipe in recipes) + 1
                for name, recipes in self._by_output.items()
                if name not in self._depths
            }
            solved = {name: depth for name, depth in found.items() if depth < UNREACHABLE}
            if not solved:
                return self._depths
            lowest = min(solved.values())
            self._depths |= {name: depth for name, depth in solved.items() if depth == lowest}
