"""What an agent would do in weather that wants the reward and not the task."""

from typing import Final

from gymfleet_env_server.cheats import Attempt, Cheat

from tests.conformance.cheating import _tools
from tests.conformance.cheating._tools import answers, call, seen


def _answers_where_the_user_is(attempt: Attempt) -> None:
    where = attempt.act(call("get_user_current_location")).observation
    attempt.act(call("finish", answer=where.removeprefix("Observation: ").partition("\n")[0]))


def _leaves_out_the_working(attempt: Attempt) -> None:
    """Make every call of the plan but the last, and answer with a number of the last result, not with what it means."""
    plan = attempt.task.data.plan
    attempt.act_all(*(move.action for move in plan[:-2]))
    attempt.act(call("finish", answer=next(v for v in reversed(seen([attempt.observation])) if isinstance(v, float))))


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
    Cheat("answers_a_range", _answers_a_range),
    Cheat("answers_nowhere", _answers_nowhere),
)
