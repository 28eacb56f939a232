"""Made-up people, their addresses and their cards, for generated worlds."""

import random
from typing import Final

from gymfleet_envs.tau.database import Record

_FIRST: Final = (
    "Ada", "Bruno", "Clara", "Dario", "Elena", "Felix", "Greta", "Hugo", "Iris", "Jonas", "Karla", "Leo", "Mara",
    "Nils", "Olga", "Paul", "Rosa", "Sven", "Tilda", "Uwe", "Vera", "Wanda", "Yann", "Zoe",
)  # fmt: skip
_LAST: Final = (
    "Abel", "Berger", "Costa", "Dahl", "Engel", "Ferri", "Grant", "Holm", "Ibsen", "Jansen", "Keller", "Lind", "Moran",
    "Nolte", "Olsen", "Parker", "Quinn", "Reyes", "Stone", "Torres", "Urban", "Vogel", "Weber", "Young",
)  # fmt: skip
_STREETS: Final = ("Birch Street", "Canal Road", "Dune Lane", "Elm Court", "Ferry Road", "Grove Avenue", "Hill Drive")
_CITIES: Final = (
    ("Austin", "TX"), ("Boston", "MA"), ("Chicago", "IL"), ("Denver", "CO"), ("Fresno", "CA"), ("Houston", "TX"),
    ("Miami", "FL"), ("Phoenix", "AZ"), ("Seattle", "WA"), ("Tampa", "FL"),
)  # fmt: skip
_MANNERS: Final = ("patient", "shy", "busy", "polite", "curious", "direct", "cautious", "relaxing", "sad", "outgoing")


def digits(rng: random.Random, count: int) -> str:
    """Return `count` digits, the first of which is not 0."""
    return str(rng.randrange(10 ** (count - 1), 10**count))


def money(rng: random.Random, low: int, high: int) -> float:
    """Return an amount with cents, from `low` to below `high`."""
    return rng.randrange(100 * low, 100 * high) / 100


def names(rng: random.Random, count: int) -> list[Record]:
    """Return different names."""
    pairs = zip(rng.sample(_FIRST, count), rng.sample(_LAST, count), strict=True)
    return [{"first_name": first, "last_name": last} for first, last in pairs]


def birthday(rng: random.Random) -> str:
    """Return the date of birth of an adult."""
    return f"{rng.randrange(1950, 2003)}-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}"


def address(rng: random.Random) -> Record:
    """Return an address."""
    city, state = rng.choice(_CITIES)
    return {
        "address1": f"{rng.randrange(1, 999)} {rng.choice(_STREETS)}",
        "address2": f"Suite {rng.randrange(100, 999)}",
        "city": city,
        "country": "USA",
        "state": state,
        "zip": digits(rng, 5),
    }


def email_of(rng: random.Random, name: Record) -> str:
    """Return an email address for the person."""
    return f"{name['first_name']}.{name['last_name']}{digits(rng, 4)}@example.com".lower()


def user_id_of(rng: random.Random, name: Record) -> str:
    """Return a user id for the person."""
    return f"{name['first_name']}_{name['last_name']}_{digits(rng, 4)}".lower()


def credit_card(rng: random.Random) -> Record:
    """Return a credit card."""
    brand = rng.choice(("visa", "mastercard"))
    return {"source": "credit_card", "brand": brand, "last_four": digits(rng, 4), "id": f"credit_card_{digits(rng, 7)}"}


def manner(rng: random.Random) -> str:
    """Return a sentence about the customer's manner."""
    return f"You are {', '.join(rng.sample(_MANNERS, 2))}."


def spoken(name: Record) -> str:
    """Return first and last name."""
    return f"{name['first_name']} {name['last_name']}"
