"""AgentBench's own puzzles, from its tables."""

import re
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from gymfleet_contracts.session import Split

from gymfleet_envs.lateral_thinking.lexicon import Language
from gymfleet_envs.lateral_thinking.puzzle import Puzzle
from gymfleet_envs.tasks import ListedTasks, Task, TaskDataError

_HEADERS: Final[dict[str, Language]] = {"story": "en", "汤面": "zh"}
"""The language of a table, by its first cell."""
_SPLITS: Final[dict[str, Split]] = {"dev": "validation", "standard": "test"}
"""The split of a file, by its name in AgentBench; all other files are for training."""
_PLACES: Final = ("data/lateralthinkingpuzzle", "data/lateralthinkingpuzzle_zh", "lateralthinkingpuzzle",
                  "lateralthinkingpuzzle_zh", ".")  # fmt: skip
_SHORT: Final = {"standard": "std"}
_MARK: Final = re.compile(r"^(?:\d{1,2}\s*[.、)．]|[-•·])\s*")
_COLUMNS: Final = 4
_MOST_BYTES: Final = 64 * 2**20
_MOST_ROWS: Final = 100_000
_MOST_CELL_CHARS: Final = 8192
_NUM_DECOYS: Final = 12


def copy_files(source: Path, target: Path) -> None:
    """Copy the tables that `published_tasks` reads, under names that include their language."""
    for path in _files(source):
        language, _ = _table(path)
        shutil.copyfile(path, target / f"{language}-{path.stem.removeprefix(f'{language}-')}.xlsx")


def published_tasks(data: Path) -> ListedTasks[Puzzle]:
    """Return all puzzles, with ids `LANGUAGE-FILE-INDEX` and AgentBench's own index. Raises `TaskDataError`."""
    tasks: list[Task[Puzzle]] = []
    for path in _files(data):
        language, rows = _table(path)
        name = path.stem.removeprefix(f"{language}-")
        keys = [_lines(row[3]) for row in rows]
        for index, row in enumerate(rows):
            where = f"lateral_thinking: {path.name}: row {index + 2}"
            if not all(row[:2]) or not keys[index]:
                raise TaskDataError(f"{where}: a puzzle has a story, an answer and answer keys")
            others = [key for place in range(1, len(rows)) for key in keys[(index + place) % len(rows)]]
            puzzle = Puzzle(
                language=language,
                story=row[0],
                truth=row[1],
                story_keys=_lines(row[2]),
                keys=keys[index],
                decoys=tuple(others[:_NUM_DECOYS]),
            )
            task_id = f"{language}-{_SHORT.get(name, name)}-{index}"
            tasks.append(Task(task_id=task_id, split=_SPLITS.get(name, "train"), level=language, data=puzzle))
    if not tasks:
        raise TaskDataError(f"lateral_thinking: {data} holds none of AgentBench's tables (dev.xlsx, standard.xlsx)")
    return ListedTasks("lateral_thinking", "agentbench", tasks)


def _files(data: Path) -> list[Path]:
    found = [path for place in _PLACES for path in sorted((data / place).glob("*.xlsx"))]
    return [path for path in found if not path.name.startswith("~$")]


def _lines(cell: str) -> tuple[str, ...]:
    """Return the sentences of a list, without its numbers or dashes."""
    lines = (_MARK.sub("", line.strip()).strip() for line in cell.splitlines())
    return tuple(line for line in lines if line)


def _table(path: Path) -> tuple[Language, list[tuple[str, ...]]]:
    """Return a table's language and its rows of four texts. Raises `TaskDataError`."""
    rows = list(_rows(path))
    language = _HEADERS.get(rows[0][0].strip().lower()) if rows else None
    if language is None:
        raise TaskDataError(f"lateral_thinking: {path}: the first row of a table begins with 'story' or '汤面'")
    return language, [tuple(cell.strip() for cell in row) for row in rows[1:]]


def _rows(path: Path) -> Iterator[Sequence[str]]:
    from openpyxl import load_workbook  # noqa: PLC0415 - only for those who bring tables

    where = f"lateral_thinking: {path}"
    try:
        with zipfile.ZipFile(path) as packed:
            if sum(member.file_size for member in packed.infolist()) > _MOST_BYTES:
                raise TaskDataError(f"{where}: unpacks to more than {_MOST_BYTES} bytes")
        book = load_workbook(path, read_only=True, data_only=True)
        try:
            sheet: Any = book.worksheets[0]
            sheet.reset_dimensions()  # some programs write a size that is too small, and rows beyond it would be lost
            for number, row in enumerate(sheet.iter_rows(max_col=_COLUMNS, values_only=True), 1):
                if number > _MOST_ROWS:
                    raise TaskDataError(f"{where}: more than {_MOST_ROWS} rows")
                cells = ["" if cell is None else str(cell) for cell in row]
                cells += [""] * (_COLUMNS - len(cells))
                if max(map(len, cells)) > _MOST_CELL_CHARS:
                    raise TaskDataError(f"{where}: row {number}: a cell has more than {_MOST_CELL_CHARS} characters")
                if any(cells):
                    yield cells
        finally:
            book.close()
    except TaskDataError:
        raise
    except Exception as error:  # noqa: BLE001 - of a damaged file, openpyxl and its parsers raise what they like
        raise TaskDataError(f"{where}: no table, or damaged: {str(error)[:200] or type(error).__name__}") from None
