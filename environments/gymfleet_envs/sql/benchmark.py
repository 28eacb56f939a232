"""BIRD's and Spider's questions, read from their published directories."""

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Final

import structlog
from gymfleet_contracts.faults import faults
from gymfleet_contracts.session import Split
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gymfleet_envs.sql.engine import can_run, connect
from gymfleet_envs.sql.options import SqlOptions
from gymfleet_envs.sql.schema import Schema, in_words, read_schema
from gymfleet_envs.sql.task import SqlTask
from gymfleet_envs.sqlite.guard import GuardedConnection, StatementFailed
from gymfleet_envs.task_files import read_text
from gymfleet_envs.tasks import ListedTasks, Task, TaskDataError

_FILES: Final[dict[str, Split]] = {
    "train": "train", "train_spider": "train", "train_others": "train", "dev": "validation",
    "mini_dev_sqlite": "validation", "test": "test",
}  # fmt: skip
_PART_OF: Final = {"mini_dev_sqlite": "dev"}
"""Question files that are published with the databases and tables of another one: BIRD's Mini-Dev."""
_MAX_FILE_BYTES: Final = 256 * 2**20
_DB_ID: Final = re.compile(r"[\w][\w .+-]{0,127}")
log = structlog.get_logger()


class _Question(BaseModel):
    """An entry of Spider's (`query`) or BIRD's (`SQL`) question files; other fields are not used."""

    model_config = ConfigDict(frozen=True)
    db_id: str
    question: Annotated[str, Field(min_length=1)]
    query: str = ""
    SQL: str = ""
    evidence: str = ""


class _Tables(BaseModel):
    """An entry of a tables file."""

    db_id: str
    table_names: list[str]
    column_names: list[tuple[int, str]]
    primary_keys: list[int | list[int]] = []
    foreign_keys: list[tuple[int, int]] = []


_QUESTIONS: Final = TypeAdapter(list[_Question])
_SCHEMAS: Final = TypeAdapter(list[_Tables])


def benchmark_tasks(data: Path, options: SqlOptions) -> ListedTasks[SqlTask]:
    """Return every question whose gold query can be prepared; the log counts the others.

    Ids are the file's name without its ending, a dot, and the question's place from 0. Raises `TaskDataError`.
    """
    files = [(folder, name) for folder in (data, data / "train", data / "dev", data / "test") for name in _FILES
             if (folder / f"{name}.json").is_file()]  # fmt: skip
    if not files:
        raise TaskDataError(f"sql: {data} holds no questions (such as Spider's or BIRD's dev.json or train.json)")
    benchmark = _Benchmark(options)
    tasks = [task for folder, name in files for task in benchmark.tasks(folder, name)]
    kind = "bird" if benchmark.is_bird else "spider"
    log.info("benchmark.loaded", env="sql", benchmark=kind, tasks=len(tasks), dropped=benchmark.num_dropped)
    if not tasks:
        raise TaskDataError(f"sql: of the gold queries in {data} none can be executed")
    return ListedTasks("sql", kind, tasks)


