"""Generated tasks of todo: an account, a goal, and the calls that reach it.

The plan's calls read the answer from the account, and no answer appears in the goal or can be chosen from a few:
answers are days, durations, lists of tasks, and changes.
"""

import datetime
import random
from collections.abc import Callable
from typing import Final

from gymfleet_envs.tasks import GeneratedTasks
from gymfleet_envs.todo import goals
from gymfleet_envs.todo.account import Account, Item, Project
from gymfleet_envs.todo.goals import Draft
from gymfleet_envs.todo.ids import Ids
from gymfleet_envs.todo.task import TodoTask
from gymfleet_envs.todo.vocabulary import CITIES, OBJECTS, PLACES, PROJECTS, TIPS, VERBS

LEVELS: Final = ("easy", "medium", "hard")
_KINDS: Final[dict[str, tuple[Callable[[Draft], None], ...]]] = {
    "easy": (goals.due_date, goals.duration, goals.complete, goals.move_to, goals.favourite),
    "medium": (goals.find_and_complete, goals.postpone, goals.due_before, goals.total_duration),
    "hard": (goals.delete_due_before, goals.complete_urgent, goals.postpone_important),
}
_MOST_ITEMS: Final = 4
"""Limit on the tasks of a project; it has at least two."""


def generated_tasks() -> GeneratedTasks[TodoTask]:
    """Return the source of generated tasks."""
    return GeneratedTasks("todo", _draw, _fingerprint, levels=LEVELS)


def _draw(rng: random.Random, level: str) -> TodoTask:
    today = datetime.date(2016, 1, 4) + datetime.timedelta(days=rng.randrange(3000))
    account = _account(rng, today, rng.randint(3, 4))
    draft = Draft(rng, today, account)
    rng.choice(_KINDS[level])(draft)
    draft.finish()
    return TodoTask(
        goal=draft.goal, date=today.isoformat(), location=rng.choice(CITIES), account=account,
        answer=draft.answer_text, status=draft.now.status(), plan=tuple(draft.moves),
    )  # fmt: skip


def _fingerprint(task: TodoTask) -> str:
    """Return the goal and the account without its ids."""
    return repr((task.goal, task.date, task.account.status()))


def _account(rng: random.Random, today: datetime.date, projects: int) -> Account:
    ids = Ids(rng)
    contents = iter(rng.sample([f"{verb} {thing}" for verb in VERBS for thing in OBJECTS], projects * _MOST_ITEMS))
    return Account(
        tuple(
            Project(
                id=ids.project(), order=order, name=name, is_favorite=False,
                items=tuple(
                    _item(rng, ids, today, number + 1, next(contents)) for number in range(rng.randint(2, _MOST_ITEMS))
                ),
            )
            for order, name in enumerate(rng.sample(PROJECTS, projects), 1)
        )
    )  # fmt: skip


def _item(rng: random.Random, ids: Ids, today: datetime.date, order: int, content: str) -> Item:
    return Item(
        id=ids.task(), order=order, content=content,
        description=f"- Place: {rng.choice(PLACES)}\n- Tips: {rng.choice(TIPS)}",
        priority=rng.randint(1, 4), due_date=(today + datetime.timedelta(days=rng.randint(1, 45))).isoformat(),
        amount=rng.randrange(15, 180, 5), unit="minute",
    )  # fmt: skip
