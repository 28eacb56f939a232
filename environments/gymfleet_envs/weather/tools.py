"""AgentGym's weather tools: the days that they accept, and the results that they work out themselves."""

import datetime
from dataclasses import dataclass
from typing import Any, Final, Literal

from geographiclib.geodesic import Geodesic

from gymfleet_envs.agentgym_tools.base import Faulty, Refused, taken
from gymfleet_envs.weather.service import Series, Service

_SPAN: Final = datetime.timedelta(days=30)
_TOO_LONG: Final = (
    "Error: Sorry, at present, we support a maximum time span of 30 days between start_date and end_date in a single "
    "query. Your input exceeds this range. You can split your current query into multiple sub-queries that meet our "
    "criteria."
)
_EARTH: Final = Geodesic(6378.137, 1 / 298.257223563)  # WGS-84, in kilometres
_LEVELS: Final = ((21, 40, "fair"), (41, 60, "moderate"), (61, 80, "poor"), (81, 100, "very poor"))


@dataclass(frozen=True, slots=True)
class Asked:
    """A tool that asks the service for days."""

    kind: Series
    when: Literal["historical", "forecast", "current"]


SERIES: Final = {
    "get_historical_temp": Asked("temp", "historical"),
    "get_historical_rain": Asked("rain", "historical"),
    "get_historical_snow": Asked("snow", "historical"),
    "get_historical_air_quality_index": Asked("air_quality_index", "historical"),
    "get_temp_forecast": Asked("temp", "forecast"),
    "get_rain_forecast": Asked("rain", "forecast"),
    "get_snow_forecast": Asked("snow", "forecast"),
    "get_current_temp": Asked("temp", "current"),
    "get_current_rain": Asked("rain", "current"),
    "get_current_snow": Asked("snow", "current"),
    "get_current_air_quality_index": Asked("air_quality_index", "current"),
}


def use(service: Service, today: str, tool: str, arguments: Any) -> Any:
    """Return the result of a tool on a day. Raises `Refused` and `Faulty`."""
    if tool in SERIES:
        return _series(service, today, SERIES[tool], arguments)
    if tool == "get_latitude_longitude":
        found = service.places(str(taken(arguments, "name")))
        if "results" not in found:
            raise Faulty("KeyError('results')")
        return found
    if tool == "get_elevation":
        return service.elevation(_number(arguments, "latitude"), _number(arguments, "longitude"))
    if tool == "get_distance":
        return _distance(arguments)
    return _level(taken(arguments, "air_quality_index"))


def _series(service: Service, today: str, asked: Asked, arguments: Any) -> Any:
    latitude, longitude = _number(arguments, "latitude"), _number(arguments, "longitude")
    if asked.when == "current":
        start = end = _day(taken(arguments, "current_date"))
    else:
        start, end = (_day(taken(arguments, name)) for name in ("start_date", "end_date"))
        now = _day(today)
        for name, day in (("start_date", start), ("end_date", end)):
            if asked.when == "historical" and day >= now:
                raise Refused(f"Error: {name} should be earlier than current_date")
            if asked.when == "forecast" and day <= now:
                raise Refused(f"Error: {name} should be later than current_date")
    if end - start > _SPAN:
        raise Refused(_TOO_LONG)
    return service.series(asked.kind, latitude, longitude, start.isoformat(), end.isoformat())


def _day(text: Any) -> datetime.date:
    try:
        return datetime.datetime.strptime(text, "%Y-%m-%d").date()  # noqa: DTZ007 - a day, as upstream reads it
    except (ValueError, TypeError) as error:
        raise Faulty(f"{type(error).__name__}({error})") from None


def _number(arguments: Any, name: str) -> float:
    """Return a coordinate, which may be written as text."""
    value = taken(arguments, name)
    try:
        if not isinstance(value, bool) and isinstance(value, int | float | str):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise Faulty(f"ValueError({name} is {str(value)[:80]!r}; a number would be right)")


def _distance(arguments: Any) -> float:
    names = ("latitude1", "longitude1", "latitude2", "longitude2")
    lat1, lon1, lat2, lon2 = (_number(arguments, name) for name in names)
    if not (abs(lat1) <= 90 and abs(lat2) <= 90):
        raise Faulty("ValueError(Latitude must be in the [-90; 90] range.)")
    if not (abs(lon1) <= 10_000 and abs(lon2) <= 10_000):
        raise Faulty("ValueError(Longitude must be in the [-180; 180] range.)")
    return float(_EARTH.Inverse(lat1, lon1, lat2, lon2, Geodesic.DISTANCE)["s12"])


def _level(index: Any) -> str:
    """Return the words for an index. For 21, 41, 61 and 81 they are wrong, as in AgentGym: its bounds leave gaps."""
    if isinstance(index, bool) or not isinstance(index, int | float):
        kind = type(index).__name__
        raise Faulty(f"TypeError('<=' not supported between instances of '{kind}' and 'int')")
    if index <= 20:
        return "good"
    return next((level for above, most, level in _LEVELS if above < index <= most), "extremely poor")
