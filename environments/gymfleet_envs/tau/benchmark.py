"""tau-bench's own records, tasks and policy, read from the files of its repository."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from gymfleet_contracts.faults import faults
from gymfleet_contracts.session import Split
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from gymfleet_envs.task_files import read_text
from gymfleet_envs.tasks import ListedTasks, Task, TaskDataError
from gymfleet_envs.tau.database import World
from gymfleet_envs.tau.literals import NoTaskList, tasks_in_python
from gymfleet_envs.tau.task import Call, TauTask

_FILES: Final[Mapping[str, Split]] = {
    "tasks_train": "train", "tasks_dev": "validation", "tasks_test": "test", "tasks": "test",
}  # fmt: skip
_POLICY: Final = "wiki.md"
_MAX_FILE_BYTES: Final = 64 * 2**20
_MAX_POLICY_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Domain:
    """The files and records that one environment reads."""

    name: str
    """The environment's name."""
    folder: str
    """The folder of its files in tau-bench's repository, below `tau_bench/envs`."""
    tables: Mapping[str, type[BaseModel]]
    """The record of each table; the file has the name of the table."""
    tools: frozenset[str]


class _Action(BaseModel):
    model_config = ConfigDict(frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=64)]
    arguments: Annotated[dict[str, JsonValue], Field(validation_alias=AliasChoices("kwargs", "arguments"))]


class _Task(BaseModel):
    model_config = ConfigDict(frozen=True)

    user_id: str
    instruction: Annotated[str, Field(min_length=1, max_length=20_000)]
    actions: Annotated[list[_Action], Field(max_length=100)]
    outputs: list[Annotated[str, Field(min_length=1)]] | None = None


_TASKS: Final = TypeAdapter(list[_Task])


class PublishedTasks(ListedTasks[TauTask]):
    """Tasks whose ids are the file's split and their place from 0, such as `test.12`, together with the policy."""

    def __init__(self, env: str, tasks: Sequence[Task[TauTask]], policy: str) -> None:
        super().__init__(env, "tau-bench", tasks)
        self.policy = policy


def published_tasks(data: Path, domain: Domain) -> PublishedTasks:
    """Return the tasks in a directory: the files themselves, or tau-bench's repository. Raises `TaskDataError`."""
    files = _Files(data, domain)
    world = World({table: _records(files.tables[table], domain, kind) for table, kind in domain.tables.items()})
    tasks = []
    for path, split in files.tasks:
        for number, one in enumerate(_tasks(path, domain)):
            place = f"{domain.name}: {path}: task {number}"
            if unknown := [action.name for action in one.actions if action.name not in domain.tools]:
                raise TaskDataError(
                    f"{place}: there is no tool {unknown[0]!r}; there are {', '.join(sorted(domain.tools))}"
                )
            if one.user_id not in world.tables["users"]:
                raise TaskDataError(f"{place}: there is no user {one.user_id!r}")
            actions = tuple(Call.of(action.name, **action.arguments) for action in one.actions)
            task = TauTask(one.user_id, one.instruction, actions, tuple(one.outputs or ()), world)
            tasks.append(Task(f"{_id_of(split)}.{number}", split, "benchmark", task))
    policy = read_text(domain.name, files.policy, max_bytes=_MAX_POLICY_BYTES) if files.policy else ""
    return PublishedTasks(domain.name, tasks, policy)


def import_published(source: Path, target: Path, domain: Domain) -> None:
    """Check the files in `source`, and copy those that are read. Raises `TaskDataError`."""
    published_tasks(source, domain)
    files = _Files(source, domain)
    for path in (*files.tables.values(), *(path for path, _ in files.tasks), *filter(None, (files.policy,))):
        shutil.copyfile(path, target / path.name)


class _Files:
    """The paths of the files in a directory."""

    def __init__(self, data: Path, domain: Domain) -> None:
        self._places = [
            folder / below
            for folder in (data, data / domain.folder, data / "tau_bench" / "envs" / domain.folder)
            for below in (".", "data")
        ]
        self.tables: dict[str, Path] = {}
        for table in domain.tables:
            path = self._first(f"{table}.json")
            if path is None:
                raise TaskDataError(
                    f"{domain.name}: {data} holds no {table}.json: give tau-bench's repository, or the directory with "
                    f"{', '.join(f'{name}.json' for name in domain.tables)} and tasks_test.json or tasks_test.py"
                )
            self.tables[table] = path
        found = {name: path for name in _FILES if (path := self._first(f"{name}.json", f"{name}.py")) is not None}
        if "tasks_test" in found:
            found.pop("tasks", None)  # the list before its corrections
        if not found:
            names = ", ".join(f"{name}.json or .py" for name in _FILES)
            raise TaskDataError(f"{domain.name}: {data} holds no tasks: none of {names}")
        self.tasks = [(path, _FILES[name]) for name, path in found.items()]
        self.policy = self._first(_POLICY)

    def _first(self, *names: str) -> Path | None:
        return next((place / name for place in self._places for name in names if (place / name).is_file()), None)


def _tasks(path: Path, domain: Domain) -> list[_Task]:
    text = read_text(domain.name, path, max_bytes=_MAX_FILE_BYTES)
    try:
        return _TASKS.validate_python(tasks_in_python(text) if path.suffix == ".py" else json.loads(text))
    except ValidationError as error:
        raise TaskDataError(f"{domain.name}: {path}: {faults(error, most=1)}") from None
    except (ValueError, NoTaskList, RecursionError) as error:
        kind = "a list of tasks in Python" if path.suffix == ".py" else "JSON"
        raise TaskDataError(f"{domain.name}: {path}: not {kind}: {error}") from None


def _records(path: Path, domain: Domain, kind: type[BaseModel]) -> dict[str, dict[str, Any]]:
    try:
        records = json.loads(read_text(domain.name, path, max_bytes=_MAX_FILE_BYTES))
    except (ValueError, RecursionError) as error:
        raise TaskDataError(f"{domain.name}: {path}: not JSON: {error}") from None
    if not isinstance(records, dict):
        raise TaskDataError(f"{domain.name}: {path}: is no object of records by their ids")
    for key, record in records.items():
        try:
            kind.model_validate(record)
        except ValidationError as error:
            raise TaskDataError(f"{domain.name}: {path}: record {key[:80]!r}: {faults(error, most=1)}") from None
    return records


def _id_of(split: Split) -> str:
    return "dev" if split == "validation" else split
