"""The service that the tools of weather ask: it answers for a place and days."""

from typing import Any, Literal, Protocol, TypeAlias

Series: TypeAlias = Literal["temp", "rain", "snow", "air_quality_index"]


class Service(Protocol):
    """Open-Meteo's service, generated or recorded. Methods return what AgentGym's tools show; all raise `Refused`."""

    def places(self, name: str) -> dict[str, Any]:
        """Return at most three places of a name."""

    def series(self, kind: Series, latitude: float, longitude: float, start: str, end: str) -> dict[str, Any]:
        """Return values day by day, from `start` to `end`."""

    def elevation(self, latitude: float, longitude: float) -> dict[str, Any]:
        """Return the height of a place."""
