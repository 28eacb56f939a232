"""AgentGym's todo as an environment."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from gymfleet_contracts.session import Tool

from gymfleet_envs.agentgym_tools.answers import same
from gymfleet_envs.agentgym_tools.base import Faulty, ToolEnvironment, spelled, taken
from gymfleet_envs.agentgym_tools.toolbox import read_toolbox
from gymfleet_envs.tasks import TaskSource
from gymfleet_envs.todo.account import Account
from gymfleet_envs.todo.generate import generated_tasks
from gymfleet_envs.todo.published import published_tasks
from gymfleet_envs.todo.task import TodoTask

_TOOLBOX: Final = read_toolbox(Path(__file__).with_name("tools.txt"))
_WITHOUT_ARGUMENTS: Final = ("get_user_current_date", "get_user_current_location", "get_projects")
_OF_TASKS: Final = ("get_task_description", "get_task_duration", "complete_task", "delete_task")
_FAVORITE: Final = {"true": True, "false": False}


class Todo(ToolEnvironment[TodoTask]):
    """Answer a question about an account, or change the account as the goal says."""

    name: ClassVar[str] = "todo"
    version: ClassVar[str] = "1.0.0"
    summary: ClassVar[str] = "Look up and change a to-do account with tools (AgentGym's todo)"
    instructions: ClassVar[str] = _TOOLBOX.instructions
    floors: ClassVar[Mapping[str, Mapping[str, float]]] = {"answers_the_earliest": {"medium": 0.09}}
    max_turns: ClassVar[int] = 15
    tools: ClassVar[tuple[Tool, ...]] = _TOOLBOX.tools
    valid_actions: ClassVar[tuple[str, ...]] = tuple(tool.name for tool in _TOOLBOX.tools)

    def __init__(self) -> None:
        super().__init__()
        self._account = Account(())

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[TodoTask]:
        """Generated accounts, or AgentGym's tasks and the account from which they start."""
        return generated_tasks() if data is None else published_tasks(data)

    def state_key(self) -> str:
        """The state of every tool environment, and the account."""
        return f"{super().state_key()}\n{self._account!r}"

    def admissible_actions(self) -> list[str]:
        """All calls except those with free text."""
        if self._over:
            return []
        found: list[tuple[str, dict[str, str]]] = [(name, {}) for name in _WITHOUT_ARGUMENTS]
        for project in self._account.projects:
            found.append(("get_tasks", {"project_id": project.id}))
            found += [("update_project", {"project_id": project.id, "is_favorite": flag}) for flag in ("True", "False")]
        found += [(name, {"task_id": item.id}) for item in self._account.items() for name in _OF_TASKS]
        return [spelled(name, arguments) for name, arguments in found]

    def _begin(self) -> None:
        self._account = self._task.account

    def _use(self, tool: str, arguments: Any) -> Any:
        if tool in _WITHOUT_ARGUMENTS:
            return self._told(tool)
        if tool == "get_tasks":
            return [item.shown() for item in self._account.project(_id(arguments, "project_id")).items]
        if tool == "update_project":
            return self._update_project(arguments)
        task_id = _id(arguments, "task_id")
        if tool == "update_task":
            return self._update_task(task_id, str(taken(arguments, "due_date")))
        if tool in ("complete_task", "delete_task"):
            return self._remove(tool, task_id)
        item = self._account.item(task_id)
        about = {"duration": item.duration} if tool == "get_task_duration" else {"description": item.description}
        return {"id": item.id, "content": item.content} | about

    def _told(self, tool: str) -> Any:
        if tool == "get_projects":
            return [project.shown() for project in self._account.projects]
        return self._task.date if tool == "get_user_current_date" else self._task.location

    def _update_project(self, arguments: Any) -> dict[str, Any]:
        project = self._account.project(_id(arguments, "project_id"))
        written = str(taken(arguments, "is_favorite"))
        if (favorite := _FAVORITE.get(written.lower())) is None:
            raise Faulty(f"ValueError(is_favorite is {written[:80]!r}; True or False would be right)")
        self._account = self._account.with_favorite(project.id, favorite)
        return {"message": "Update the project successfully.", "project": self._account.project(project.id).shown()}

    def _update_task(self, task_id: str, due_date: str) -> dict[str, Any]:
        self._account.item(task_id)
        self._account = self._account.with_due(task_id, due_date)
        return {"message": "Update the task successfully", "task": self._account.item(task_id).shown()}

    def _remove(self, tool: str, task_id: str) -> dict[str, Any]:
        gone = self._account.item(task_id, f"Task {task_id} is not exists.").shown()
        self._account = self._account.without(task_id)
        if tool == "delete_task":
            return {"message": "Delete the task successfully.", "task": gone}
        del gone["is_completed"]
        return {"message": "Complete task successfully.", "task": gone}

    def _judge(self, answer: Any) -> float:
        return float(same(json.loads(self._task.answer), answer) and self._account.status() == self._task.status)


def _id(arguments: Any, name: str) -> str:
    """Return an id, which a model may also write as a number."""
    return str(taken(arguments, name))


ENVIRONMENT: Final = Todo
