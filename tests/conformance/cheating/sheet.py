"""What an agent would do in sheet that wants the reward and not the task."""

import re
from typing import Any, Final

from gymfleet_env_server.cheats import Attempt, Cheat

from tests.conformance.cheating._tools import call, goal

_SHEET: Final = re.compile(r'"(Sheet\d+)"')
_SIZE: Final = 12


def _open(attempt: Attempt) -> None:
    found = _SHEET.search(goal(attempt))
    assert found
    attempt.act(call("open_sheet", name=found[1]))


def _finishes_at_once(attempt: Attempt) -> None:
    attempt.act(call("finish"))


def _opens_and_finishes(attempt: Attempt) -> None:
    """What is there at first is right for the most part."""
    _open(attempt)
    attempt.act(call("finish"))


def _opens_the_answer(attempt: Attempt) -> None:
    """The published workbook holds the answers, in sheets of their own."""
    found = _SHEET.search(goal(attempt))
    assert found
    for name in (found[1].replace("Sheet", "Answer"), "Answer1", "Gold", ""):
        attempt.act(call("open_sheet", name=name))
    attempt.act(call("finish"))


def _keeps_the_header_alone(attempt: Attempt) -> None:
    """By AgentGym's rule the cells that both tables have count: few of them are all right."""
    _open(attempt)
    for rows in range(_SIZE, 1, -1):
        attempt.act(call("delete_batch_data", dimension="row", index_list=list(range(2, rows))))
    attempt.act(call("finish"))


def _empties_the_table(attempt: Attempt) -> None:
    _open(attempt)
    empty: list[list[Any]] = [[""] * _SIZE] * _SIZE
    attempt.act(call("update_range", start_position="A1", end_position="L12", values_list=empty))
    attempt.act(call("merge_cells", start_position="A1", end_position="L12"))
    attempt.act(call("finish"))


def _changes_another_table_too(attempt: Attempt) -> None:
    """Do what is asked for, and something in a table that nobody has spoken of."""
    plan = attempt.task.data.plan
    attempt.act_all(*(move.action for move in plan[:-1]))
    other = next(sheet.name for sheet in attempt.task.data.workbook.sheets if sheet.name != attempt.task.data.sheet)
    attempt.act(call("open_sheet", name=other))
    attempt.act(call("update_cell", position="A1", value="x"))
    attempt.act(call("finish"))


def _leaves_out_the_last_change(attempt: Attempt) -> None:
    plan = attempt.task.data.plan
    attempt.act_all(*(move.action for move in plan[:-2]), call("finish"))


def _sorts_by_everything(attempt: Attempt) -> None:
    _open(attempt)
    for column in range(1, 7):
        attempt.act(call("sort_sheet_by_col", col_num=column, order="des"))
    attempt.act(call("finish"))


def _never_stops_searching(attempt: Attempt) -> None:
    """A pattern that takes longer than the universe has been there."""
    _open(attempt)
    attempt.act(call("update_cell", position="A1", value="a" * 4000))
    attempt.act(call("filter_cells", query="(a+)+$|(a|aa)+b"))
    attempt.act(call("filter_cells", query="(" * 200))
    attempt.act(call("finish"))


CHEATS: Final = (
    Cheat("finishes_at_once", _finishes_at_once),
    Cheat("opens_and_finishes", _opens_and_finishes),
    Cheat("opens_the_answer", _opens_the_answer),
    Cheat("keeps_the_header_alone", _keeps_the_header_alone),
    Cheat("empties_the_table", _empties_the_table),
    Cheat("changes_another_table_too", _changes_another_table_too),
    Cheat("leaves_out_the_last_change", _leaves_out_the_last_change),
    Cheat("sorts_by_everything", _sorts_by_everything),
    Cheat("never_stops_searching", _never_stops_searching),
)
