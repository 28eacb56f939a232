"""BFCL's tasks, from a directory with its published package: the wheel, or the folder `bfcl_eval`."""

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gymfleet_envs.function_calling.checker import NESTED, TYPES, Kind
from gymfleet_envs.function_calling.classes import CLASSES, SOURCES, UnknownSource
from gymfleet_envs.function_calling.dialogues import Described, dialogue_of
from gymfleet_envs.function_calling.published import PublishedWorld
from gymfleet_envs.function_calling.task import FunctionCallingTask, Question, Questions
from gymfleet_envs.function_calling.wording import listed, spoken
from gymfleet_envs.task_files import read_text
from gymfleet_envs.tasks import ListedTasks, Task, TaskDataError

SINGLE: Final[Mapping[str, Kind]] = {
    "simple_python": "simple", "multiple": "multiple", "parallel": "parallel", "parallel_multiple": "parallel",
    "irrelevance": "irrelevance", "live_simple": "simple", "live_multiple": "multiple", "live_parallel": "parallel",
    "live_parallel_multiple": "parallel", "live_irrelevance": "irrelevance", "live_relevance": "relevance",
}  # fmt: skip
"""The categories of single questions, and the rule that scores each."""
DIALOGUES: Final = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")
NOT_PLAYED: Final[Mapping[str, str]] = {
    "simple_java": "its calls are Java's, which are not read",
    "simple_javascript": "its calls are JavaScript's, which are not read",
    "memory": "it needs stores of memory that last over tasks",
    "web_search": "it asks live services",
    "format_sensitivity": "it asks for other categories' tasks in other formats",
}
_PREFIXES: Final = ("BFCL_v4_", "BFCL_v3_")
_CODE: Final = "eval_checker/multi_turn_eval/func_source_code"
_DOCS: Final = "data/multi_turn_func_doc"
_MAX_FILE_BYTES: Final = 64 * 2**20
_MAX_WHEEL_BYTES: Final = 256 * 2**20


def unpack(source: Path, target: Path) -> None:
    """Put the parts of the package that are played into `target`: tasks, answers, descriptions and classes.

    `source` holds the wheel or the folder `bfcl_eval`, or is that folder. Raises `TaskDataError`.
    """
    wheels = sorted(source.glob("bfcl_eval-*.whl"))
    if len(wheels) > 1:
        raise TaskDataError(f"function_calling: {source} holds {len(wheels)} wheels of bfcl_eval; keep one")
    if not wheels:
        _copy(_package(source), target)
        return
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            _extract(wheel, target)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise TaskDataError(f"function_calling: {wheels[0].name} is damaged: {error}") from None


