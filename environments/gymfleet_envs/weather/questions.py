"""The kinds of generated questions: each makes the calls of its plan and works the answer out from their results."""

import datetime
import random
from typing import Any

from gymfleet_envs.agentgym_tools.base import Move
from gymfleet_envs.weather.climate import Climate, Place
from gymfleet_envs.weather.tools import use

_NUMBER = "Please provide the answer as a number."
_ROUNDED = "Please provide the answer as a number with one decimal."


class Draft:
    """A question in the making. `call` makes a call and adds it to the plan."""

    def __init__(self, rng: random.Random, climate: Climate, today: datetime.date) -> None:
        self.rng = rng
        self.climate = climate
        self.today = today
        self.home, *self.others = rng.sample([c for c in climate.cities if self.is_first(climate, c)], 5)
        self.goal = ""
        self.answer: float = 0
        self.moves: list[Move] = []

    @staticmethod
    def is_first(climate: Climate, city: Place) -> bool:
        """Return whether a search finds this city before its namesake."""
        return next(other for other in climate.cities if other.name == city.name) == city

    def day(self, days: int) -> str:
        """Return the day that many days after today."""
        return (self.today + datetime.timedelta(days=days)).isoformat()

    def where(self) -> None:
        """Ask where the user is."""
        self.moves.append(Move.of("I need to know where the user is.", "get_user_current_location"))

    def when(self) -> None:
        """Ask which day it is."""
        self.moves.append(Move.of("I need to know which day it is.", "get_user_current_date"))

    def call(self, thought: str, tool: str, **arguments: Any) -> Any:
        """Make a call and return its result."""
        self.moves.append(Move.of(thought, tool, **arguments))
        return use(self.climate, self.today.isoformat(), tool, arguments)

    def locate(self, city: Place) -> dict[str, float]:
        """Look a city up; return its coordinates as arguments."""
        found = self.call(f"I look up where {city.name} is.", "get_latitude_longitude", name=city.name)
        place = next(place for place in found["results"] if place["country_code"] == city.country_code)
        return {"latitude": place["latitude"], "longitude": place["longitude"]}

    def daily(self, tool: str, at: dict[str, float], first: int, last: int | None = None) -> dict[str, list[Any]]:
        """Ask for the days from `first` to `last` after today; return the values by their names."""
        if tool.startswith("get_current"):
            days = {"current_date": self.day(first)}
        else:
            days = {"start_date": self.day(first), "end_date": self.day(first if last is None else last)}
        values: dict[str, list[Any]] = self.call("I ask for the values of these days.", tool, **at, **days)["daily"]
        return values


def yesterday(draft: Draft) -> None:
    """Ask for yesterday's mean temperature here."""
    draft.goal = f"What was the average temperature in Celsius yesterday? {_NUMBER}"
    draft.where()
    draft.when()
    draft.answer = draft.daily("get_historical_temp", draft.locate(draft.home), -1)["temperature_2m_mean"][0]


def elevation(draft: Draft) -> None:
    """Ask for the height of a city that the goal names."""
    city = draft.others[0]
    draft.goal = f"What is the elevation of {city.name} in meters? {_NUMBER}"
    at = draft.locate(city)
    draft.answer = draft.call("I ask for its elevation.", "get_elevation", **at)["elevation"][0]


def highest_today(draft: Draft) -> None:
    """Ask for today's highest temperature in a city that the goal names."""
    city = draft.others[0]
    draft.goal = f"What is the highest temperature in {city.name} today? {_NUMBER}"
    draft.when()
    draft.answer = draft.daily("get_current_temp", draft.locate(city), 0)["temperature_2m_max"][0]


def lowest_tomorrow(draft: Draft) -> None:
    """Ask for tomorrow's lowest temperature in a city that the goal names."""
    city = draft.others[0]
    draft.goal = f"How cold will it get in {city.name} tomorrow? Give me the lowest temperature. {_NUMBER}"
    draft.when()
    draft.answer = draft.daily("get_temp_forecast", draft.locate(city), 1)["temperature_2m_min"][0]


def spread(draft: Draft) -> None:
    """Ask for the difference between the extremes of a future day."""
    city, days = draft.others[0], draft.rng.randint(2, 9)
    draft.goal = (
        f"I will travel to {city.name} in {days} days. What is the difference between the highest and the lowest "
        f"temperature there on that day? {_ROUNDED}"
    )
    draft.when()
    values = draft.daily("get_temp_forecast", draft.locate(city), days)
    draft.answer = round(values["temperature_2m_max"][0] - values["temperature_2m_min"][0], 1)


