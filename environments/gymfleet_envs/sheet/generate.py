"""Generated tasks of sheet: tables, a goal about one of them, and the calls that reach it.

The gold table is the result of the plan's calls, computed with the tools' own code.
"""

import json
import random
from collections.abc import Callable, Sequence
from typing import Final

from gymfleet_envs.sheet import goals
from gymfleet_envs.sheet.goals import Draft
from gymfleet_envs.sheet.scoring import Rule
from gymfleet_envs.sheet.tables import draw_sheets
from gymfleet_envs.sheet.task import SheetTask
from gymfleet_envs.sheet.tools import Workbook
from gymfleet_envs.tasks import GeneratedTasks

LEVELS: Final = ("easy", "medium", "hard")
_KINDS: Final[dict[str, Sequence[Callable[[Draft], None]]]] = {
    "easy": (goals.change_one, goals.delete_one, goals.add_one),
    "medium": (goals.sort_by, goals.delete_kind, goals.change_some, goals.read_notes),
    "hard": (goals.fill_profit, goals.change_and_sort, goals.keep_and_sort, goals.sum_and_sort),
}


def generated_tasks(rule: Rule) -> GeneratedTasks[SheetTask]:
    """Return the source of generated tasks."""

    def draw(rng: random.Random, level: str) -> SheetTask:
        sheets = draw_sheets(rng)
        name = rng.choice(sheets).name
        draft = Draft(rng, Workbook(sheets), name)
        rng.choice(_KINDS[level])(draft)
        draft.finish()
        gold = json.dumps(draft.sheet.shown(), ensure_ascii=False)
        return SheetTask(draft.goal, draft.start, name, gold, rule, tuple(draft.moves))

    return GeneratedTasks("sheet", draw, _fingerprint, levels=LEVELS)


def _fingerprint(task: SheetTask) -> str:
    return repr((task.goal, task.workbook))
