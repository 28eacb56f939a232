"""AgentGym's tasks of sheet, and the workbook from which they start: `sheet.jsonl` and `start/sheet.xlsx`.

The workbook also holds the solutions, in sheets called `Answer1` and so on; these are left out.
"""

import json
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any, Final

from gymfleet_envs.agentgym_tools.base import Faulty, Move, Refused
from gymfleet_envs.agentgym_tools.literals import Unreadable, read_literal
from gymfleet_envs.agentgym_tools.published import Published, PublishedTasks, listed, read_published
from gymfleet_envs.sheet.cells import Cell, address
from gymfleet_envs.sheet.scoring import Rule, exact, match
from gymfleet_envs.sheet.task import SheetTask
from gymfleet_envs.sheet.tools import Workbook
from gymfleet_envs.sheet.workbook import MAX_COLUMNS, MAX_ROWS, Sheet
from gymfleet_envs.task_files import read_text
from gymfleet_envs.tasks import TaskDataError

_MEANT: Final = re.compile(r'"(Sheet\d{1,2})"')
_CALL: Final = re.compile(r"Action \d+: (\w+) with Action Input: (\{.*\})")
_CONVERTED: Final = "workbook.json"
_START: Final = "sheet.xlsx"
_MAX_BYTES: Final = 8 * 2**20
_MAX_UNPACKED: Final = 128 * 2**20


def published_tasks(data: Path, rule: Rule) -> PublishedTasks[SheetTask]:
    """Read the tasks, all of which are for testing, and the workbook. Raises `TaskDataError`."""
    workbook = _read_workbook(data)
    tasks = [(read, _task(read, workbook, rule, data)) for read in read_published("sheet", data)]
    return listed("sheet", tasks, tested=None)


def import_workbook(source: Path, target: Path) -> None:
    """Copy the tasks, and write the workbook as JSON next to them. Raises `TaskDataError`."""
    published_tasks(source, "agentgym")
    shutil.copy(source / "sheet.jsonl", target)
    rows = [_saved(sheet) for sheet in _read_workbook(source).sheets]
    (target / _CONVERTED).write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")


def _task(read: Published, workbook: Workbook, rule: Rule, data: Path) -> SheetTask:
    where = f"sheet: {data / 'sheet.jsonl'}: task {read.number}"
    meant = _MEANT.search(read.goal)
    if meant is None or workbook.sheet(meant[1]) is None:
        raise TaskDataError(f'{where}: its goal names no sheet of the workbook, as in "Sheet1"')
    try:
        table = json.loads(read.answer)
    except (ValueError, TypeError):
        table = None
    if not isinstance(table, list) or not table or not all(isinstance(row, list) for row in table):
        raise TaskDataError(f"{where}: answer is no table as JSON")
    if len(set(map(len, table))) > 1:
        raise TaskDataError(f"{where}: answer is a table with rows of different lengths")
    plans = (_rewriting(meant[1], table, workbook), _reference(meant[1], read.subgoals))
    plan = max(plans, key=lambda plan: _worth(plan, workbook, meant[1], table))
    return SheetTask(read.goal, workbook, meant[1], json.dumps(table), rule, plan)


def _rewriting(name: str, table: list[list[str]], workbook: Workbook) -> tuple[Move, ...]:
    """Return calls that delete surplus rows and columns and write the gold table, its first row first."""
    sheet = workbook.sheet(name)
    rows, columns = sheet.size if sheet else (0, 0)
    moves = [_opening(name)]
    for dimension, wanted, there in (("col", len(table[0]), columns), ("row", len(table), rows)):
        if surplus := list(range(wanted + 1, there + 1)):
            thought = "These are too many."
            moves.append(Move.of(thought, "delete_batch_data", dimension=dimension, index_list=surplus))
    return (*moves, _written(1, 1, table), _written(2, len(table), table), _ending())


def _written(first: int, last: int, table: list[list[str]]) -> Move:
    """Return the call that writes some rows of the gold table."""
    begin, end = address(first - 1, 0), address(last - 1, len(table[0]) - 1)
    thought, values = "This is what it should show.", table[first - 1 : last]
    return Move.of(thought, "update_range", start_position=begin, end_position=end, values_list=values)


