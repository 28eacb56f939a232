"""AgentBench's own questions, and its ontology of Freebase's relations."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import structlog
from gymfleet_contracts.faults import faults
from gymfleet_contracts.session import Split
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gymfleet_envs.kg.actions import Call, read_action
from gymfleet_envs.kg.program import FREEBASE_ID, RELATION, Program, program_of, topics
from gymfleet_envs.kg.task import Freebase, KgTask
from gymfleet_envs.task_files import read_text
from gymfleet_envs.tasks import ListedTasks, Task, TaskDataError

_SPLITS: Final[dict[str, Split]] = {"dev": "validation", "std": "test", "standard": "test", "test": "test"}
"""Splits by the name of the file; all other files, such as kg_rl_all, are for training."""
_PRECEDENCE: Final[dict[Split, int]] = {"test": 0, "validation": 1, "train": 2}
_PLACES: Final = (".", "data/knowledgegraph", "knowledgegraph")
_ONTOLOGIES: Final = (".", "ontology", "src/server/tasks/knowledgegraph/ontology")
_VOCABULARY, _ROLES = "vocab.json", "fb_roles"
_MOST_BYTES: Final = 256 * 2**20
log = structlog.get_logger()


class _Answer(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)
    answer_argument: Annotated[str, Field(min_length=1, max_length=1024)]


class _Question(BaseModel):
    """An entry of AgentBench's files; its other fields are not used."""

    model_config = ConfigDict(frozen=True)
    question: Annotated[str, Field(min_length=1, max_length=8192)]
    qid: Annotated[str, Field(min_length=1, max_length=200)]
    entities: dict[str, str]
    actions: list[str] = []
    answer: list[_Answer]


class _Vocabulary(BaseModel):
    relations: list[str]
    attributes: list[str]


_QUESTIONS: Final = TypeAdapter(list[_Question])


@dataclass(frozen=True, slots=True)
class Ontology:
    """The relations and attributes that AgentBench shows, and the types that relations lead to; empty without files."""

    relations: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    ranges: dict[str, str] = field(default_factory=dict)


def question_files(data: Path) -> list[Path]:
    """Return the files of questions in AgentBench's repository, or in a directory that holds them. Raises nothing."""
    for place in _PLACES:
        if files := [path for path in sorted((data / place).glob("*.json")) if _is_list(path)]:
            return files
    return []


def copy_questions(source: Path, target: Path) -> None:
    """Copy the files that `benchmark_tasks` and `ontology_of` read."""
    for path in question_files(source):
        shutil.copyfile(path, target / path.name)
    for name in (_VOCABULARY, _ROLES):
        if (found := _ontology_file(source, name)) is not None:
            shutil.copyfile(found, target / name)


def benchmark_tasks(data: Path) -> ListedTasks[KgTask]:
    """Return every question with its own `qid`: `dev` for validation, `std` for testing, others for training.

    A question that is in several files belongs to the one that is held out; `left_out` names the questions left out.
    Raises `TaskDataError`.
    """
    left_out: list[str] = []
    files = sorted(question_files(data), key=lambda path: (_PRECEDENCE[_split(path)], path.name))
    tasks: dict[str, Task[KgTask]] = {}
    for path in files:
        for place, entry in enumerate(_read(path, _QUESTIONS)):
            where = f"{path.name}: question {place} ({entry.qid})"
            if entry.qid in tasks:
                left_out.append(f"{where}: is there already, for {tasks[entry.qid].split}")
            elif not entry.answer:
                left_out.append(f"{where}: has no answer")
            else:
                data_of = _task(entry, Freebase(data))
                tasks[entry.qid] = Task(task_id=entry.qid, split=_split(path), level="benchmark", data=data_of)
    unplayable = sum(task.data.program is None for task in tasks.values())
    log.info("benchmark.loaded", env="kg", tasks=len(tasks), left_out=len(left_out), without_expert=unplayable)
    if not tasks:
        raise TaskDataError(f"kg: {data} holds no question that can be asked")
    return ListedTasks("kg", "agentbench", list(tasks.values()), left_out=left_out)


def ontology_of(data: Path) -> Ontology:
    """Read `vocab.json` and `fb_roles`. Raises `TaskDataError` if one is damaged, or there without the other."""
    vocabulary, roles = _ontology_file(data, _VOCABULARY), _ontology_file(data, _ROLES)
    if vocabulary is None and roles is None:
        return Ontology()
    if vocabulary is None or roles is None:
        raise TaskDataError(f"kg: {data} has one of {_VOCABULARY} and {_ROLES}; AgentBench's ontology is both")
    known = _read(vocabulary, TypeAdapter(_Vocabulary))
    return Ontology(frozenset(known.relations), frozenset(known.attributes), dict(_ranges(roles)))


def _task(entry: _Question, source: Freebase) -> KgTask:
    """Return an entry as a task. Names without a Freebase id, such as a year, are not entities for the tools."""
    gold = frozenset(answer.answer_argument for answer in entry.answer)
    return KgTask(entry.question, tuple(entry.entities.items()), gold, _program(entry), source)


def _program(entry: _Question) -> Program | None:
    """Return the program of the gold calls; None if AgentBench's own tools could not make one of them."""
    calls = [read_action(action) for action in entry.actions]
    try:
        made = [(call.name, call.arguments) for call in calls if isinstance(call, Call)]
        program = program_of(made, entry.entities) if len(made) == len(calls) else None
    except ValueError:
        return None
    named = topics(program) if program is not None else frozenset()
    return program if all(FREEBASE_ID.fullmatch(one) for one in named) else None


def _split(path: Path) -> Split:
    return _SPLITS.get(path.stem, "train")


def _ontology_file(data: Path, name: str) -> Path | None:
    return next((path for place in _ONTOLOGIES if (path := data / place / name).is_file()), None)


def _is_list(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")


def _ranges(path: Path) -> Iterator[tuple[str, str]]:
    for place, line in enumerate(_text(path).splitlines(), start=1):
        if not (fields := line.split()):
            continue
        if len(fields) != 3 or any(RELATION.fullmatch(one) is None for one in fields):
            raise TaskDataError(f"kg: {path}: line {place}: not a type, its relation and what that leads to")
        yield fields[1], fields[2]


def _read(path: Path, adapter: TypeAdapter[Any]) -> Any:
    try:
        return adapter.validate_python(json.loads(_text(path)))
    except ValidationError as error:
        raise TaskDataError(f"kg: {path}: {faults(error, most=1)}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise TaskDataError(f"kg: {path}: not JSON: {error}") from None


def _text(path: Path) -> str:
    """Return a file's text without the byte order mark that `_is_list` skips too."""
    return read_text("kg", path, max_bytes=_MOST_BYTES, encoding="utf-8-sig")
