"""AgentGym's academia as an environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from gymfleet_contracts.session import Tool

from gymfleet_envs.academia.generate import generated_tasks
from gymfleet_envs.academia.network import AUTHORS, PAPERS, Service
from gymfleet_envs.academia.published import published_tasks
from gymfleet_envs.agentgym_tools.base import Refused, taken
from gymfleet_envs.agentgym_tools.questions import Question, QuestionEnvironment
from gymfleet_envs.agentgym_tools.toolbox import read_toolbox
from gymfleet_envs.tasks import TaskSource

_TOOLBOX: Final = read_toolbox(Path(__file__).with_name("tools.txt"))
_LOADS: Final = {f"load{graph}": graph for graph in (PAPERS, AUTHORS)}
_NEEDS: Final = {
    "paperNodeCheck": PAPERS, "paperEdgeCheck": PAPERS, "authorNodeCheck": AUTHORS, "authorEdgeCheck": AUTHORS
}  # fmt: skip
_SPELLINGS: Final = {"neighborCheck": "neighbourCheck"}


class Academia(QuestionEnvironment[Service]):
    """Answer a question about papers and their authors. A network must be loaded before its tools work."""

    name: ClassVar[str] = "academia"
    version: ClassVar[str] = "1.0.0"
    summary: ClassVar[str] = "Answer questions about a citation network with tools (AgentGym's academia)"
    instructions: ClassVar[str] = _TOOLBOX.instructions
    floors: ClassVar[Mapping[str, Mapping[str, float]]] = {"answers_any_paper": {"hard": 0.16}}
    max_turns: ClassVar[int] = 12
    tools: ClassVar[tuple[Tool, ...]] = _TOOLBOX.tools
    valid_actions: ClassVar[tuple[str, ...]] = (
        "loadPaperNet", "loadAuthorNet", "neighbourCheck", "paperNodeCheck", "authorNodeCheck", "authorEdgeCheck",
        "paperEdgeCheck", "check_valid_actions", "finish",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self._loaded: frozenset[str] = frozenset()

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[Question[Service]]:
        """Generated networks, or AgentGym's questions with imported responses."""
        return generated_tasks() if data is None else published_tasks(data)

    def state_key(self) -> str:
        """The state of every tool environment, and the loaded networks."""
        return f"{super().state_key()}\n{sorted(self._loaded)}"

    def _begin(self) -> None:
        self._loaded = frozenset()

    def _spelled(self, name: str) -> str:
        return _SPELLINGS.get(name, name)

    def _use(self, tool: str, arguments: Any) -> Any:
        if graph := _LOADS.get(tool):
            self._loaded |= {graph}
            return f"{graph} is loaded."
        needed = _NEEDS.get(tool) or taken(arguments, "graph")
        if needed in (PAPERS, AUTHORS) and needed not in self._loaded:
            raise Refused(f"Please load the {needed} first.")
        return self._task.world.use(tool, arguments)


ENVIRONMENT: Final = Academia
