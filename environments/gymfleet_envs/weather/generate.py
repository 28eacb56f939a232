"""Generated tasks of weather: a world, a day, a question, and the calls that answer it.

Every answer is a number that the plan works out from the tools' results, with the tools' own code.
"""

import datetime
import json
import random
from collections.abc import Callable, Sequence
from typing import Final

from gymfleet_envs.agentgym_tools.base import Move
from gymfleet_envs.agentgym_tools.questions import Question
from gymfleet_envs.tasks import GeneratedTasks
from gymfleet_envs.weather import questions
from gymfleet_envs.weather.climate import Climate
from gymfleet_envs.weather.names import draw_cities
from gymfleet_envs.weather.questions import Draft
from gymfleet_envs.weather.service import Service

LEVELS: Final = ("easy", "medium", "hard")
_KINDS: Final[dict[str, Sequence[Callable[[Draft], None]]]] = {
    "easy": (questions.yesterday, questions.elevation, questions.highest_today, questions.lowest_tomorrow),
    "medium": (questions.spread, questions.rain_of_days, questions.distance, questions.namesake),
    "hard": (
        questions.against_last_year, questions.warmer, questions.highest_of_three, questions.rain_of_weeks,
        questions.mean_air,
    ),
}  # fmt: skip
_CITIES: Final = 6


def generated_tasks() -> GeneratedTasks[Question[Service]]:
    """Return the source of generated tasks."""
    return GeneratedTasks("weather", _draw, _fingerprint, levels=LEVELS)


def _draw(rng: random.Random, level: str) -> Question[Service]:
    climate = Climate(rng.randrange(2**32), draw_cities(rng, _CITIES))
    today = datetime.date(2018, 1, 1) + datetime.timedelta(days=rng.randrange(2500))
    draft = Draft(rng, climate, today)
    rng.choice(_KINDS[level])(draft)
    draft.moves.append(Move.of("I have worked out the answer.", "finish", answer=draft.answer))
    return Question(
        goal=draft.goal, world=climate, answers=(json.dumps(draft.answer),), plan=tuple(draft.moves),
        date=today.isoformat(), location=draft.home.name,
    )  # fmt: skip


def _fingerprint(task: Question[Service]) -> str:
    return repr((task.goal, task.date, task.world))
