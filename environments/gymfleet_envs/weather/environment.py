"""AgentGym's weather as an environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from gymfleet_contracts.session import Tool

from gymfleet_envs.agentgym_tools.questions import Question, QuestionEnvironment
from gymfleet_envs.agentgym_tools.toolbox import read_toolbox
from gymfleet_envs.tasks import TaskSource
from gymfleet_envs.weather.generate import generated_tasks
from gymfleet_envs.weather.published import published_tasks
from gymfleet_envs.weather.service import Service
from gymfleet_envs.weather.tools import use

_TOOLBOX: Final = read_toolbox(Path(__file__).with_name("tools.txt"))


class Weather(QuestionEnvironment[Service]):
    """Answer a question about temperatures, rain, snow, air and distances."""

    name: ClassVar[str] = "weather"
    version: ClassVar[str] = "1.0.0"
    summary: ClassVar[str] = "Answer questions about the weather with tools (AgentGym's weather)"
    instructions: ClassVar[str] = _TOOLBOX.instructions
    floors: ClassVar[Mapping[str, Mapping[str, float]]] = {"asks_of_one_city_alone": {"hard": 0.067}}
    max_turns: ClassVar[int] = 10
    tools: ClassVar[tuple[Tool, ...]] = _TOOLBOX.tools
    valid_actions: ClassVar[tuple[str, ...]] = tuple(tool.name for tool in _TOOLBOX.tools)

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[Question[Service]]:
        """Generated climates, or AgentGym's questions with imported responses."""
        return generated_tasks() if data is None else published_tasks(data)

    def _use(self, tool: str, arguments: Any) -> Any:
        if tool == "get_user_current_date":
            return self._task.date
        if tool == "get_user_current_location":
            return self._task.location
        return use(self._task.world, self._task.date, tool, arguments)


ENVIRONMENT: Final = Weather
