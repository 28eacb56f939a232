"""Draw the tables of a generated workbook: the stock of a shop."""

import random
from typing import Final

from gymfleet_envs.sheet.cells import Cell, Value
from gymfleet_envs.sheet.workbook import Sheet

HEADER: Final = ("Product", "Category", "Price", "Quantity", "Location", "Rating")
PRODUCT, CATEGORY, PRICE, QUANTITY, LOCATION, RATING = range(6)
PROFIT: Final = len(HEADER)
"""The column that a goal fills."""
CATEGORIES: Final[dict[str, tuple[str, ...]]] = {
    "Bakery": ("baguette", "bagel", "brioche", "croissant", "muffin", "pretzel", "roll", "rye bread", "scone"),
    "Dairy": ("butter", "cheddar", "cream", "gouda", "kefir", "milk", "mozzarella", "quark", "yoghurt"),
    "Fruits": ("apple", "apricot", "banana", "cherry", "grape", "mango", "orange", "peach", "plum"),
    "Seafood": ("cod", "crab", "herring", "mussel", "prawn", "salmon", "sardine", "trout", "tuna"),
    "Vegetables": ("bean", "cabbage", "carrot", "celery", "leek", "onion", "pea", "radish", "spinach"),
}
LOCATIONS: Final = ("Store A", "Store B", "Store C", "Store D")
_TWO_DECIMALS: Final = "#,##0.00"
_FORMATS: Final = ("General", "General", _TWO_DECIMALS, "General", "General", "0.0")
_SHEETS: Final = 3


def draw_sheets(rng: random.Random) -> tuple[Sheet, ...]:
    """Return tables with names such as Sheet7."""
    numbers = rng.sample(range(1, 60), _SHEETS)
    return tuple(_sheet(rng, f"Sheet{number}") for number in numbers)


def _sheet(rng: random.Random, name: str) -> Sheet:
    """Return a table in which no two rows share a price, quantity or rating, so that every sort order is unique."""
    chosen = [(product, kind) for kind in rng.sample(sorted(CATEGORIES), 3)
              for product in rng.sample(CATEGORIES[kind], rng.randint(1, 3))]  # fmt: skip
    rng.shuffle(chosen)
    count = len(chosen)
    prices, quantities = rng.sample(range(40, 2500, 5), count), rng.sample(range(5, 200), count)
    ratings = rng.sample(range(20, 50), count)
    rows: list[tuple[Value, ...]] = [HEADER]
    for (product, kind), price, quantity, rating in zip(chosen, prices, quantities, ratings, strict=True):
        rows.append((product, kind, price / 100, float(quantity), rng.choice(LOCATIONS), rating / 10))
    return Sheet(name, tuple(tuple(map(Cell, row, _FORMATS)) for row in rows))
