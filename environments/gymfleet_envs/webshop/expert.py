"""A shopper who knows which product is meant: finds it, chooses its options, buys it."""

import re
from functools import lru_cache
from typing import Final

from gymfleet_contracts.session import ExpertMove
from rapidfuzz import fuzz

from gymfleet_envs.webshop.products import Product
from gymfleet_envs.webshop.scoring import Goal, normalize_color
from gymfleet_envs.webshop.shop import Shop

_OPENING: Final = re.compile(
    r"^(?:find me|i need|i want|i am looking for|im looking for|i would like)\s+(?:an? )?", re.IGNORECASE
)
_PRICE: Final = re.compile(r",? and price lower than [0-9.]+ dollars$")


@lru_cache(maxsize=1024)
def query_for(goal: Goal, shop: Shop) -> str:
    """Return keywords that find the goal's product: the instruction's, or its title, whichever shows it earlier."""
    wish = _OPENING.sub("", _PRICE.sub("", goal.instruction))
    plain = wish.split(" with color: ")[0].split(" with size: ")[0]
    place = shop.shelf.place_of(goal.asin)
    product = shop.shelf.at(place)
    best, best_rank = product.title.lower(), shop.max_results
    for query in (plain, wish, product.title, f"{product.title} {product.description}"[:1000]):
        words = " ".join(re.sub(r"[\[\]]", " ", query.lower()).split())
        found = shop.search(words) if words else []
        rank = found.index(place) if place in found else shop.max_results
        if rank < shop.page_size:
            return words
        if rank < best_rank:
            best, best_rank = words, rank
    return best


def search_move(goal: Goal, shop: Shop) -> ExpertMove:
    """Search for the product."""
    return ExpertMove(thought="I search for what is asked for.", action=f"search[{query_for(goal, shop)}]")


def results_move(goal: Goal, shop: Shop, hits: tuple[int, ...], page_number: int) -> ExpertMove | None:
    """Open the product, or turn the page towards it; None if it was not found."""
    place = shop.shelf.place_of(goal.asin)
    if place not in hits:
        return None
    page = hits.index(place) // shop.page_size + 1
    if page == page_number:
        return ExpertMove(thought=f"{goal.asin} fits what is asked for.", action=f"click[{goal.asin}]")
    if page > page_number:
        return ExpertMove(thought="Nothing here fits, so I look further.", action="click[Next >]")
    return ExpertMove(thought="What fits was on an earlier page.", action="click[< Prev]")


def item_move(goal: Goal, product: Product, chosen: dict[str, str]) -> ExpertMove:
    """Choose the options that are still missing, then buy."""
    if product.asin != goal.asin:
        return ExpertMove(thought="This is not what is asked for.", action="click[< Prev]")
    groups = {value: name for name, values in product.options.items() for value in values}
    for name, wanted in goal.options:
        value = _closest(wanted, product.options.get(name) or tuple(groups))
        if value is None or chosen.get(groups[value]) == value:
            continue
        # A value that two groups share is chosen in the last of them; that group's own wish would undo it for ever.
        if (
            any(groups.get(other) == groups[value] for key, other in goal.options if key != name)
            and groups[value] in chosen
        ):
            continue
        return ExpertMove(thought=f"I choose {value}.", action=f"click[{value}]")
    return ExpertMove(thought="All is chosen: I buy it.", action="click[Buy Now]")


def _closest(wanted: str, values: tuple[str, ...]) -> str | None:
    if wanted in values:
        return wanted
    target = normalize_color(wanted)
    return max(values, key=lambda value: fuzz.token_set_ratio(normalize_color(value), target), default=None)