def _reference(name: str, subgoals: Any) -> tuple[Move, ...]:
    """Return the calls of the published "Reference Action Path", whose values may be written as texts."""
    moves = [_opening(name)]
    for tool, written in _CALL.findall(str(subgoals)):
        try:
            arguments = read_literal(written)
            arguments = {key: _inner(value) for key, value in arguments.items()}
        except (Unreadable, AttributeError):
            return ()
        moves.append(Move.of("This is the next step.", tool, **arguments))
    return (*moves, _ending())


def _inner(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(("[", "re.compile(")):
        return read_literal(value)
    return value


def _opening(name: str) -> Move:
    return Move.of(f"I work in {name}.", "open_sheet", name=name)


def _ending() -> Move:
    return Move.of("The table is as it should be.", "finish")


def _worth(plan: tuple[Move, ...], workbook: Workbook, name: str, table: list[list[str]]) -> tuple[float, float]:
    """Return whether a plan leaves the sheet as it should be, and AgentGym's score of the plan."""
    shown, best = [[""]], 0.0
    try:
        for move in plan[:-1]:
            workbook, _ = workbook.use(move.tool, json.loads(move.arguments))
            if (sheet := workbook.sheet(name)) is not None:
                shown = sheet.shown()
                best = max(best, match(shown, table))
    except (Refused, Faulty, KeyError):
        return 0.0, 0.0
    return exact(shown, table), best


def _read_workbook(data: Path) -> Workbook:
    """Return the sheets of an imported workbook, or of the published file."""
    if (path := data / _CONVERTED).is_file():
        try:
            sheets = [_restored(sheet) for sheet in json.loads(read_text("sheet", path, max_bytes=_MAX_BYTES))]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise TaskDataError(f"sheet: {path}: it is no imported workbook ({error!r})") from None
        return Workbook(tuple(sheets))
    path = next((path for path in (data / "start" / _START, data / _START) if path.is_file()), path)
    if path.name != _START:
        raise TaskDataError(f"sheet: {data} has no start/{_START}: every published task starts from its workbook")
    return Workbook(tuple(_read_xlsx(path)))


def _read_xlsx(path: Path) -> list[Sheet]:
    import openpyxl  # noqa: PLC0415 - a server of imported data does without it

    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _MAX_UNPACKED:
                raise TaskDataError(f"sheet: {path}: unpacked it is larger than {_MAX_UNPACKED} bytes")
        book = openpyxl.load_workbook(path, data_only=True)
    except TaskDataError:
        raise
    except Exception as error:  # noqa: BLE001 - of a damaged file, openpyxl and its parsers raise what they like
        raise TaskDataError(f"sheet: {path}: it is no workbook ({type(error).__name__})") from None
    return [_sheet(table) for table in book.worksheets if not table.title.startswith("Answer")]


def _sheet(table: Any) -> Sheet:
    height, width = min(table.max_row, MAX_ROWS), min(table.max_column, MAX_COLUMNS)
    cells = [list(row) for row in table.iter_rows(max_row=height, max_col=width)]
    notes = [(i, j, cell.comment.text) for i, row in enumerate(cells) for j, cell in enumerate(row) if cell.comment]
    rows = tuple(tuple(Cell(_value(cell.value), cell.number_format) for cell in row) for row in cells)
    return Sheet(name=table.title, rows=rows, notes=tuple(notes))


def _value(value: Any) -> str | float | bool | None:
    if value is None or isinstance(value, bool | str):
        return value
    return float(value) if isinstance(value, int | float) else str(value)


def _saved(sheet: Sheet) -> dict[str, Any]:
    return {
        "name": sheet.name,
        "rows": [[[cell.value, cell.shown_as] for cell in row] for row in sheet.rows],
        "notes": sheet.notes,
    }


def _restored(sheet: dict[str, Any]) -> Sheet:
    rows = tuple(tuple(Cell(_value(value), str(shown_as)) for value, shown_as in row) for row in sheet["rows"])
    notes = tuple((int(row), int(column), str(text)) for row, column, text in sheet["notes"])
    return Sheet(name=str(sheet["name"]), rows=rows, notes=notes)
