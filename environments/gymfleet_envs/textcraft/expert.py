"""The planner, which finds the next command on the way to an item."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from gymfleet_contracts.session import ExpertMove

from gymfleet_envs.textcraft.recipes import UNREACHABLE, Amount, Recipe, RecipeBook


@dataclass(frozen=True, slots=True)
class _Craft:
    recipe: Recipe
    inputs: tuple[Amount, ...]
    times: int


def next_move(book: RecipeBook, inventory: Mapping[str, int], goal: str) -> ExpertMove | None:
    """Return the next step of a plan from this inventory; None if the goal cannot be made."""
    if book.depth(goal) >= UNREACHABLE:
        return None
    if book.gettable(goal):
        return ExpertMove(thought=f"No command crafts {goal}, so I get it.", action=f"get 1 {goal}")
    needs, crafts = _demand(book, inventory, goal)
    # Every made ingredient has a lower depth than its product, so the lowest craft lacks only raw items.
    craft = min(crafts, key=lambda craft: (book.depth(craft.recipe.output.name), craft.recipe.output.name))
    product = craft.recipe.output.name
    for amount in craft.inputs:
        missing = needs[amount.name] - inventory.get(amount.name, 0)
        if inventory.get(amount.name, 0) < amount.count and missing > 0:
            return ExpertMove(
                thought=f"I need {needs[amount.name]} {amount.name} for {product}. No command crafts it, so I get it.",
                action=f"get {missing} {amount.name}",
            )
    purpose = "That is the goal." if product == goal else f"I need it for {goal}."
    return ExpertMove(
        thought=f"I have what {product} takes. {purpose}",
        action=Recipe(craft.inputs, craft.recipe.output).command,
    )


def _demand(book: RecipeBook, inventory: Mapping[str, int], goal: str) -> tuple[dict[str, int], list[_Craft]]:
    """Return how much of each item the plan uses up, and the crafts that are still to do."""
    needs = {goal: inventory.get(goal, 0) + 1}
    crafts: list[_Craft] = []
    done: set[str] = set()
    while waiting := [name for name in needs if name not in done]:
        # Deepest first: everything that consumes an item has then been counted.
        name = max(waiting, key=lambda name: (book.depth(name), name))
        done.add(name)
        missing = needs[name] - inventory.get(name, 0)
        if missing <= 0 or book.gettable(name):
            continue
        recipe = book.easiest(name)
        times = ceil(missing / recipe.output.count)
        inputs = tuple(Amount(a.count, _concrete(book, inventory, a, times)) for a in recipe.inputs)
        crafts.append(_Craft(recipe, inputs, times))
        for amount in inputs:
            needs[amount.name] = needs.get(amount.name, 0) + amount.count * times
    return needs, crafts


def _concrete(book: RecipeBook, inventory: Mapping[str, int], amount: Amount, times: int) -> str:
    """Return the item to use for an ingredient: one in stock, else the easiest of the kind."""
    members = book.members(amount.name)
    in_stock = [name for name in members if inventory.get(name, 0) >= amount.count * times]
    return min(in_stock or members, key=lambda name: (book.depth(name), name))
