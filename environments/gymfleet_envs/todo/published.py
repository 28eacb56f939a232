"""AgentGym's tasks of todo, and the account from which they start: `todo.jsonl` and `start/projects.json`."""

import json
import random
from pathlib import Path
from typing import Any, Final

from gymfleet_envs.agentgym_tools.base import Move
from gymfleet_envs.agentgym_tools.published import Published, PublishedTasks, listed, read_published
from gymfleet_envs.task_files import read_text
from gymfleet_envs.tasks import TaskDataError
from gymfleet_envs.todo.account import Account, Item, Project, Status, is_date
from gymfleet_envs.todo.ids import Ids
from gymfleet_envs.todo.task import TodoTask

TESTED: Final = frozenset({19, 20, 21, 24, 26, 28, 32, 33, 34, 37, 41, 53, 57, 65, 67, 69, 73, 76, 104, 115})
"""AgentEval's twenty tasks, which AgentTraj-L, the training set, leaves out."""
_PROJECT: Final = ("order", "color", "name", "is_favorite")
_TASK: Final = ("order", "content", "is_completed", "priority", "due_date")
_START: Final = "projects.json"
_MAX_BYTES: Final = 2**20


def published_tasks(data: Path) -> PublishedTasks[TodoTask]:
    """Read both files. Raises `TaskDataError`."""
    projects = _read_projects(data)
    tasks = [(read, _task(read, projects, data)) for read in read_published("todo", data, configured=True)]
    return listed("todo", tasks, tested=TESTED)


def _task(read: Published, projects: list[dict[str, Any]], data: Path) -> TodoTask:
    account = _account(projects, Ids(random.Random(f"todo/{read.number}")))
    where = f"todo: {data / 'todo.jsonl'}: task {read.number}"
    if not isinstance(read.subgoals, list) or len(read.subgoals) != 1:
        raise TaskDataError(f"{where}: subgoals is no list of one answer")
    status = _status(read.answer, where)
    answer = read.subgoals[0]
    return TodoTask(
        goal=read.goal,
        date=read.config["current_date"],
        location=read.config["current_location"],
        account=account,
        answer=json.dumps(answer),
        status=status,
        plan=_plan(account, status, answer, deletes="delete" in read.goal.lower()),
    )


def _read_projects(data: Path) -> list[dict[str, Any]]:
    """Return the content of `start/projects.json`, or of `projects.json`."""
    path = next((path for path in (data / "start" / _START, data / _START) if path.is_file()), None)
    if path is None:
        raise TaskDataError(f"todo: {data} has no start/{_START}: every published task starts from its account")
    try:
        projects = json.loads(read_text("todo", path, max_bytes=_MAX_BYTES))
        _account(projects, Ids(random.Random(0)))
    except (ValueError, OverflowError, RecursionError) as error:  # infinity is no int
        raise TaskDataError(f"todo: {path}: {error}") from None
    except (TypeError, KeyError, AttributeError) as error:
        raise TaskDataError(f"todo: {path}: it is no list of projects with tasks ({error!r})") from None
    return list(projects)


def _account(projects: list[dict[str, Any]], ids: Ids) -> Account:
    """Return the account as AgentGym fills it: in the order of the file, which Todoist numbers from 1."""
    return Account(
        tuple(
            Project(
                id=ids.project(),
                order=number,
                name=str(project["name"]),
                is_favorite=False,  # upstream creates the projects by their names alone
                items=tuple(_item(ids.task(), order, task) for order, task in enumerate(project["tasks"], 1)),
            )
            for number, project in enumerate(projects, 1)
        )
    )


def _item(task_id: str, order: int, task: dict[str, Any]) -> Item:
    if not is_date(str(task["due_date"])):
        raise ValueError(f"due_date {task['due_date']!r} of {task['content']!r} is no day such as 2015-06-01")
    return Item(
        id=task_id, order=order, content=str(task["content"]), description=str(task["description"]),
        priority=int(task["priority"]), due_date=str(task["due_date"]), amount=int(task["duration"]),
        unit=str(task["duration_unit"]),
    )  # fmt: skip


def _status(answer: Any, where: str) -> Status:
    try:
        projects = tuple(tuple(project[key] for key in _PROJECT) for project in answer["projects"])
        tasks = tuple(tuple(task[key] for key in _TASK) for task in answer["tasks"])
        for task in tasks:
            if not is_date(task[-1]):
                raise TaskDataError(f"{where}: answer has a task with the due_date {task[-1]!r}, which is no day")
        return projects, tasks
    except (TypeError, KeyError) as error:
        raise TaskDataError(f"{where}: answer is no account with projects and tasks ({error!r})") from None


def _plan(account: Account, status: Status, answer: Any, *, deletes: bool) -> tuple[Move, ...]:
    """Return calls that bring the account to its final state; none if the tools cannot do that."""
    moves = [Move.of("I look at the projects first.", "get_projects")]
    now = account
    for project, (_, _, _, favorite) in zip(account.projects, status[0], strict=False):
        if project.is_favorite != favorite:
            now = now.with_favorite(project.id, favorite)
            change = {"project_id": project.id, "is_favorite": str(favorite)}
            moves.append(Move.of("This project is to change.", "update_project", **change))
    left = list(status[1])
    for item in account.items():
        row = (item.order, item.content, False, item.priority, item.due_date)
        if left and left[0] == row:
            left.pop(0)
        elif left and left[0][:4] == row[:4]:
            due_date = left.pop(0)[4]
            now = now.with_due(item.id, due_date)
            change = {"task_id": item.id, "due_date": due_date}
            moves.append(Move.of("This task is due on another day.", "update_task", **change))
        else:
            now = now.without(item.id)
            tool = "delete_task" if deletes else "complete_task"
            moves.append(Move.of("This task is to go.", tool, task_id=item.id))
    if now.status() != status:
        return ()
    return (*moves, Move.of("All is as it should be.", "finish", answer=answer))
