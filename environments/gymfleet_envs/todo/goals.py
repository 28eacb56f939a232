"""The kinds of goals in generated accounts: each writes the goal, the calls that reach it, and the final state."""

import datetime
import json
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from gymfleet_envs.agentgym_tools.base import Move
from gymfleet_envs.todo.account import Account, Item, Project

_DAY_FORM = "Please provide the answer in the YYYY-MM-DD format."
_MOST_CHANGES: Final = 6
_LIST_FORM = "Please answer in the form of a list ['task1', 'task2', ...]."


class Draft:
    """A task in the making: `now` is the account after the calls so far."""

    def __init__(self, rng: random.Random, today: datetime.date, account: Account) -> None:
        self.rng = rng
        self.today = today
        self.start = self.now = account
        self.goal = ""
        self.answer: Any = "done"
        self.moves: list[Move] = []

    @property
    def answer_text(self) -> str:
        """The answer as JSON."""
        return json.dumps(self.answer, ensure_ascii=False)

    def some(self) -> tuple[Project, Item]:
        """Draw a project and one of its tasks."""
        project = self.rng.choice(self.start.projects)
        return project, self.rng.choice(project.items)

    def look(self, *projects: Project) -> None:
        """Look at all projects, and at the tasks of the given ones."""
        self.moves.append(Move.of("I need the ids of the projects first.", "get_projects"))
        for project in projects:
            self.moves.append(Move.of(f"I look at the tasks of {project.name}.", "get_tasks", project_id=project.id))

    def search(self, item: Item) -> None:
        """Look at the projects one by one until the task is found."""
        until = next(i for i, project in enumerate(self.start.projects) if item in project.items)
        self.look(*self.start.projects[: until + 1])

    def complete(self, items: Sequence[Item]) -> None:
        """Complete tasks."""
        for item in items:
            self.moves.append(Move.of(f"{item.content} is to be completed.", "complete_task", task_id=item.id))
            self.now = self.now.without(item.id)

    def delete(self, items: Sequence[Item]) -> None:
        """Delete tasks."""
        for item in items:
            self.moves.append(Move.of(f"{item.content} is to be deleted.", "delete_task", task_id=item.id))
            self.now = self.now.without(item.id)

    def postpone(self, items: Sequence[Item], due: Sequence[str]) -> None:
        """Give tasks other due dates."""
        for item, day in zip(items, due, strict=True):
            thought = f"{item.content} is to be due on {day}."
            self.moves.append(Move.of(thought, "update_task", task_id=item.id, due_date=day))
            self.now = self.now.with_due(item.id, day)

    def finish(self) -> None:
        """End the plan."""
        thought = "All of it is done." if self.answer == "done" else "I know the answer."
        self.moves.append(Move.of(thought, "finish", answer=self.answer))


def later(day: str, days: int) -> str:
    """Return a day that is some days later."""
    return (datetime.date.fromisoformat(day) + datetime.timedelta(days=days)).isoformat()


def due_date(draft: Draft) -> None:
    """Ask when a task is due; the goal names its project."""
    project, item = draft.some()
    draft.goal = f"When is the due date of {item.content} in {project.name}? {_DAY_FORM}"
    draft.look(project)
    draft.answer = item.due_date


def duration(draft: Draft) -> None:
    """Ask how long a task takes; the goal names its project."""
    project, item = draft.some()
    draft.goal = (
        f"What is the duration of the task {item.content} in {project.name}? "
        "Please provide the answer in the format of 'amount(unit)'."
    )
    draft.look(project)
    draft.moves.append(Move.of("I ask for its duration.", "get_task_duration", task_id=item.id))
    draft.answer = item.duration


def complete(draft: Draft) -> None:
    """Mark a task as completed; the goal names its project."""
    project, item = draft.some()
    draft.goal = f"I have finished the task {item.content} in {project.name}, please mark it as completed."
    draft.look(project)
    draft.complete([item])


