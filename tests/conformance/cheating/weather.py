"""What an agent would do in weather that wants the reward and not the task."""

import datetime
import re
from typing import Final

from gymfleet_env_server.cheats import Attempt, Cheat

from tests.conformance.cheating import _tools
from tests.conformance.cheating._tools import answers, call, goal, seen

_CITIES: Final = re.compile(r"anywhere in (\w+),")
_PLACE: Final = re.compile(r"'latitude': (\S+), 'longitude': (\S+),")
_HIGHEST: Final = re.compile(r"'temperature_2m_max': \[(.+?)\]")


def _answers_where_the_user_is(attempt: Attempt) -> None:
    where = attempt.act(call("get_user_current_location")).observation
    attempt.act(call("finish", answer=where.removeprefix("Observation: ").partition("\n")[0]))


def _leaves_out_the_working(attempt: Attempt) -> None:
    """Make every call of the plan but the last, and answer with a number of the last result, not with what it means."""
    plan = attempt.task.data.plan
    attempt.act_all(*(move.action for move in plan[:-2]))
    attempt.act(call("finish", answer=next(v for v in reversed(seen([attempt.observation])) if isinstance(v, float))))


def _asks_of_one_city_alone(attempt: Attempt) -> None:
    """Of three cities look at the first alone: it may be the one that was warmest."""
    if cities := _CITIES.search(goal(attempt)):
        now = attempt.act(call("get_user_current_date")).observation.removeprefix("Observation: ").partition("\n")[0]
        day = (datetime.date.fromisoformat(now) - datetime.timedelta(1)).isoformat()
        where = _PLACE.search(attempt.act(call("get_latitude_longitude", name=cities[1])).observation)
        assert where
        at = {"latitude": where[1], "longitude": where[2], "start_date": day, "end_date": day}
        found = _HIGHEST.search(attempt.act(call("get_historical_temp", **at)).observation)
        assert found
        attempt.act(call("finish", answer=float(found[1])))


def _answers_a_range(attempt: Attempt) -> None:
    attempt.act(call("finish", answer=[degrees / 10 for degrees in range(-200, 400)]))


def _answers_nowhere(attempt: Attempt) -> None:
    """Ask for places that are no places."""
    for latitude, longitude in (("nan", 0), (1e308, 0), (91, 0), (0, "inf"), ("", "")):
        day = {"start_date": "2000-01-01", "end_date": "2000-01-01"}
        attempt.act(call("get_historical_temp", latitude=latitude, longitude=longitude, **day))
        attempt.act(call("get_elevation", latitude=latitude, longitude=longitude))


CHEATS: Final = (
    *_tools.CHEATS,
    *answers("Infinity", 1e308, -1, 15.0, 20, "fair", "good"),
    Cheat("answers_where_the_user_is", _answers_where_the_user_is),
    Cheat("leaves_out_the_working", _leaves_out_the_working),
    Cheat("asks_of_one_city_alone", _asks_of_one_city_alone),
    Cheat("answers_a_range", _answers_a_range),
    Cheat("answers_nowhere", _answers_nowhere),
)
