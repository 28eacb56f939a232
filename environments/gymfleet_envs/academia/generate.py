"""Generated tasks of academia: a network, a question, and the calls that answer it."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Final

from gymfleet_envs.academia import questions
from gymfleet_envs.academia.draw import draw_network
from gymfleet_envs.academia.network import Service
from gymfleet_envs.academia.questions import Draft
from gymfleet_envs.agentgym_tools.base import Move
from gymfleet_envs.agentgym_tools.questions import Question
from gymfleet_envs.tasks import GeneratedTasks

LEVELS: Final = ("easy", "medium", "hard")
_KINDS: Final[dict[str, Sequence[Callable[[Draft], None]]]] = {
    "easy": (questions.citations, questions.authors, questions.collaborators, questions.joint_papers),
    "medium": (questions.joint_citations, questions.cited_citations, questions.common_collaborators),
    "hard": (questions.most_cited, questions.all_citations),
}


def generated_tasks() -> GeneratedTasks[Question[Service]]:
    """Return the source of generated tasks."""
    return GeneratedTasks("academia", _draw, repr, levels=LEVELS)


def _draw(rng: random.Random, level: str) -> Question[Service]:
    draft = Draft(rng, draw_network(rng))
    rng.choice(_KINDS[level])(draft)
    draft.moves.append(Move.of("I know the answer.", "finish", answer=draft.answer))
    return Question(goal=draft.goal, world=draft.network, answers=(json.dumps(draft.answer),), plan=tuple(draft.moves))
