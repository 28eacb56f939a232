"""Generated tasks of movie: a catalogue, a question, and the calls that answer it."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Final

from gymfleet_envs.agentgym_tools.base import Move
from gymfleet_envs.agentgym_tools.questions import Question
from gymfleet_envs.movie import questions
from gymfleet_envs.movie.catalogue import Service
from gymfleet_envs.movie.draw import draw_catalogue
from gymfleet_envs.movie.questions import Draft
from gymfleet_envs.tasks import GeneratedTasks

LEVELS: Final = ("easy", "medium", "hard")
_KINDS: Final[dict[str, Sequence[Callable[[Draft], None]]]] = {
    "easy": (
        questions.release_date, questions.revenue, questions.character, questions.keywords, questions.instagram,
    ),
    "medium": (questions.birthday_of_director, questions.difference, questions.other_role, questions.in_both),
    "hard": (questions.total_revenue, questions.lead_of_most_expensive, questions.first_release),
}  # fmt: skip


def generated_tasks() -> GeneratedTasks[Question[Service]]:
    """Return the source of generated tasks."""
    return GeneratedTasks("movie", _draw, repr, levels=LEVELS)


def _draw(rng: random.Random, level: str) -> Question[Service]:
    draft = Draft(rng, draw_catalogue(rng))
    rng.choice(_KINDS[level])(draft)
    draft.moves.append(Move.of("I know the answer.", "finish", answer=draft.answer))
    return Question(
        goal=draft.goal, world=draft.catalogue, answers=(json.dumps(draft.answer),), plan=tuple(draft.moves)
    )
