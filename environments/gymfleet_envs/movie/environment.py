"""AgentGym's movie as an environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from gymfleet_contracts.session import Tool

from gymfleet_envs.agentgym_tools.questions import Question, QuestionEnvironment
from gymfleet_envs.agentgym_tools.toolbox import read_toolbox
from gymfleet_envs.movie.catalogue import Service
from gymfleet_envs.movie.generate import generated_tasks
from gymfleet_envs.movie.published import published_tasks
from gymfleet_envs.tasks import TaskSource

_TOOLBOX: Final = read_toolbox(Path(__file__).with_name("tools.txt"))


class Movie(QuestionEnvironment[Service]):
    """Answer a question about films and the people in them."""

    name: ClassVar[str] = "movie"
    version: ClassVar[str] = "1.0.0"
    summary: ClassVar[str] = "Answer questions about films with tools (AgentGym's movie)"
    instructions: ClassVar[str] = _TOOLBOX.instructions
    floors: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "answers_the_leading_character": {"easy": 0.041, "medium": 0.05, "hard": 0.09},
        "answers_any_release": {"hard": 0.09},
    }
    max_turns: ClassVar[int] = 12
    tools: ClassVar[tuple[Tool, ...]] = _TOOLBOX.tools
    valid_actions: ClassVar[tuple[str, ...]] = tuple(tool.name for tool in _TOOLBOX.tools)

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[Question[Service]]:
        """Generated catalogues, or AgentGym's questions with imported responses."""
        return generated_tasks() if data is None else published_tasks(data)

    def _use(self, tool: str, arguments: Any) -> Any:
        return self._task.world.use(tool, arguments)


ENVIRONMENT: Final = Movie
