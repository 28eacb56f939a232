"""AgentGym's questions about the DBLP citation network, with imported responses."""

from pathlib import Path

from gymfleet_envs.academia.network import Service
from gymfleet_envs.agentgym_tools.published import PublishedTasks
from gymfleet_envs.agentgym_tools.questions import Question, published_questions
from gymfleet_envs.agentgym_tools.responses import Responses, read_responses


def published_tasks(data: Path) -> PublishedTasks[Question[Service]]:
    """Read the questions, all of which are for testing, and the responses. Raises `TaskDataError`."""
    world: Service = Responses(read_responses("academia", data))
    return published_questions("academia", data, world, tested=None)
