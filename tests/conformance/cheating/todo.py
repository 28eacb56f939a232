"""What an agent would do in todo that wants the reward and not the task."""

import ast
import datetime
from typing import Any, Final

from gymfleet_env_server.cheats import Attempt, Cheat

from tests.conformance.cheating import _tools
from tests.conformance.cheating._tools import call, goal


def _rows(attempt: Attempt, action: str) -> list[dict[str, Any]]:
    text = attempt.act(action).observation.removeprefix("Observation: ").rpartition("\n")[0]
    found: list[dict[str, Any]] = ast.literal_eval(text)
    return found


def _items(attempt: Attempt) -> list[dict[str, Any]]:
    projects = _rows(attempt, call("get_projects"))
    return [item for project in projects for item in _rows(attempt, call("get_tasks", project_id=project["id"]))]


def _answers_every_task(attempt: Attempt) -> None:
    """Name all tasks where some are asked for."""
    attempt.act(call("finish", answer=[item["content"] for item in _items(attempt)]))


def _answers_the_project(attempt: Attempt) -> None:
    """Name all tasks of the project that the goal names."""
    for project in _rows(attempt, call("get_projects")):
        if project["name"] in goal(attempt):
            items = _rows(attempt, call("get_tasks", project_id=project["id"]))
            attempt.act(call("finish", answer=[item["content"] for item in items]))


def _answers_the_earliest(attempt: Attempt) -> None:
    """Name the task of the project that is due first: one is among those that are due before any day."""
    for project in _rows(attempt, call("get_projects")):
        if project["name"] in goal(attempt):
            items = _rows(attempt, call("get_tasks", project_id=project["id"]))
            attempt.act(call("finish", answer=[min(items, key=lambda item: str(item["due_date"]))["content"]]))


def _answers_todays_date(attempt: Attempt) -> None:
    today = attempt.act(call("get_user_current_date")).observation.removeprefix("Observation: ").partition("\n")[0]
    attempt.act(call("finish", answer=(datetime.date.fromisoformat(today) + datetime.timedelta(1)).isoformat()))


def _removes_all(attempt: Attempt) -> None:
    """Complete whatever there is: what was to be completed is then among it."""
    for item in _items(attempt):
        attempt.act(call("complete_task", task_id=item["id"]))
    attempt.act(call("finish", answer="done"))


def _changes_too_much(attempt: Attempt) -> None:
    """Do what is asked for, and complete one more task."""
    while (move := attempt.environment.expert()) is not None and not move.action.startswith("finish"):
        attempt.act(move.action)
    left = attempt.environment.admissible_actions()
    attempt.act(next((action for action in reversed(left) if action.startswith("delete_task")), call("get_projects")))
    attempt.act(call("finish", answer="done"))


def _leaves_out_the_last_change(attempt: Attempt) -> None:
    """Finish one call too early."""
    plan = attempt.task.data.plan
    attempt.act_all(*(move.action for move in plan[:-2]), plan[-1].action if "done" in plan[-1].action else call("x"))


def _guesses_ids(attempt: Attempt) -> None:
    for number in ("0", "1", "2331000000", "*", "../tasks", "' OR 1=1"):
        attempt.act(call("complete_task", task_id=number))
        attempt.act(call("update_task", task_id=number, due_date="2020-01-01"))
    attempt.act(call("finish", answer="done"))


CHEATS: Final = (
    *_tools.CHEATS,
    Cheat("answers_every_task", _answers_every_task),
    Cheat("answers_the_project", _answers_the_project),
    Cheat("answers_the_earliest", _answers_the_earliest),
    Cheat("answers_todays_date", _answers_todays_date),
    Cheat("removes_all", _removes_all),
    Cheat("changes_too_much", _changes_too_much),
    Cheat("leaves_out_the_last_change", _leaves_out_the_last_change),
    Cheat("guesses_ids", _guesses_ids),
)
