"""The value of a purchase: WebShop's reward."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from HanTa.HanoverTagger import HanoverTagger
from rapidfuzz import fuzz
from rapidfuzz.utils import default_process

from gymfleet_envs.webshop.products import Product

RewardRule = Literal["agentgym", "exact_options"]
"""How options are compared: as in AgentGym's server, or to the letter if the product offers the wanted value."""
MATCH_ABOVE: Final = 85
NO_CAP: Final = 1_000_000
CATEGORY_MARK: Final = "\u203a"
"""Separates the parts of a product's category."""
# The first of these colors that occurs in an option stands for the option.
COLORS: Final = (
    "alabaster", "apricot", "aqua", "ash", "asphalt", "azure", "banana", "beige", "black", "blue", "blush", "bordeaux",
    "bronze", "brown", "burgundy", "camel", "camo", "caramel", "champagne", "charcoal", "cheetah", "chestnut",
    "chocolate", "christmas", "coffee", "cognac", "copper", "coral", "cranberry", "cream", "crystal", "dark", "denim",
    "eggplant", "elephant", "espresso", "fuchsia", "gold", "granite", "grape", "graphite", "grass", "gray", "green",
    "grey", "heather", "indigo", "ivory", "ivy", "khaki", "lavender", "lemon", "leopard", "light", "lilac", "lime",
    "magenta", "maroon", "mauve", "merlot", "midnight", "mint", "mocha", "multicolor", "mushroom", "mustard", "natural",
    "navy", "nude", "olive", "orange", "peach", "pewter", "pink", "plum", "purple", "rainbow", "red", "rose", "royal",
    "rust", "sand", "sapphire", "seashell", "silver", "skull", "slate", "steel", "stone", "stonewash", "sunflower",
    "tan", "taupe", "teal", "tiger", "turquoise", "violet", "walnut", "wheat", "white", "wine", "yellow",
)  # fmt: skip
_TOKEN: Final = re.compile(r"\w+(?:['.]\w+)*")
_MAX_TITLE_TOKENS: Final = 100
_MAX_TAGGED_CHARS: Final = 40
"""The tagger takes time by the square of a word's length; titles in Chinese have words of a hundred characters."""
_LATIN_1: Final = dict.fromkeys(range(128, 256))


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal to which a purchase is compared. `price_cap` is in dollars.

    Options are pairs of name and value; the name is empty if a person gave only values.
    """

    instruction: str
    asin: str
    title: str
    query: str
    product_category: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    price_cap: float = NO_CAP


@dataclass(frozen=True, slots=True)
class Score:
    """The parts of a reward."""

    attributes: int
    options: int
    price: bool
    kind: float
    total: float


def score(product: Product, price: float, chosen: tuple[str, ...], goal: Goal, rule: RewardRule) -> Score:
    r"""Return the reward of buying `product` at `price` with the `chosen` options.

    .. math::
        r = \frac{n_{att} + n_{opt} + [price \le cap]}{|att| + |opt| + 1} \cdot r_{type}

    WebShop, arXiv:2207.01206, section 3 and its `engine/goal.py`.
    """
    attributes = sum(_has_attribute(product, wanted) for wanted in goal.attributes)
    options = sum(_has_option(product, chosen, name, wanted, rule) for name, wanted in goal.options)
    affordable = price <= goal.price_cap
    kind = type_score(product, goal)
    total = (attributes + options + affordable) / (len(goal.attributes) + len(goal.options) + 1) * kind
    return Score(attributes, options, affordable, kind, total)


def type_score(product: Product, goal: Goal) -> float:
    """Return how far the product is of the kind that was asked for: 1, 0.5, 0.1 or 0."""
    wanted = nouns(goal.title)
    shared = len(set(nouns(product.title)) & set(wanted))
    title = shared / len(wanted) if wanted else 0.2
    if title == 0:
        return 0.0
    if title < 0.1:
        return 0.1
    shared_categories = _categories(product.product_category) & _categories(goal.product_category)
    alike = product.query == goal.query or len(shared_categories) >= 2 or title > 0.2
    return 1.0 if alike else 0.5


def normalize_color(option: str) -> str:
    """Return the first known color, in alphabetical order, that occurs in the option; else the option."""
    return next((color for color in COLORS if color in option), option)


@lru_cache(maxsize=4096)
def nouns(title: str) -> tuple[str, ...]:
    """Return the nouns of a title in lower case, with repetitions, as tagged by HanTa's English model."""
    words = _TOKEN.findall(title)[:_MAX_TITLE_TOKENS]
    tagged = tagger().tag_sent([word[:_MAX_TAGGED_CHARS] for word in words])
    return tuple(word.lower() for word, (_, _, tag) in zip(words, tagged, strict=True) if tag.startswith("N"))


@lru_cache(maxsize=1)
def tagger() -> HanoverTagger:
    """Return the model, read once per process."""
    return HanoverTagger("morphmodel_en.pgz")


def _has_attribute(product: Product, wanted: str) -> bool:
    if any(_alike(has, wanted) for has in product.attributes):
        return True
    texts = (product.title, " ".join(product.bullets), product.description)
    return any(wanted in text.lower() for text in texts)


def _has_option(product: Product, chosen: tuple[str, ...], name: str, wanted: str, rule: RewardRule) -> bool:
    if rule == "exact_options" and any(wanted in values for values in product.options.values()):
        return wanted in chosen
    target = _pair(name, wanted) if name and rule == "agentgym" else normalize_color(wanted)
    return any(_alike(normalize_color(option), target) for option in chosen)


def _pair(name: str, wanted: str) -> str:
    """Return the text that upstream compares with if options have names: the pair as Python shows it.

    Upstream looks for colors among the two texts, not within them, so only a plain color stands for itself.
    """
    pair = (name, wanted)
    return next((color for color in COLORS if color in pair), str(pair))


def _categories(path: str) -> set[str]:
    return {part.strip() for part in path.split(CATEGORY_MARK)}


@lru_cache(maxsize=65_536)
def _alike(has: str, wanted: str) -> bool:
    """Whether `thefuzz.token_set_ratio` is over the limit: it compares words in lower case, and rounds."""
    ratio = fuzz.token_set_ratio(_ascii(has), _ascii(wanted), processor=default_process)
    return round(ratio) > MATCH_ABOVE


def _ascii(text: str) -> str:
    """Drop Latin-1's upper half, as `thefuzz` does. Other signs separate words, and other letters stay."""
    return text.translate(_LATIN_1)
