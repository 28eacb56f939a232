"""Open-Meteo's imported responses as a service. Places within 50 km count as the same, as in AgentGym's scoring."""

import math
from collections.abc import Iterator
from typing import Any, Final

from gymfleet_envs.agentgym_tools.base import Refused
from gymfleet_envs.agentgym_tools.responses import MISSING, Response
from gymfleet_envs.weather.service import Series
from gymfleet_envs.weather.tools import SERIES

_SAME_KM: Final = 50.0
_EARTH_KM: Final = 6371.0


class Recorded:
    """Responses by the requested data, whichever tool requested it."""

    def __init__(self, responses: Iterator[Response]) -> None:
        self._places: dict[str, Any] = {}
        self._at: dict[tuple[str, ...], list[tuple[float, float, Any]]] = {}
        for tool, arguments, result in responses:
            if tool == "get_latitude_longitude":
                self._places[str(arguments.get("name")).lower()] = result
            elif (key := _key(tool, arguments)) is not None:
                where = float(arguments["latitude"]), float(arguments["longitude"])
                self._at.setdefault(key, []).append((*where, result))

    def places(self, name: str) -> dict[str, Any]:
        """See `Service`."""
        if name.lower() not in self._places:
            raise Refused(MISSING)
        return _shown(self._places[name.lower()])

    def series(self, kind: Series, latitude: float, longitude: float, start: str, end: str) -> dict[str, Any]:
        """See `Service`."""
        return self._near((kind, start, end), latitude, longitude)

    def elevation(self, latitude: float, longitude: float) -> dict[str, Any]:
        """See `Service`."""
        return self._near(("elevation",), latitude, longitude)

    def _near(self, key: tuple[str, ...], latitude: float, longitude: float) -> dict[str, Any]:
        recorded = self._at.get(key, []) if abs(latitude) <= 90 and abs(longitude) <= 180 else []
        away = [distance_km((latitude, longitude), (entry[0], entry[1])) for entry in recorded]
        if not away or min(away) >= _SAME_KM:
            raise Refused(MISSING)
        return _shown(recorded[away.index(min(away))][2])


def _shown(result: Any) -> dict[str, Any]:
    """Return the data of a response. Raises `Refused` with a response that is a text, such as an error."""
    if not isinstance(result, dict):
        raise Refused(str(result))
    return dict(result)


def distance_km(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the distance on a sphere, by the haversine."""
    (lat1, lon1), (lat2, lon2) = ((math.radians(lat), math.radians(lon)) for lat, lon in (one, other))
    half = math.sin((lat2 - lat1) / 2) ** 2 + math.cos(lat1) * math.cos(lat2) * math.sin((lon2 - lon1) / 2) ** 2
    return 2 * _EARTH_KM * math.atan2(math.sqrt(half), math.sqrt(max(0.0, 1 - half)))


def _key(tool: str, arguments: Any) -> tuple[str, ...] | None:
    if tool == "get_elevation":
        return ("elevation",)
    if (asked := SERIES.get(tool)) is None:
        return None
    first, last = ("current_date", "current_date") if asked.when == "current" else ("start_date", "end_date")
    return (asked.kind, str(arguments[first]), str(arguments[last]))
