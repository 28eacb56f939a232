"""Names of cities that are on no map: a world that nobody can know by heart."""

import random
from typing import Final

from gymfleet_envs.weather.climate import Place

_BEGIN: Final = (
    "Al", "Bar", "Bel", "Cal", "Dor", "El", "Fen", "Gal", "Hal", "Is", "Kor", "Lan", "Mar", "Nor", "Or", "Pel", "Quin",
    "Ros", "Sal", "Tor", "Ul", "Val", "Wes", "Yar",
)  # fmt: skip
_MIDDLE: Final = ("a", "an", "ber", "de", "e", "en", "i", "in", "lo", "mi", "o", "ra", "ri", "ta", "u", "ve")
_END: Final = (
    "burg", "by", "dale", "field", "ford", "grad", "ham", "haven", "holm", "mouth", "na", "port", "stad", "ton", "vik",
    "ville",
)  # fmt: skip
_COUNTRIES: Final = ("AU", "BR", "CA", "CL", "DE", "ES", "FI", "FR", "IT", "JP", "MX", "NO", "NZ", "PL", "US", "ZA")
_SOUTHERN: Final = frozenset({"AU", "BR", "CL", "NZ", "ZA"})


def draw_cities(rng: random.Random, count: int) -> tuple[Place, ...]:
    """Return cities with different names, and for the first three of them a namesake in another country."""
    names: list[str] = []
    while len(names) < count:
        name = rng.choice(_BEGIN) + rng.choice(_MIDDLE) + rng.choice(_END)
        if name not in names:
            names.append(name)
    first = [_city(rng, name, rng.choice(_COUNTRIES)) for name in names]
    return (*first, *(_namesake(rng, city) for city in first[:3]))


def _namesake(rng: random.Random, city: Place) -> Place:
    country = rng.choice([code for code in _COUNTRIES if code != city.country_code])
    return _city(rng, city.name, country)


def _city(rng: random.Random, name: str, country: str) -> Place:
    latitude = round(rng.uniform(18, 62) * (-1 if country in _SOUTHERN else 1), 5)
    return Place(name, latitude, round(rng.uniform(-170, 170), 5), country)
