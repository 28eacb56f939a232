"""AgentGym's questions about real films, with imported responses of TMDB."""

from pathlib import Path
from typing import Any, Final

from gymfleet_envs.agentgym_tools.base import Faulty
from gymfleet_envs.agentgym_tools.published import PublishedTasks
from gymfleet_envs.agentgym_tools.questions import Question, published_questions
from gymfleet_envs.agentgym_tools.responses import Responses, read_responses
from gymfleet_envs.movie.catalogue import NO_RESULT, Service

TESTED: Final = frozenset({
    1, 3, 5, 9, 13, 20, 23, 44, 54, 55, 56, 63, 78, 89, 94, 97, 109, 113, 125, 171, 176, 212, 223,
})  # fmt: skip
"""The tasks that AgentTraj-L, the training set, leaves out: AgentEval's twenty, and three that neither has."""


class Recorded(Responses):
    """TMDB's imported responses; an empty list means that the search did not find a film."""

    def use(self, tool: str, arguments: Any) -> Any:
        """See `Service`."""
        result = super().use(tool, arguments)
        if tool == "get_search_movie" and result == []:
            raise Faulty(NO_RESULT)
        return result


def published_tasks(data: Path) -> PublishedTasks[Question[Service]]:
    """Read the questions and the responses. Raises `TaskDataError`."""
    world: Service = Recorded(read_responses("movie", data))
    return published_questions("movie", data, world, tested=TESTED)
