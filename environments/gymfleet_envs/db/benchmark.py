"""AgentBench's DBBench tasks, read from its `*.jsonl` files."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import structlog
from gymfleet_contracts.session import Split
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gymfleet_envs.db.answers import read_answer
from gymfleet_envs.db.options import DbOptions
from gymfleet_envs.db.sqlite import state_after
from gymfleet_envs.db.tables import Table, fit_names, state_digest
from gymfleet_envs.db.task import DbTask
from gymfleet_envs.sql_text import UnfitStatement
from gymfleet_envs.sqlite.guard import StatementFailed
from gymfleet_envs.tasks import ListedTasks, Task, TaskDataError

_MAX_FILE_BYTES: Final = 256 * 2**20
_SPLITS: Final[dict[str, Split]] = {"dev": "validation", "standard": "test", "std": "test", "test": "test"}
_MD5: Final = re.compile(r"[0-9a-f]{32}(?:_[0-9a-f]{32})*")
log = structlog.get_logger()
_Name = Annotated[str, Field(max_length=1000)]
_Cell = str | int | float | bool | None


class _RaggedTable(Exception):
    """A table cannot be set up, either here or in MySQL."""


class _Column(BaseModel):
    name: _Name


class _TableInfo(BaseModel):
    columns: Annotated[list[_Column], Field(min_length=1, max_length=200)]
    rows: Annotated[list[list[_Cell]], Field(max_length=100_000)]


class _Table(BaseModel):
    table_name: _Name
    table_info: _TableInfo


class _Query(BaseModel):
    query: str = ""


class _Entry(BaseModel):
    """One line of the file; its other fields are not used."""

    model_config = ConfigDict(frozen=True)
    description: Annotated[str, Field(min_length=1)]
    add_description: str = ""
    evidence: str = ""
    label: list[_Cell] | str | None = None
    type: Annotated[list[str], Field(min_length=1)]
    table: _Table | Annotated[list[_Table], Field(min_length=1)]
    sql: _Query | None = None
    answer_md5: str | list[str] | None = None


def benchmark_tasks(data: Path, options: DbOptions) -> ListedTasks[DbTask]:
    """Return a task per line; its id is the file's name without its ending, a dot, and the line's number from 0.

    `dev` is for validation, `standard`, `std` and `test` for testing, any other file for training. A line is left out
    and named in the log if a row of its table has more or fewer values than there are columns. Raises `TaskDataError`.
    """
    files = sorted(data.glob("*.jsonl"))
    if not files:
        raise TaskDataError(f"db: {data} holds no tasks (*.jsonl, such as AgentBench's dev.jsonl)")
    tasks, left_out = [], []
    for file in files:
        for number, (place, line) in enumerate(_lines(file)):
            try:
                data_of_line = _task(place, line, options)
            except _RaggedTable as error:
                left_out.append(str(error))
                continue
            split = _SPLITS.get(file.stem, "train")
            tasks.append(Task(task_id=f"{file.stem}.{number}", split=split, level="dbbench", data=data_of_line))
    if left_out:
        log.warning("benchmark.left_out", env="db", tasks=len(left_out), reasons=left_out)
    if not tasks:
        raise TaskDataError(f"db: the files in {data} hold no task")
    return ListedTasks("db", "dbbench", tasks)


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    if (size := file.stat().st_size) > _MAX_FILE_BYTES:
        raise TaskDataError(f"db: {file} is larger than {_MAX_FILE_BYTES} bytes ({size})")
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"{file}:{number}", line
    except UnicodeDecodeError as error:
        raise TaskDataError(f"db: {file} is not UTF-8: {error}") from None


def _task(place: str, line: str, options: DbOptions) -> DbTask:
    try:
        entry = _Entry.model_validate(json.loads(line))
    except ValidationError as error:
        first = error.errors()[0]
        raise TaskDataError(f"db: {place}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise TaskDataError(f"db: {place}: not JSON: {error}") from None
    tables = _tables(place, entry)
    kind = entry.type[0]
    labels = _labels(entry)
    if kind not in ("INSERT", "UPDATE", "DELETE"):
        if not labels and not isinstance(entry.label, str):  # a text may be the printed result of no rows
            raise TaskDataError(f"db: {place}: label: a question needs an answer")
        query = entry.sql.query if entry.sql else ""
        return DbTask(_prompt(entry), kind, tables, gold_sql=query, answers=labels)
    statement = labels[0] if labels else entry.sql.query if entry.sql else ""
    state = _state(place, entry, tables, statement, options)
    return DbTask(_prompt(entry), kind, tables, gold_sql=statement, state=state)


def _prompt(entry: _Entry) -> str:
    parts = (f"Evidence about the question: {entry.evidence}" if entry.evidence else "", entry.description)
    return "\n".join(part for part in (*parts, entry.add_description) if part)


def _labels(entry: _Entry) -> tuple[str, ...]:
    if isinstance(entry.label, str):
        return tuple(read_answer(entry.label))
    return tuple("none" if item is None else str(item) for item in entry.label or ())


def _tables(place: str, entry: _Entry) -> tuple[Table, ...]:
    given = entry.table if isinstance(entry.table, list) else [entry.table]
    names = fit_names(table.table_name for table in given)
    found: list[Table] = []
    for name, table in zip(names, given, strict=True):
        columns = fit_names(column.name for column in table.table_info.columns)
        for number, row in enumerate(table.table_info.rows):
            if len(row) != len(columns):
                raise _RaggedTable(
                    f"{place}: table {name!r}: row {number} has {len(row)} values for {len(columns)} columns"
                )
        found.append(Table(name, columns, tuple(tuple(map(str, row)) for row in table.table_info.rows)))
    return tuple(found)


def _state(place: str, entry: _Entry, tables: tuple[Table, ...], statement: str, options: DbOptions) -> str:
    """Return the stored digest: bare, in a list, or as MySQL printed it; without one, that of the gold's result."""
    given = entry.answer_md5 or ""
    stored = given if isinstance(given, str) else "_".join(sorted(given))
    if stored:
        if match := _MD5.search(stored):
            return match[0]
        if "None" in stored:
            return "None"
        raise TaskDataError(f"db: {place}: answer_md5 holds no md5: {stored[:80]!r}")
    try:
        return state_digest(state_after(tables, statement, options))
    except (StatementFailed, UnfitStatement) as error:
        raise TaskDataError(f"db: {place}: there is no answer_md5, and the gold statement fails: {error}") from None