def move_to(draft: Draft) -> None:
    """Give a task a due date that the goal names."""
    project, item = draft.some()
    day = later(item.due_date, draft.rng.randint(1, 30))
    draft.goal = f"Please change the due date of {item.content} in {project.name} to {day}."
    draft.look(project)
    draft.postpone([item], [day])


def favourite(draft: Draft) -> None:
    """Mark a project as favourite."""
    project = draft.rng.choice(draft.start.projects)
    draft.goal = f"Please mark the project {project.name} as my favorite."
    draft.look()
    draft.moves.append(Move.of("I mark it.", "update_project", project_id=project.id, is_favorite="True"))
    draft.now = draft.now.with_favorite(project.id, True)


def find_and_complete(draft: Draft) -> None:
    """Complete a task; the goal does not name its project."""
    _, item = draft.some()
    draft.goal = f"Finally, I have completed the task {item.content}, please mark it as completed."
    draft.search(item)
    draft.complete([item])


def postpone(draft: Draft) -> None:
    """Postpone a task; the goal does not name its project, and the new day has to be worked out."""
    _, item = draft.some()
    days = draft.rng.randint(2, 20)
    draft.goal = f"I cannot do the task {item.content} in time, please extend its due date by {days} days."
    draft.search(item)
    draft.postpone([item], [later(item.due_date, days)])


def due_before(draft: Draft) -> None:
    """Ask for the tasks of a project that are due before a day: some but not all, unless all are due on one day."""
    project = max(draft.start.projects, key=lambda project: len({item.due_date for item in project.items}))
    days = sorted({item.due_date for item in project.items})
    day = later(draft.rng.choice(days[1:] or days), 0 if len(days) > 1 else 1)
    draft.goal = f"What tasks should I complete before {day} in the {project.name} project? {_LIST_FORM}"
    draft.look(project)
    draft.answer = sorted(item.content for item in project.items if item.due_date < day)


def total_duration(draft: Draft) -> None:
    """Ask for the sum of the durations of a project's tasks."""
    project = draft.rng.choice(draft.start.projects)
    draft.goal = (
        f"How many minutes do all tasks of the {project.name} project take in total? "
        "Please provide the answer as a number."
    )
    draft.look(project)
    for item in project.items:
        thought = f"I ask for the duration of {item.content}."
        draft.moves.append(Move.of(thought, "get_task_duration", task_id=item.id))
    draft.answer = sum(item.amount for item in project.items)


def delete_due_before(draft: Draft) -> None:
    """Delete the tasks that are due before a day, in all projects."""
    found = sorted(draft.start.items(), key=lambda item: item.due_date)
    day = later(found[draft.rng.randint(1, 3)].due_date, 1)  # two to four tasks, or more that are due on one day
    draft.goal = f"Please delete all tasks of my projects that are due before {day}."
    draft.look(*draft.start.projects)
    draft.delete([item for item in draft.start.items() if item.due_date < day])


def complete_urgent(draft: Draft) -> None:
    """Complete the tasks of one priority, in all projects."""
    items = list(draft.start.items())
    priority = _priority(draft, items)
    draft.goal = f"I have done every task with priority {priority}, please mark them as completed in all my projects."
    draft.look(*draft.start.projects)
    draft.complete([item for item in items if item.priority == priority])


def postpone_important(draft: Draft) -> None:
    """Postpone the tasks of one priority, in all projects."""
    items = list(draft.start.items())
    priority, days = _priority(draft, items), draft.rng.randint(2, 14)
    draft.goal = f"Please extend the due date of each task with priority {priority} in all my projects by {days} days."
    draft.look(*draft.start.projects)
    chosen = [item for item in items if item.priority == priority]
    draft.postpone(chosen, [later(item.due_date, days) for item in chosen])


def _priority(draft: Draft, items: Sequence[Item]) -> int:
    """Draw a priority that few enough tasks have for the turn limit."""
    counts = Counter(item.priority for item in items)
    few = [priority for priority, count in sorted(counts.items()) if 2 <= count <= _MOST_CHANGES]
    return draft.rng.choice(few or [min(counts, key=lambda priority: counts[priority])])
