"""A Todoist account: projects with tasks, as AgentGym's tools read and change them.

Accounts are immutable: a change returns another account. Field names and their order are those of Todoist's REST API
as AgentGym shows it.
"""

import datetime
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from gymfleet_envs.agentgym_tools.base import Refused

Status: TypeAlias = tuple[tuple[tuple[Any, ...], ...], tuple[tuple[Any, ...], ...]]
"""The state that AgentGym compares at the end, in the order of the account and without ids: the projects (order, color,
name, is_favorite), and the tasks that are left (order, content, is_completed, priority, due_date)."""


@dataclass(frozen=True, slots=True)
class Item:
    """A task of the account that is neither completed nor deleted."""

    id: str
    order: int
    content: str
    description: str
    priority: int
    due_date: str
    amount: int
    unit: str

    def shown(self) -> dict[str, Any]:
        """Return the task as `get_tasks` lists it."""
        return {
            "id": self.id, "order": self.order, "content": self.content, "is_completed": False,
            "priority": self.priority, "due_date": self.due_date,
        }  # fmt: skip

    @property
    def duration(self) -> str:
        """The duration as `get_task_duration` returns it."""
        return f"{self.amount}({self.unit})"


@dataclass(frozen=True, slots=True)
class Project:
    """A project with its tasks."""

    id: str
    order: int
    name: str
    is_favorite: bool
    items: tuple[Item, ...]
    color: str = "charcoal"

    def shown(self) -> dict[str, Any]:
        """Return the project as `get_projects` lists it."""
        return {
            "id": self.id, "order": self.order, "color": self.color, "name": self.name, "is_favorite": self.is_favorite
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Account:
    """All projects."""

    projects: tuple[Project, ...]

    def items(self) -> Iterator[Item]:
        """Yield all tasks, project by project."""
        for project in self.projects:
            yield from project.items

    def status(self) -> Status:
        """Return the state that AgentGym compares."""
        projects = tuple((p.order, p.color, p.name, p.is_favorite) for p in self.projects)
        return projects, tuple((i.order, i.content, False, i.priority, i.due_date) for i in self.items())

    def project(self, project_id: str) -> Project:
        """Return a project. Raises `Refused`."""
        found = next((project for project in self.projects if project.id == project_id), None)
        if found is None:
            raise Refused("Project not found")
        return found

    def item(self, task_id: str, refusal: str = "Task not found") -> Item:
        """Return a task. Raises `Refused`."""
        found = next((item for item in self.items() if item.id == task_id), None)
        if found is None:
            raise Refused(refusal)
        return found

    def with_favorite(self, project_id: str, favorite: bool) -> "Account":
        """Return the account after `update_project`."""
        projects = (replace(p, is_favorite=favorite) if p.id == project_id else p for p in self.projects)
        return Account(tuple(projects))

    def with_due(self, task_id: str, due_date: str) -> "Account":
        """Return the account after `update_task`. Raises `Refused` for a text that is not a date."""
        if not is_date(due_date):
            raise Refused("Date is invalid, a due_date has the form YYYY-MM-DD")
        return self._changed(lambda item: replace(item, due_date=due_date) if item.id == task_id else item)

    def without(self, task_id: str) -> "Account":
        """Return the account after `complete_task` or `delete_task`: both take a task out of the lists."""
        return self._changed(lambda item: None if item.id == task_id else item)

    def _changed(self, change: Callable[[Item], Item | None]) -> "Account":
        return Account(
            tuple(
                replace(project, items=tuple(new for item in project.items if (new := change(item)) is not None))
                for project in self.projects
            )
        )


def is_date(text: str) -> bool:
    """Return whether a text is a day such as 2015-06-01."""
    try:
        return len(text) == 10 and datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