def _extract(wheel: zipfile.ZipFile, target: Path) -> None:
    wanted = [entry for entry in wheel.infolist() if _is_wanted(entry.filename.removeprefix("bfcl_eval/"))]
    if sum(entry.file_size for entry in wanted) > _MAX_WHEEL_BYTES:
        raise TaskDataError(f"function_calling: {wheel.filename} unpacks to more than {_MAX_WHEEL_BYTES} bytes")
    for entry in wanted:
        path = target / entry.filename.removeprefix("bfcl_eval/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wheel.read(entry))


def _copy(package: Path, target: Path) -> None:
    for path in package.rglob("*"):
        name = path.relative_to(package).as_posix()
        if path.is_file() and _is_wanted(name):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(path.read_bytes())


def _is_wanted(name: str) -> bool:
    """Return whether a file of the package is played: only files at known paths are."""
    folder, _, file = name.rpartition("/")
    if folder == _CODE:
        return file.removesuffix(".py") in SOURCES
    return folder in ("data", "data/possible_answer", _DOCS) and file.endswith(".json") and ".." not in name


def _package(place: Path) -> Path:
    for folder in (place, place / "bfcl_eval"):
        if (folder / "data").is_dir():
            return folder
    raise TaskDataError(
        f"function_calling: {place} holds neither a wheel bfcl_eval-*.whl nor the package's folder with data/ in it: "
        "pip download --no-deps bfcl-eval==2026.3.23"
    )


def benchmark_tasks(data: Path) -> tuple[ListedTasks[FunctionCallingTask], Path]:
    """Return the tasks, with BFCL's ids, in the test split, with a level per category, and the classes' directory.

    Raises `TaskDataError` with the file, the entry and the fault.
    """
    package = _package(data)
    tasks: list[Task[FunctionCallingTask]] = []
    left_out: list[str] = []
    for category in (*SINGLE, *DIALOGUES):
        if (file := _file(package / "data", category)) is None:
            continue
        if category in SINGLE:
            tasks += _single(category, file)
        else:
            tasks += _dialogues(category, file, package, left_out)
    left_out += [f"{name}: {reason}" for name, reason in NOT_PLAYED.items() if _file(package / "data", name)]
    if not tasks:
        raise TaskDataError(f"function_calling: {package / 'data'} holds no BFCL_v4_*.json that can be played")
    return ListedTasks("function_calling", "bfcl", tasks, left_out=left_out), package / _CODE


def _file(folder: Path, category: str) -> Path | None:
    files = (folder / f"{prefix}{category}.json" for prefix in _PREFIXES)
    return next((file for file in files if file.is_file()), None)


def _single(category: str, file: Path) -> Iterator[Task[FunctionCallingTask]]:
    kind = SINGLE[category]
    answered = kind not in ("irrelevance", "relevance")
    answers = _answers(file) if answered else {}
    for row in _rows(file):
        entry = f"function_calling: {file.name}: {row['id']}"
        functions = [] if kind == "irrelevance" and row.get("function") == [] else _list(row, "function", entry)
        for function in functions:
            _check_function(function, entry)
        right = answers.get(row["id"], []) if answered else []
        if answered:
            _check_answers(kind, functions, right, entry)
        question = Question(spoken(_only_turn(row, entry)), kind, json.dumps(right))
        task = Questions(listed(functions), (question,))
        yield Task(task_id=row["id"], split="test", level=category, data=task)


def _only_turn(row: Mapping[str, Any], entry: str) -> list[Any]:
    turns = _list(row, "question", entry)
    if len(turns) != 1 or not isinstance(turns[0], list):
        raise TaskDataError(f"{entry}: question is not one list of messages")
    return _messages(turns[0], entry)


def _messages(messages: Sequence[Any], entry: str) -> list[Any]:
    if not all(isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
               for m in messages):  # fmt: skip
        raise TaskDataError(f"{entry}: a message has no role and content that are texts")
    return list(messages)


def _check_function(function: Any, entry: str) -> None:
    match function:
        case {"name": str(), "description": str(), "parameters": {"properties": dict(parameters), "required": list()}}:
            pass
        case _:
            raise TaskDataError(f"{entry}: a function lacks name, description or parameters (properties, required)")
    for name, described in parameters.items():
        kind = described.get("type") if isinstance(described, dict) else None
        items = described.get("items") if kind in NESTED else {"type": "any"}
        if kind not in TYPES or not isinstance(items, dict) or items.get("type") not in TYPES:
            raise TaskDataError(f"{entry}: parameter {name} of {function['name']} has no type that BFCL knows")


def _check_answers(kind: Kind, functions: Sequence[Any], answers: Any, entry: str) -> None:
    names = [function["name"] for function in functions]
    if not isinstance(answers, list) or not answers or (kind != "parallel" and len(answers) != 1):
        raise TaskDataError(f"{entry}: no answer in possible_answer/, or the wrong number of calls")
    for answer in answers:
        match answer:
            case dict() if len(answer) == 1 and all(map(_is_possible, answer.values())):
                if next(iter(answer)) in names:
                    continue
        raise TaskDataError(f"{entry}: an answer is not one call of a listed function with lists of values")


def _is_possible(arguments: Any) -> bool:
    return isinstance(arguments, dict) and all(isinstance(values, list) for values in arguments.values())


def _dialogues(category: str, file: Path, package: Path, left_out: list[str]) -> Iterator[Task[FunctionCallingTask]]:
    answers, described = _answers(file), _descriptions(package)
    missing: dict[str, int] = {}
    for row in _rows(file):
        entry = f"function_calling: {file.name}: {row['id']}"
        for turn in _list(row, "question", entry):
            _messages(turn, entry)
        task = dialogue_of(row, answers.get(row["id"]), described, category, entry)
        try:
            PublishedWorld.of(task, package / _CODE)
        except UnknownSource as error:
            missing[str(error)] = missing.get(str(error), 0) + 1
            continue
        except Exception as error:  # noqa: BLE001 - the class's own, for what it cannot begin with
            raise TaskDataError(f"{entry}: initial_config: {type(error).__name__}: {error}") from None
        yield Task(task_id=row["id"], split="test", level=category, data=task)
    left_out += [f"{file.name}: {count} tasks: {reason}" for reason, count in missing.items()]


def _descriptions(package: Path) -> dict[str, list[Described]]:
    """Return the described functions of each class that has a description."""
    files = {name: package / _DOCS / f"{module}.json" for name, module in CLASSES.items()}
    found = {name: _rows(file, key="name") for name, file in files.items() if file.is_file()}
    for name, functions in found.items():
        for function in functions:
            _check_function(function, f"function_calling: {files[name].name}")
    return found


def _answers(file: Path) -> dict[str, Any]:
    path = file.parent / "possible_answer" / file.name
    if not path.is_file():
        raise TaskDataError(f"function_calling: {path} is missing: the answers to {file.name}")
    return {row["id"]: row.get("ground_truth") for row in _rows(path)}


def _rows(file: Path, key: str = "id") -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(read_text("function_calling", file, max_bytes=_MAX_FILE_BYTES).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TaskDataError(f"function_calling: {file}: line {number} is not JSON: {error}") from None
        if not isinstance(row, dict) or not isinstance(row.get(key), str):
            raise TaskDataError(f"function_calling: {file}: line {number} is not an object with a text {key!r}")
        rows.append(row)
    return rows


def _list(row: Mapping[str, Any], key: str, entry: str) -> list[Any]:
    value = row.get(key)
    if not isinstance(value, list) or not value:
        raise TaskDataError(f"{entry}: {key} is not a list with something in it")
    return value
