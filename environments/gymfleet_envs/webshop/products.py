"""The products of the shop, read from WebShop's files."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from gymfleet_envs.tasks import TaskDataError

MAX_ENTRY_CHARS: Final = 4 * 1024 * 1024
MAX_PRICE: Final = 1e7
_CHUNK_CHARS: Final = 1024 * 1024
_REFILL_CHARS: Final = 64 * 1024
_BETWEEN: Final = re.compile(r"[ \t\r\n,]*")
_LIST_END: Final = re.compile(r"\][ \t\r\n]*\Z")
_LINES_END: Final = re.compile(r"\Z")
_DEFAULT_PRICE: Final = 100.0
_MAX_ITEMS: Final = 10_000
_MAX_ASIN_CHARS: Final = 10


class Review(msgspec.Struct, frozen=True):
    """One review, as shown."""

    title: str
    score: str
    body: str


class Wish(msgspec.Struct, frozen=True):
    """An instruction that asks for this product: attributes, and options by name (empty if none was given)."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...] = ()


class Product(msgspec.Struct, frozen=True):
    """A product. `prices` are one price or the two ends of a range, in dollars."""

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    category: str
    query: str
    product_category: str
    options: dict[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    prices: tuple[float, ...]
    rating: str = "N.A."
    image: str = ""
    reviews: tuple[Review, ...] = ()
    wish: Wish | None = None
    """The synthetic instruction."""
    human_wishes: tuple[Wish, ...] = ()

    @property
    def price_tag(self) -> str:
        """`$9.99` or `$9.99 to $11.99`."""
        return " to ".join(f"${price}" for price in self.prices)

    @property
    def indexed_text(self) -> str:
        """The text that the search engine indexes, composed as upstream does."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        first = self.bullets[0] if self.bullets else ""
        return " ".join((self.title, self.description, first, options)).lower()


class Extras(msgspec.Struct, frozen=True):
    """The data on products from other files, by ASIN."""

    attributes: Mapping[str, Any] = {}
    human: Mapping[str, Any] = {}
    reviews: Mapping[str, Any] = {}
    ratings: Mapping[str, Any] = {}


class _Fault(Exception):
    """The fault of an entry."""


def json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds one object. Raises `TaskDataError`."""
    try:
        value = json.loads(path.read_bytes(), parse_constant=_no_number)
    except (OSError, ValueError, RecursionError) as error:
        raise TaskDataError(f"{path.name} is not JSON: {_short(error)}") from None
    if not isinstance(value, dict):
        raise TaskDataError(f"{path.name} holds no object by ASIN, but {type(value).__name__}")
    return value


def json_entries(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield entries of a JSON list or of JSON lines, numbered from 1, one in memory at once. Raises `TaskDataError`."""
    decoder = json.JSONDecoder(parse_constant=_no_number)
    number = 0
    with path.open(encoding="utf-8-sig") as file:
        try:
            text = file.read(_CHUNK_CHARS).lstrip()
            at_end = not text
            place = int(text.startswith("["))
            closing = _LIST_END if place else _LINES_END
            while True:
                if not at_end and len(text) - place < _REFILL_CHARS:
                    more = file.read(_CHUNK_CHARS)
                    at_end, text, place = not more, text[place:] + more, 0
                if gap := _BETWEEN.match(text, place):
                    place = gap.end()
                if at_end and closing.match(text, place):
                    return
                try:
                    value, place = decoder.raw_decode(text, place)
                except ValueError:  # an entry that goes on after what was read, or a damaged one
                    more = file.read(_CHUNK_CHARS) if len(text) - place < MAX_ENTRY_CHARS else ""
                    if not more:
                        raise
                    text, place = text[place:] + more, 0
                    continue
                number += 1
                yield number, value
        except (ValueError, RecursionError) as error:
            raise TaskDataError(f"{path.name}: entry {number + 1} is not JSON: {_short(error)}") from None


def read_products(path: Path, extras: Extras) -> Iterator[Product]:
    """Yield the products of one of WebShop's files, in its order, each ASIN once. Raises `TaskDataError`."""
    seen: set[str] = set()
    for number, entry in json_entries(path):
        record = entry.get("product", entry) if isinstance(entry, dict) else None
        try:
            if not isinstance(record, dict):
                raise _Fault("is no object")
            prepared = record is not entry
            asin = _text(record, "asin")
            # Upstream drops entries without an Amazon id, and takes the first of two with the same; a prepared file
            # has neither.
            if not prepared and (asin == "nan" or len(asin) > _MAX_ASIN_CHARS or asin in seen):
                continue
            if not asin or len(asin) > _MAX_ASIN_CHARS or not asin.isalnum() or not asin.isascii():
                raise _Fault(f"asin {asin[:20]!r} is no id of letters and digits")
            if asin in seen:
                raise _Fault(f"asin {asin} is there twice")
            seen.add(asin)
            yield _product(asin, record, extras)
        except _Fault as fault:
            raise TaskDataError(f"{path.name}: entry {number}: {fault}") from None


def _product(asin: str, record: Mapping[str, Any], extras: Extras) -> Product:
    said = extras.attributes.get(asin, {})
    if not isinstance(said, dict):
        raise _Fault(f"its entry among the attributes is {type(said).__name__}, not an object")
    bullets = record.get("small_description", [])
    images = record.get("images") or [""]
    return Product(
        asin=asin,
        title=_text(record, "name"),
        description=_text(record, "full_description", optional=True),
        bullets=_texts([bullets] if isinstance(bullets, str) else bullets, "small_description"),
        category=_text(record, "category"),
        query=_text(record, "query").lower().strip(),
        product_category=_text(record, "product_category"),
        options=_options(record),
        attributes=_texts(said.get("attributes", record.get("Attributes", ["DUMMY_ATTR"])), "attributes"),
        prices=_prices(record.get("pricing")),
        rating=str(extras.ratings.get(asin, record.get("Rating", "N.A.")))[:40] or "N.A.",
        image=str(images[0]) if isinstance(images, list) else "",
        reviews=_reviews(extras.reviews.get(asin, record.get("Reviews", []))),
        wish=_wish(said),
        human_wishes=_human_wishes(extras.human.get(asin, [])),
    )


def _text(record: Mapping[str, Any], key: str, *, optional: bool = False) -> str:
    value = record.get(key)
    if value is None and optional:
        return ""
    if not isinstance(value, str):
        raise _Fault(f"{key} must be a text, got {type(value).__name__}" if key in record else f"{key} is missing")
    return value


def _texts(values: Any, name: str) -> tuple[str, ...]:
    if not isinstance(values, list) or len(values) > _MAX_ITEMS or not all(isinstance(v, str) for v in values):
        raise _Fault(f"{name} must be a list of texts")
    return tuple(values)


def _options(record: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    ready, raw = record.get("options"), record.get("customization_options")
    if ready is None and not raw:
        return {}
    given = ready if ready is not None else raw
    if not isinstance(given, dict):
        raise _Fault("options must be an object")
    options: dict[str, tuple[str, ...]] = {}
    for name, values in given.items():
        if values is None:
            continue
        if ready is None:
            if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
                raise _Fault(f"customization_options: {name[:40]} must be a list of objects")
            shown = [_text(value, "value").strip().replace("/", " | ") for value in values]
        else:
            shown = values
        # What is clicked is compared in lower case.
        options[name.lower()] = tuple(value.lower() for value in _texts(shown, f"options: {name[:40]}"))
    return options


def _prices(pricing: Any) -> tuple[float, ...]:
    if not pricing:
        return (_DEFAULT_PRICE,)
    if isinstance(pricing, str):
        pricing = [re.sub(r"[^0-9.]", "", part)[:40] for part in pricing.split("$")[1:3]]
    try:
        prices = tuple(float(price) for price in pricing[:2])
    except (TypeError, ValueError, OverflowError):
        prices = ()
    if not prices or not all(math.isfinite(price) and 0 <= price <= MAX_PRICE for price in prices):
        raise _Fault(f"pricing must be one or two prices from 0 to {MAX_PRICE:.0f}")
    return prices


def _reviews(values: Any) -> tuple[Review, ...]:
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise _Fault("reviews must be a list of objects")
    return tuple(
        Review(
            title=str(value.get("title", "")),
            score=str(value.get("score", value.get("stars", ""))),
            body=str(value.get("review", value.get("body", ""))),
        )
        for value in values[:100]
    )


def _wish(said: Mapping[str, Any]) -> Wish | None:
    text = said.get("instruction")
    if text is None:
        return None
    attributes = _texts(said.get("instruction_attributes"), "instruction_attributes")
    if not isinstance(text, str) or not attributes:
        raise _Fault("its instruction must be a text with instruction_attributes")
    return Wish(text, attributes)


def _human_wishes(values: Any) -> tuple[Wish, ...]:
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise _Fault("its human instructions must be a list of objects")
    wishes = []
    for value in values:
        attributes = _texts(value.get("instruction_attributes"), "instruction_attributes")
        if not attributes:  # as upstream: nothing to score
            continue
        given = value.get("instruction_options", [])
        named = list(given.items()) if isinstance(given, dict) else [("", option) for option in given or []]
        if not all(isinstance(option, str) for _, option in named):
            raise _Fault("instruction_options must be texts")
        wishes.append(Wish(_text(value, "instruction").strip("."), attributes, tuple(named)))
    return tuple(wishes)


def _no_number(name: str) -> None:
    """Treat NaN and infinities as absent, because they are not JSON."""
    del name


def _short(error: BaseException) -> str:
    return str(error)[:160]
