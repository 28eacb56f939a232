"""A generated climate: the weather at any place on any day of a world, as a function of the world's seed.

It uses only additions, multiplications and hashes, which give the same on every machine. A value does not depend on the
kind of request for it: as a day a year ago, today, or next week.
"""

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

from gymfleet_envs.agentgym_tools.base import Refused
from gymfleet_envs.weather.service import Series

_CELL: Final = 0.0625
"""The size of a cell in degrees: all places in a cell have the same weather."""
_KNOT_DAYS: Final = 4
_DAYS_PER_YEAR: Final = 365.25
_WARMEST: Final = 105
"""Day of the year on which the north begins to be warmer than its mean."""
_RESULTS: Final = 3
_FIRST_YEAR: Final = 1940


@dataclass(frozen=True, slots=True)
class Place:
    """A city of a world."""

    name: str
    latitude: float
    longitude: float
    country_code: str


@dataclass(frozen=True, slots=True)
class Climate:
    """The service of one world: its cities, and its weather everywhere."""

    seed: int
    cities: tuple[Place, ...]

    def places(self, name: str) -> dict[str, Any]:
        """Return the cities of that name, then those whose names contain it."""
        wanted = name.strip().lower()
        exact = [city for city in self.cities if city.name.lower() == wanted]
        near = [city for city in self.cities if city.name.lower() != wanted and wanted and wanted in city.name.lower()]
        if not (found := (exact + near)[:_RESULTS]):
            return {}
        return {
            "results": [
                {
                    "name": city.name,
                    "latitude": city.latitude,
                    "longitude": city.longitude,
                    "country_code": city.country_code,
                }
                for city in found
            ]
        }

    def series(self, kind: Series, latitude: float, longitude: float, start: str, end: str) -> dict[str, Any]:
        """See `Service`."""
        cell = self._cell(latitude, longitude)
        first, last = (datetime.date.fromisoformat(day).toordinal() for day in (start, end))
        if last < first:
            raise Refused('{"error":true,"reason":"End-date must be larger or equals than start-date"}')
        if datetime.date.fromordinal(first).year < _FIRST_YEAR:
            raise Refused('{"error":true,"reason":"There is no data before 1940-01-01"}')
        days = range(first, last + 1)
        units, values = _SERIES[kind](self, cell, days)
        clock = "T12:00" if kind == "air_quality_index" else ""
        times = [f"{datetime.date.fromordinal(day).isoformat()}{clock}" for day in days]
        return {
            "latitude": cell[0] * _CELL,
            "longitude": cell[1] * _CELL,
            "daily_units": {"time": "iso8601", **units},
            "daily": {"time": times, **values},
        }

    def elevation(self, latitude: float, longitude: float) -> dict[str, Any]:
        """See `Service`."""
        chance = _chance(self.seed, "elevation", *self._cell(latitude, longitude))
        return {"elevation": [float(round(3 + 2400 * chance * chance))]}

    def mean(self, cell: tuple[int, int], day: int) -> float:
        """Return the mean temperature of a day, in degrees Celsius and not rounded."""
        latitude = cell[0] * _CELL
        away = abs(latitude)
        season = _wave((day - _WARMEST) / _DAYS_PER_YEAR) * (1 if latitude >= 0 else -1)
        return 29.0 - 0.42 * away + 0.26 * away * season + 5.5 * self._drift("temp", cell, day)

    def _drift(self, kind: str, cell: tuple[int, int], day: int) -> float:
        """Return a number in [-1, 1] that changes smoothly over the days."""
        knot, rest = divmod(day, _KNOT_DAYS)
        before, after = (2 * _chance(self.seed, kind, *cell, knot + i) - 1 for i in (0, 1))
        share = rest / _KNOT_DAYS
        return before + (after - before) * share * share * (3 - 2 * share)

    def _cell(self, latitude: float, longitude: float) -> tuple[int, int]:
        for name, value, most in (("Latitude", latitude, 90), ("Longitude", longitude, 180)):
            if not -most <= value <= most:
                reason = f"{name} must be in range of -{most} to {most}°. Given: {value}."
                raise Refused(f'{{"error":true,"reason":"{reason}"}}')
        return round(latitude / _CELL), round(longitude / _CELL)


def _temperatures(climate: Climate, cell: tuple[int, int], days: range) -> tuple[dict[str, str], dict[str, Any]]:
    means = [climate.mean(cell, day) for day in days]
    spread = [3.0 + 3.5 * _chance(climate.seed, "spread", *cell, day) for day in days]
    names = ("temperature_2m_max", "temperature_2m_min", "temperature_2m_mean")
    values = {
        names[0]: [round(mean + 1.1 * half, 1) for mean, half in zip(means, spread, strict=True)],
        names[1]: [round(mean - half, 1) for mean, half in zip(means, spread, strict=True)],
        names[2]: [round(mean, 1) for mean in means],
    }
    return dict.fromkeys(names, "°C"), values


def _fallen(climate: Climate, cell: tuple[int, int], day: int) -> float:
    """Return the millimetres of water that fall on a day: it falls on four days of ten, only a little on most."""
    wet = _chance(climate.seed, "wet", *cell, day) < 0.4
    much = _chance(climate.seed, "much", *cell, day)
    return 0.2 + 32 * much * much * much if wet else 0.0


def _rain(climate: Climate, cell: tuple[int, int], days: range) -> tuple[dict[str, str], dict[str, Any]]:
    rain = [round(_fallen(climate, cell, day), 1) if climate.mean(cell, day) > 1 else 0.0 for day in days]
    return {"rain_sum": "mm"}, {"rain_sum": rain}


def _snow(climate: Climate, cell: tuple[int, int], days: range) -> tuple[dict[str, str], dict[str, Any]]:
    snow = [round(0.7 * _fallen(climate, cell, day), 2) if climate.mean(cell, day) <= 1 else 0.0 for day in days]
    return {"snowfall_sum": "cm"}, {"snowfall_sum": snow}


def _air(climate: Climate, cell: tuple[int, int], days: range) -> tuple[dict[str, str], dict[str, Any]]:
    name = "european_aqi_pm2_5"
    return {name: "EAQI"}, {name: [round(38 + 33 * climate._drift("air", cell, day)) for day in days]}  # noqa: SLF001


_Values = Callable[[Climate, tuple[int, int], range], tuple[dict[str, str], dict[str, Any]]]
_SERIES: Final[dict[Series, _Values]] = {
    "temp": _temperatures, "rain": _rain, "snow": _snow, "air_quality_index": _air
}  # fmt: skip


def _wave(turns: float) -> float:
    """Return a sine made of parabolas, in [-1, 1], which begins to rise at 0 and has a period of 1."""
    part = turns % 1
    return 16 * part * (0.5 - part) if part < 0.5 else 16 * (part - 0.5) * (part - 1)


@lru_cache(maxsize=65_536)
def _chance(*what: object) -> float:
    """Return a number in [0, 1) that depends only on the arguments."""
    digest = blake2b(repr(what).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
