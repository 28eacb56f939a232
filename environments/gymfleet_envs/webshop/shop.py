"""The shop: products, search and page sizes, shared by all episodes of a process."""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from gymfleet_envs.lucene.index import ARRAYS, Index, IndexBuilder
from gymfleet_envs.lucene.vocabulary import SCHEMA, DiskVocabulary, write_vocabulary
from gymfleet_envs.tasks import TaskDataError
from gymfleet_envs.webshop.products import Product

MAX_RESULTS: Final = 50
PAGE_SIZE: Final = 10
MANIFEST: Final = "shop.json"
_DATABASE: Final = "products.sqlite"
_FORMAT: Final = 2
_RECENT_PRODUCTS: Final = 4096
_SCHEMA: Final = """
CREATE TABLE products (place INTEGER PRIMARY KEY, asin TEXT NOT NULL UNIQUE, body BLOB NOT NULL);
"""
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Product).decode


class Shelf(Protocol):
    """Products by their place in the catalogue."""

    def __len__(self) -> int: ...

    def at(self, place: int) -> Product:
        """Return the product at a place."""

    def place_of(self, asin: str) -> int:
        """Return the place of a product. Raises `LookupError`."""


@dataclass(frozen=True, eq=False)
class Shop:
    """A catalogue that can be searched. `prices` are the prices paid: drawn once if a product has a range."""

    shelf: Shelf = field(repr=False)
    index: Index = field(repr=False)
    prices: npt.NDArray[np.float64] = field(repr=False)
    max_results: int = MAX_RESULTS
    page_size: int = PAGE_SIZE

    def search(self, query: str) -> list[int]:
        """Return places of the best products, best first."""
        return self.index.search(query, self.max_results)


class MemoryShelf:
    """All products in memory: for thousands."""

    def __init__(self, products: Iterable[Product]) -> None:
        self._products = list(products)
        self._places = {product.asin: place for place, product in enumerate(self._products)}

    def __len__(self) -> int:
        return len(self._products)

    def at(self, place: int) -> Product:
        """Return the product at a place."""
        return self._products[place]

    def place_of(self, asin: str) -> int:
        """Return the place of a product. Raises `LookupError`."""
        return self._places[asin]


class DiskShelf:
    """Products in a database file, the recent ones in memory: for millions."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._count: int = database.execute("SELECT count(*) FROM products").fetchone()[0]
        self.at = lru_cache(maxsize=_RECENT_PRODUCTS)(self._read)

    def __len__(self) -> int:
        return self._count

    def _read(self, place: int) -> Product:
        row = self._database.execute("SELECT body FROM products WHERE place = ?", (place,)).fetchone()
        if row is None:
            raise LookupError(f"the catalogue has no product at {place}")
        return _decode(row[0])

    def place_of(self, asin: str) -> int:
        """Return the place of a product. Raises `LookupError`."""
        row = self._database.execute("SELECT place FROM products WHERE asin = ?", (asin,)).fetchone()
        if row is None:
            raise LookupError(f"the catalogue has no product {asin}")
        return int(row[0])


def memory_shop(
    products: Iterable[Product], prices: Sequence[float] | None = None, *,
    max_results: int = MAX_RESULTS, page_size: int = PAGE_SIZE,
) -> Shop:  # fmt: skip
    """Return a shop in memory; without `prices`, each product costs its lowest price."""
    shelf = MemoryShelf(products)
    builder = IndexBuilder()
    for place in range(len(shelf)):
        builder.add(shelf.at(place).indexed_text)
    paid = [shelf.at(place).prices[0] for place in range(len(shelf))] if prices is None else prices
    return Shop(shelf, builder.finish(), np.array(paid, np.float64), max_results, page_size)


class ShopWriter:
    """Writes a shop into an empty directory, product by product, in bounded memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._builder = IndexBuilder(directory)
        self._database = sqlite3.connect(directory / _DATABASE)
        self._database.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + _SCHEMA + SCHEMA)
        self.count = 0

    def add(self, product: Product) -> None:
        """Add the next product."""
        row = (self.count, product.asin, _encode(product))
        self._database.execute("INSERT INTO products VALUES (?, ?, ?)", row)
        self._builder.add(product.indexed_text)
        self.count += 1

    def finish(self, arrays: Mapping[str, npt.NDArray[Any]], about: Mapping[str, Any]) -> None:
        """Write the index, further arrays, and last of all the manifest: without it the directory is no shop."""
        self._builder.finish()
        with closing(self._database) as database:
            write_vocabulary(database, self._builder.vocabulary)
            database.commit()
        for name, array in arrays.items():
            np.save(self._directory / f"{name}.npy", array)
        manifest = {"format": _FORMAT, "products": self.count, **about}
        (self._directory / MANIFEST).write_text(json.dumps(manifest))


def open_shop(directory: Path) -> tuple[Shop, dict[str, Any], npt.NDArray[Any]]:
    """Return a shop on disk, its manifest, and its goals. Raises `TaskDataError`."""
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
        if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
            raise TaskDataError(f"{MANIFEST} is of another format than {_FORMAT}: import the files again")
        uri = f"{(directory / _DATABASE).resolve().as_uri()}?mode=ro&immutable=1"
        database = sqlite3.connect(uri, uri=True, check_same_thread=False)
        shelf = DiskShelf(database)
        offsets, documents, impacts, prices, goals = (
            np.load(directory / f"{name}.npy", mmap_mode="r") for name in (*ARRAYS, "prices", "goals")
        )
    except (OSError, ValueError, EOFError, sqlite3.Error) as error:
        raise TaskDataError(f"the imported shop in {directory.name} is damaged: {str(error)[:160]}") from None
    fits = len(shelf) == manifest.get("products") == len(prices) and len(goals) == manifest.get("goals")
    if not fits or len(documents) != len(impacts) or len(offsets) == 0 or int(offsets[-1]) != len(documents):
        raise TaskDataError(f"the imported shop in {directory.name} is damaged: its parts do not fit each other")
    index = Index(DiskVocabulary(database), offsets, documents, impacts, len(shelf))
    return Shop(shelf, index, prices), manifest, goals
