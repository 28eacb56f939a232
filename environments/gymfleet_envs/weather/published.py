"""AgentGym's questions about the real weather, with imported responses of Open-Meteo."""

from pathlib import Path
from typing import Final

from gymfleet_envs.agentgym_tools.published import PublishedTasks
from gymfleet_envs.agentgym_tools.questions import Question, published_questions
from gymfleet_envs.agentgym_tools.responses import read_responses
from gymfleet_envs.tasks import TaskDataError
from gymfleet_envs.weather.recorded import Recorded
from gymfleet_envs.weather.service import Service

TESTED: Final = frozenset({
    4, 12, 16, 17, 18, 20, 22, 39, 61, 105, 142, 211, 217, 260, 272, 285, 287, 289, 296, 298, 302, 305, 311, 312, 317,
    319, 322, 323, 327, 328, 330, 332,
})  # fmt: skip
"""The tasks that AgentTraj-L, the training set, leaves out: AgentEval's twenty, and twelve that neither has."""


def published_tasks(data: Path) -> PublishedTasks[Question[Service]]:
    """Read the questions and the responses. Raises `TaskDataError`."""
    try:
        world: Service = Recorded(read_responses("weather", data))
    except (KeyError, TypeError, ValueError) as error:
        raise TaskDataError(f"weather: {data / 'responses' / 'weather.jsonl'}: arguments lack {error}") from None
    return published_questions("weather", data, world, tested=TESTED, configured=True)