class _Benchmark:
    """The tasks of the files in one directory."""

    def __init__(self, options: SqlOptions) -> None:
        self._options = options
        self._words: dict[Path, str] = {}
        self._connections: dict[Path, GuardedConnection] = {}
        self.num_dropped = 0
        self.is_bird = False

    def tasks(self, folder: Path, name: str) -> Iterator[Task[SqlTask]]:
        file = folder / f"{name}.json"
        questions = _read(file, _QUESTIONS)
        names = dict.fromkeys((name, _PART_OF.get(name, name)))
        places = [*(f"{one}_databases" for one in names), "databases", "database", f"{name}_database"]
        present = [folder / place for place in places if (folder / place).is_dir()]
        if not present:
            raise TaskDataError(
                f"sql: {file} has questions, but there are no databases beside it: none of {', '.join(places)} is a "
                "directory (with DB_ID/DB_ID.sqlite in it)"
            )
        named = (folder / f"{prefix}tables.json" for prefix in (*(f"{one}_" for one in names), ""))
        tables = next((path for path in named if path.is_file()), None)
        schemas = {entry.db_id: entry for entry in _read(tables, _SCHEMAS)} if tables else {}
        try:
            for number, entry in enumerate(questions):
                gold = entry.SQL or entry.query
                self.is_bird = self.is_bird or bool(entry.SQL)
                path = _database(f"{file}: question {number}", entry.db_id, present)
                task = SqlTask(self._prompt(entry, path, schemas.get(entry.db_id)), gold, path)
                if self._runs(task):
                    yield Task(task_id=f"{name}.{number}", split=_FILES[name], level="benchmark", data=task)
                else:
                    self.num_dropped += 1
        finally:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    def _runs(self, task: SqlTask) -> bool:
        path = task.path or Path()
        if path not in self._connections:
            try:
                self._connections[path] = connect(task, self._options)
            except StatementFailed as error:
                raise TaskDataError(f"sql: {error}") from None
        return can_run(self._connections[path], task.gold_sql)

    def _prompt(self, entry: _Question, path: Path, tables: _Tables | None) -> str:
        if path not in self._words:
            own = self._options.names == "database" or tables is None
            schema = _own_schema(entry.db_id, path) if own or tables is None else _published(tables)
            self._words[path] = in_words(schema, published=not own)
        hint = f"{entry.evidence}\n\n" if self._options.evidence and entry.evidence else ""
        return f"{self._words[path]}\n\n{hint}{entry.question}"


def check_databases(data: Path) -> None:
    """Check every page of every database. Raises `TaskDataError`."""
    for path in sorted(data.rglob("*.sqlite")):
        try:
            with closing(_plain(path)) as connection:
                row = connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.Error as error:
            raise TaskDataError(f"sql: {path}: {error}") from None
        if row != ("ok",):
            raise TaskDataError(f"sql: {path} is damaged: {str(row[0])[:200] if row else 'no answer'}")


def _plain(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)


def _read(file: Path, adapter: TypeAdapter[Any]) -> Any:
    try:
        return adapter.validate_python(json.loads(read_text("sql", file, max_bytes=_MAX_FILE_BYTES)))
    except ValidationError as error:
        raise TaskDataError(f"sql: {file}: {faults(error, most=1)}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise TaskDataError(f"sql: {file}: not JSON: {error}") from None


def _database(place: str, db_id: str, folders: Iterable[Path]) -> Path:
    if _DB_ID.fullmatch(db_id) is None:
        raise TaskDataError(f"sql: {place}: db_id {db_id[:80]!r} cannot be the name of a database")
    for folder in folders:
        for path in (folder / db_id / f"{db_id}.sqlite", folder / f"{db_id}.sqlite"):
            if path.is_file():
                return path
    raise TaskDataError(f"sql: {place}: there is no database {db_id}/{db_id}.sqlite in {', '.join(map(str, folders))}")


def _own_schema(db_id: str, path: Path) -> Schema:
    try:
        with closing(_plain(path)) as connection:
            return read_schema(db_id, connection)
    except sqlite3.Error as error:
        raise TaskDataError(f"sql: {path}: {error}") from None


def _published(tables: _Tables) -> Schema:
    keys = {key for key in tables.primary_keys if isinstance(key, int)}  # AgentGym's wording leaves out the others
    size = len(tables.column_names)
    if any(not 0 <= place < size for pair in tables.foreign_keys for place in pair):
        raise TaskDataError(
            f"sql: the tables file gives {tables.db_id} a foreign key of a column that it does not have"
        )
    if any(of >= len(tables.table_names) for of, _ in tables.column_names):
        raise TaskDataError(f"sql: the tables file gives {tables.db_id} a column of a table that it does not have")
    return Schema(
        tables.db_id, tuple(tables.table_names), tuple(tables.column_names), frozenset(keys), tuple(tables.foreign_keys)
    )
