"""Generated catalogues, one for each level and process, and goals over them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from gymfleet_envs.tasks import GeneratedTasks
from gymfleet_envs.webshop.goals import PRICE_STEPS, make_goal
from gymfleet_envs.webshop.products import Product, Wish
from gymfleet_envs.webshop.scoring import CATEGORY_MARK, NO_CAP, RewardRule
from gymfleet_envs.webshop.shop import Shop, memory_shop
from gymfleet_envs.webshop.tasks import ShopTask

LEVELS: Final = ("single", "options", "attributes", "market")
_KINDS: Final = {
    ("Home", "Kitchen"): ("mug", "bowl", "kettle", "tray", "jug", "pan", "knife", "plate"),
    ("Home", "Furniture"): ("table", "chair", "shelf", "bench", "desk", "stool", "cabinet", "sofa"),
    ("Home", "Comfort"): ("lamp", "rug", "pillow", "blanket", "curtain", "mirror", "basket", "clock"),
    ("Clothing", "Tops"): ("shirt", "jacket", "sweater", "coat", "vest", "hoodie"),
    ("Clothing", "Footwear"): ("boot", "sandal", "sneaker", "slipper", "loafer"),
    ("Clothing", "Accessories"): ("hat", "scarf", "belt", "glove", "wallet", "backpack"),
    ("Electronics", "Audio"): ("speaker", "headphone", "microphone", "radio"),
    ("Electronics", "Computers"): ("keyboard", "charger", "cable", "scanner", "printer"),
    ("Garden", "Tools"): ("shovel", "rake", "hose", "lantern", "planter"),
}
_MATERIALS: Final = (
    "wooden", "metal", "glass", "cotton", "leather", "plastic", "ceramic", "bamboo", "woolen", "linen", "copper",
    "rubber", "marble", "velvet", "silver", "paper",
)  # fmt: skip
_COLORS: Final = ("red", "blue", "green", "black", "white", "yellow", "purple", "orange")
_SIZES: Final = ("small", "medium", "large", "x-large")
_STYLES: Final = ("classic", "modern", "rustic", "sporty")
_ATTRIBUTES: Final = (
    "water resistant", "easy to clean", "heavy duty", "long lasting", "hand made", "light weight", "machine washable",
    "space saving", "anti slip", "quick drying", "fade proof", "scratch free", "odor free", "fully assembled",
    "energy saving", "double sided", "non toxic", "soft touch", "wide handle", "travel ready",
)  # fmt: skip
_BRANDS: Final = (
    "Aldora", "Bexley", "Corvane", "Dunmere", "Elsted", "Fenwick", "Galdor", "Harlow", "Ivera", "Jorvik", "Kelmar",
    "Lundby",
)  # fmt: skip
_PLACES: Final = ("the garden", "the office", "the kitchen", "a long trip", "the children", "every day", "the winter")


@dataclass(frozen=True, slots=True)
class _Shape:
    """The parameters of a level: the options of a product, the attributes of product and goal, the size of a page."""

    options: tuple[tuple[str, tuple[str, ...]], ...] = ()
    num_attributes: int = 0
    wanted_attributes: int = 0
    num_variants: int = 1
    """Number of products of one kind and material, or of one kind if attributes distinguish them."""
    has_cap: bool = False
    page_size: int = 3
    max_results: int = 9


_SHAPES: Final = {
    "single": _Shape(),
    "options": _Shape(options=(("color", _COLORS), ("size", _SIZES))),
    "attributes": _Shape(
        options=(("color", _COLORS),), num_attributes=4, wanted_attributes=2, num_variants=8, page_size=5,
        max_results=20
    ),
    "market": _Shape(
        options=(("color", _COLORS), ("size", _SIZES), ("style", _STYLES)),
        num_attributes=5, wanted_attributes=3, num_variants=20, has_cap=True, page_size=10, max_results=50,
    ),
}  # fmt: skip


@lru_cache(maxsize=len(LEVELS))
def generated_shop(level: str) -> Shop:
    """The catalogue of a level: the same in every process."""
    rng = random.Random(f"webshop/{level}/1")
    shape = _SHAPES[level]
    products: list[Product] = []
    for (area, section), nouns in _KINDS.items():
        for noun in nouns:
            if shape.num_attributes:
                products += _variants(rng, shape, area, section, noun, len(products))
            else:
                products += [
                    _plain(rng, shape, area, section, noun, material, len(products) + number)
                    for number, material in enumerate(_MATERIALS)
                ]
    return memory_shop(products, max_results=shape.max_results, page_size=shape.page_size)


def generated_tasks(rule: RewardRule) -> GeneratedTasks[ShopTask]:
    """Return goals over the generated catalogues, by level."""
    return GeneratedTasks(
        "webshop",
        lambda rng, level: _generate(rng, level, rule),
        lambda task: task.goal.instruction,
        levels=LEVELS,
        default_level="single",
        counts={"train": 100_000, "validation": 1_000, "test": 1_000},
    )


def _generate(rng: random.Random, level: str, rule: RewardRule) -> ShopTask:
    shop, shape = generated_shop(level), _SHAPES[level]
    product = shop.shelf.at(rng.randrange(len(shop.shelf)))
    options = tuple((name, rng.choice(values)) for name, values in product.options.items())
    noun = product.query
    if shape.num_attributes:
        attributes = tuple(sorted(rng.sample(product.attributes, shape.wanted_attributes)))
        text = f"Find me a {noun} that is {', '.join(attributes)}"
    else:
        attributes = product.attributes
        text = f"Find me a {attributes[0]} {noun}"
    if options:
        text += " with " + ", and ".join(f"{name}: {value}" for name, value in options)
    cap = NO_CAP
    if shape.has_cap:
        above = [step for step in PRICE_STEPS if step > product.prices[0]]
        cap = int(rng.choice(above[:2]))
    goal = make_goal(product, Wish(text, attributes), text, options, cap)
    # Materials, brands and places are nouns too: with the whole title, a velvet mug would pass for a velvet bowl.
    return ShopTask(replace(goal, title=noun.title()), shop, rule)


def _plain(
    rng: random.Random, shape: _Shape, area: str, section: str, noun: str, material: str, number: int
) -> Product:
    """Make a product of a kind and a material, which two words find."""
    return Product(
        asin=f"K{number}",
        title=f"{material} {noun}".title(),
        description=f"A {noun} for {rng.choice(_PLACES)}.",
        bullets=(f"Made to last, {material}.",),
        category=area.lower(),
        query=noun,
        product_category=f"{area} {CATEGORY_MARK} {section} {CATEGORY_MARK} {noun.title()}",
        options=_options(rng, shape),
        attributes=(material,),
        prices=(float(rng.randint(4, 60)),),
    )


def _variants(rng: random.Random, shape: _Shape, area: str, section: str, noun: str, first: int) -> list[Product]:
    """Make products of one kind: half of them copy all attributes of another but one, at another price."""
    products: list[Product] = []
    last: Sequence[str] = ()
    for number in range(shape.num_variants):
        attributes = rng.sample(_ATTRIBUTES, shape.num_attributes)
        if number % 2 and last:
            attributes = [*last[1:], rng.choice([word for word in _ATTRIBUTES if word not in last])]
        last = attributes
        brand, place = rng.choice(_BRANDS), rng.choice(_PLACES)
        products.append(
            Product(
                asin=f"K{first + number}",
                title=f"{brand} {noun.title()} for {place.title()}",
                description=f"This {noun} by {brand} is {attributes[2]} and {attributes[3]}.",
                bullets=(f"{attributes[0]}, {attributes[1]}", *(f"Also {word}" for word in attributes[4:])),
                category=area.lower(),
                query=noun,
                product_category=f"{area} {CATEGORY_MARK} {section} {CATEGORY_MARK} {noun.title()}",
                options=_options(rng, shape),
                attributes=tuple(attributes),
                prices=(rng.randint(400, 8900) / 100,),
            )
        )
    return products


def _options(rng: random.Random, shape: _Shape) -> dict[str, tuple[str, ...]]:
    return {name: tuple(rng.sample(values, 3)) for name, values in shape.options}
