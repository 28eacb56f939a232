"""The goals of a catalogue, their order, and the limits of the price.

Upstream draws a price from each range and the caps before it seeds its generator, so its
goals differ from run to run. Here, each kind of draw has its own generator with
upstream's seed, and the order is upstream's.
"""

import itertools
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from gymfleet_envs.webshop.products import Product, Wish
from gymfleet_envs.webshop.scoring import NO_CAP, Goal

SEED: Final = 233
PRICE_STEPS: Final = tuple(10.0 * step for step in range(1, 100))
_NEXT_STEPS: Final = 4
MAX_COMBINATIONS: Final = 10_000
GoalKind = Literal["synthetic", "human"]
GoalArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class GoalRow:
    """A goal in short: the product, the number of its wish or of its combination of options, the cap in dollars."""

    place: int
    item: int
    cap: int


class GoalTable:
    """Collects prices and goals over the products of a catalogue, in their order."""

    def __init__(self, kind: GoalKind) -> None:
        self._kind = kind
        self._price_rng = random.Random(SEED)
        self._cap_rng = random.Random(SEED)
        self._rows: list[tuple[int, int, int]] = []
        self.prices: list[float] = []

    def add(self, product: Product) -> None:
        """Add the next product."""
        low, high = product.prices[0], product.prices[-1]
        price = low if len(product.prices) == 1 else self._price_rng.uniform(low, high)
        place = len(self.prices)
        self.prices.append(price)
        if self._kind == "human":
            self._rows += [(place, item, self._cap(price)) for item in range(len(product.human_wishes))]
        elif product.wish is not None:
            cap = self._cap(price)
            self._rows += [(place, item, cap) for item in range(num_combinations(product))]

    def finish(self) -> GoalArray:
        """Return the goals (N, 3) int32, shuffled as upstream shuffles its list."""
        random.Random(SEED).shuffle(self._rows)
        return np.array(self._rows, np.int32).reshape(-1, 3)

    def _cap(self, price: float) -> int:
        """Draw two of the next four steps above the price, and return the larger."""
        above = [step for step in PRICE_STEPS if step > price][:_NEXT_STEPS]
        return NO_CAP if len(above) < 2 else int(max(self._cap_rng.sample(above, 2)))


def num_combinations(product: Product) -> int:
    """Return the number of synthetic goals for the product, at most `MAX_COMBINATIONS`."""
    return min(math.prod(len(values) for values in product.options.values()), MAX_COMBINATIONS)


def goal_of(product: Product, row: GoalRow, kind: GoalKind) -> Goal:
    """Return the goal of a row."""
    if kind == "human":
        wish = product.human_wishes[row.item]
        return make_goal(product, wish, wish.text, wish.options, row.cap)
    if product.wish is None:
        raise LookupError(f"{product.asin} has no instruction: goals and products of the catalogue do not fit")
    options = next(itertools.islice(_combinations(product), row.item, None))
    named = ", and ".join(f"{name}: {value}" for name, value in options)
    text = f"{product.wish.text} with {named}" if named else product.wish.text
    return make_goal(product, product.wish, text, options, row.cap)


def make_goal(product: Product, wish: Wish, text: str, options: tuple[tuple[str, str], ...], cap: int) -> Goal:
    """Return a goal with upstream's words for the price."""
    return Goal(
        instruction=text if cap >= NO_CAP else f"{text}, and price lower than {cap:.2f} dollars",
        asin=product.asin,
        title=product.title,
        query=product.query,
        product_category=product.product_category,
        attributes=wish.attributes,
        options=options,
        price_cap=cap,
    )


def collect(products: Iterable[Product], kind: GoalKind) -> tuple[list[float], GoalArray]:
    """Return prices and goals of a whole catalogue."""
    table = GoalTable(kind)
    for product in products:
        table.add(product)
    return table.prices, table.finish()


def _combinations(product: Product) -> Iterator[tuple[tuple[str, str], ...]]:
    names = sorted(product.options)
    for values in itertools.product(*(product.options[name] for name in names)):
        yield tuple(zip(names, values, strict=True))