def rain_of_days(draft: Draft) -> None:
    """Ask for the rain here in the last days, or for the snow if there was no rain."""
    days = draft.rng.randint(10, 28)
    draft.where()
    draft.when()
    at = draft.locate(draft.home)
    values = draft.daily("get_historical_rain", at, -days, -1)["rain_sum"]
    what, unit = "rain", "millimeters"
    if not any(values):
        draft.moves.pop()
        values = draft.daily("get_historical_snow", at, -days, -1)["snowfall_sum"]
        what, unit = "snow", "centimeters"
    draft.goal = f"How much {what} fell here in the past {days} days (today excluded), in {unit}? {_ROUNDED}"
    draft.answer = round(sum(values), 1)
    if not draft.answer:  # nothing would be a good guess
        draft.moves.clear()
        spread(draft)


def distance(draft: Draft) -> None:
    """Ask for the distance from here to a city."""
    city = draft.others[0]
    draft.goal = (
        f"How many kilometers is it from here to {city.name}? Please provide the answer as a number, rounded to the "
        "nearest integer."
    )
    draft.where()
    here, there = draft.locate(draft.home), draft.locate(city)
    found = draft.call(
        "I ask for the distance.", "get_distance", latitude1=here["latitude"], longitude1=here["longitude"],
        latitude2=there["latitude"], longitude2=there["longitude"],
    )  # fmt: skip
    draft.answer = round(found)


def namesake(draft: Draft) -> None:
    """Ask for yesterday's lowest temperature in a city that a search lists second, after its namesake."""
    city = draft.rng.choice([c for c in draft.climate.cities if not draft.is_first(draft.climate, c)])
    where = f"{city.name}, the one in the country {city.country_code}"
    draft.goal = f"What was the lowest temperature yesterday in {where}? {_NUMBER}"
    draft.when()
    draft.answer = draft.daily("get_historical_temp", draft.locate(city), -1)["temperature_2m_min"][0]


def against_last_year(draft: Draft) -> None:
    """Compare today's mean temperature here with that of this day a year ago."""
    ago = -365
    draft.goal = (
        "How many degrees higher is the average temperature here today than it was here 365 days ago? A negative "
        f"number means lower. {_ROUNDED}"
    )
    draft.where()
    draft.when()
    at = draft.locate(draft.home)
    now = draft.daily("get_current_temp", at, 0)["temperature_2m_mean"][0]
    draft.answer = round(now - draft.daily("get_historical_temp", at, ago)["temperature_2m_mean"][0], 1)


def warmer(draft: Draft) -> None:
    """Compare one city with another, some days ahead."""
    one, other, days = draft.others[0], draft.others[1], draft.rng.randint(1, 10)
    draft.goal = (
        f"In {days} days, how many degrees will the highest temperature in {one.name} be above the highest temperature "
        f"in {other.name}? A negative number means below. {_ROUNDED}"
    )
    draft.when()
    first, second = (
        draft.daily("get_temp_forecast", draft.locate(city), days)["temperature_2m_max"][0] for city in (one, other)
    )
    draft.answer = round(first - second, 1)


def highest_of_three(draft: Draft) -> None:
    """Ask for the highest temperature in three cities."""
    cities = draft.others[:3]
    names = f"{cities[0].name}, {cities[1].name} and {cities[2].name}"
    draft.goal = f"What was the highest temperature anywhere in {names} yesterday? {_NUMBER}"
    draft.when()
    draft.answer = max(
        draft.daily("get_historical_temp", draft.locate(city), -1)["temperature_2m_max"][0] for city in cities
    )


def rain_of_weeks(draft: Draft) -> None:
    """Ask for the rain over more days than a query may span."""
    days = draft.rng.randint(40, 55)
    draft.goal = f"How much rain fell here in the past {days} days (today excluded), in millimeters? {_ROUNDED}"
    draft.where()
    draft.when()
    at = draft.locate(draft.home)
    middle = -days + 30
    parts = [draft.daily("get_historical_rain", at, *part)["rain_sum"] for part in ((-days, middle), (middle + 1, -1))]
    draft.answer = round(sum(map(sum, parts)), 1)
    if not draft.answer:  # in a long frost
        draft.moves.clear()
        warmer(draft)


def mean_air(draft: Draft) -> None:
    """Ask for the mean air quality index of three cities."""
    cities = draft.others[:3]
    names = f"{cities[0].name}, {cities[1].name} and {cities[2].name}"
    draft.goal = f"What is the average of today's air quality indices in {names}? {_ROUNDED}"
    draft.when()
    indices = [
        draft.daily("get_current_air_quality_index", draft.locate(city), 0)["european_aqi_pm2_5"][0] for city in cities
    ]
    draft.answer = round(sum(indices) / 3, 1)
