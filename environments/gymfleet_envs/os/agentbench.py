"""AgentBench's task files: lists of questions with scripts that prepare, solve and check."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
from gymfleet_contracts.session import Split

from gymfleet_envs.os.task import Comparison, Match, OsTask, Script
from gymfleet_envs.tasks import ListedTasks, Task, TaskDataError

_COMPARISONS: Final[tuple[Comparison, ...]] = ("integer-match", "string-match", "size-match")
_TRAINING_SCRIPTS: Final = "7"
_MAX_FILE_BYTES: Final = 64 << 20
_MAX_SCRIPT_CHARS: Final = 120_000  # the kernel's limit for one argument, less a little
log = structlog.get_logger()


class _ScriptMissing(Exception):
    """A task names a script file that is not there."""


@dataclass(frozen=True, slots=True)
class _Problems:
    """A file of tasks: the folders of its scripts, the prefix of its ids, and its split."""

    path: Path
    scripts: tuple[Path, ...]
    prefix: str
    split: Split


def agentbench_tasks(data: Path) -> ListedTasks[OsTask]:
    """Return all tasks of AgentBench's published tree, or of `data/*.json`.

    `data` may be the repository, its `os_interaction`, or the `data` folder in that. There, the numbered sets are for
    testing, with ids as in AgentBench's configuration (`std-004-Q09-00000`), `dev.json` is for validation
    (`dev-001-dev-00000`), and files in `train*` are for training. In a plain directory of files, `train*` is for
    training, `dev*` for validation, and all others for testing, with ids such as `training-00042`. Tasks whose script
    files are missing are left out; `left_out` names them. Raises `TaskDataError`.
    """
    tree = published_tree(data)
    files, left_out = _flat(data) if tree is None else _published(tree)
    if not files:
        raise TaskDataError(f"{data} holds no .json file; expected AgentBench's OS tasks, such as training.json")
    tasks = [task for file in files for task in _read(file, tree or data, left_out)]
    if left_out:
        log.warning("tasks.left_out", env="os", count=len(left_out), reasons=left_out[:10])
    if not tasks:
        raise TaskDataError(f"{data} holds no task that can be played")
    return ListedTasks("os", "agentbench", tasks, left_out=left_out)


def published_tree(place: Path) -> Path | None:
    """Find AgentBench's `os_interaction`, given a folder in or above it."""
    for tree in (place, place / "os_interaction", place / "data" / "os_interaction", place.parent):
        if (tree != place.parent or place.name == "data") and any((tree / "data").glob("[0-9]*/*.json")):
            return tree
    return None


def import_tree(source: Path, target: Path) -> bool:
    """Copy the files that `agentbench_tasks` reads to `target`; False if `source` is not the published tree."""
    if (tree := published_tree(source)) is None:
        return False
    wanted = [path for folder in ("data", "scripts", "train*") for path in sorted(tree.glob(f"{folder}/**/*"))]
    for path in wanted:
        if path.is_file() and not path.is_symlink():
            place = target / path.relative_to(tree)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
    return True


def _flat(data: Path) -> tuple[list[_Problems], list[str]]:
    scripts = (data, data / "scripts", data / "scripts" / "dev")
    return [
        _Problems(path, scripts, f"{path.stem}-", _split(path.stem)) for path in sorted(data.glob("*.json"))
    ], []  # fmt: skip


def _published(tree: Path) -> tuple[list[_Problems], list[str]]:
    """Return the files of AgentBench's configs/tasks/os.yaml and the training files, and a note on every other file."""
    found = []
    for folder in sorted((path for path in (tree / "data").glob("[0-9]*") if path.name.isdigit()), key=_number):
        for path in sorted(folder.glob("*.json")):
            scripts = (tree / "scripts" / folder.name,)
            found.append(_Problems(path, scripts, f"std-{_number(folder):03d}-{path.stem}-", "test"))
    if (path := tree / "data" / "dev.json").is_file():
        found.append(_Problems(path, (tree / "scripts" / "dev",), "dev-001-dev-", "validation"))
    own = (tree / "scripts" / _TRAINING_SCRIPTS,)
    found += [_Problems(path, own, f"{path.stem}-", "train") for path in sorted(tree.glob("train*/*.json"))]
    read = {problems.path for problems in found}
    others = [path for path in sorted((tree / "data").glob("**/*.json")) if path not in read]
    return found, [f"{path.relative_to(tree)}: AgentBench's configuration does not name it" for path in others]


def _number(folder: Path) -> int:
    return int(folder.name)


def _read(file: _Problems, data: Path, left_out: list[str]) -> Iterator[Task[OsTask]]:
    name = str(file.path.relative_to(data))
    if file.path.stat().st_size > _MAX_FILE_BYTES:
        raise TaskDataError(f"{name} is larger than {_MAX_FILE_BYTES >> 20} MiB")
    try:
        items = json.loads(file.path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise TaskDataError(f"{name} is not JSON: {error}") from None
    if isinstance(items, dict):
        items = [items]
    if not isinstance(items, list):
        raise TaskDataError(f"{name} must hold a list of tasks")
    for place, item in enumerate(items):
        task_id = f"{file.prefix}{place:05d}"
        try:
            task = _Reader(f"{name}[{place}]", data, file.scripts).task(item)
        except _ScriptMissing as error:
            left_out.append(f"{task_id}: {error}")
            continue
        yield Task(task_id=task_id, split=file.split, level="default", data=task)


def _split(stem: str) -> Split:
    if stem.startswith("train"):
        return "train"
    return "validation" if stem.startswith("dev") else "test"


class _Reader:
    """Reads one task, as AgentBench does."""

    def __init__(self, where: str, data: Path, scripts: tuple[Path, ...]) -> None:
        self._where = where
        self._data = data
        self._scripts = scripts

    def task(self, item: Any) -> OsTask:
        item = self._object(item, "the task")
        evaluation = self._object(item.get("evaluation"), "evaluation")
        create = item.get("create")
        match, example = self._match(evaluation), None
        check: tuple[Script | Comparison | None, ...] = ()
        if match is None:
            entries = evaluation.get("check")
            if entries is None:
                raise self._fault("evaluation has neither match nor check")
            check = tuple(self._check(entry) for entry in (entries if isinstance(entries, list) else [entries]))
            if "example" in evaluation:
                example = self._script(evaluation["example"])
            if example is None and None in check:
                raise self._fault("check has a null entry, but there is no example to run for it")
        # Some published files have a list instead of an object here; AgentBench finds no init in it.
        init = create.get("init", []) if isinstance(create, dict) else []
        start = self._script(item["start"]) if "start" in item else None
        return OsTask(
            description=self._text(item.get("description"), "description"),
            init=tuple(self._script(entry) for entry in (init if isinstance(init, list) else [init])),
            start=start.code if start else None,
            match=match,
            check=check,
            example=example,
            plan=_plan(example, check),
        )

    def _match(self, evaluation: Mapping[str, Any]) -> Match | None:
        match = evaluation.get("match")
        if match is None:
            return None
        if isinstance(match, str):
            return Match(answer=match, strip=True)
        match = self._object(match, "evaluation.match")
        answer, regex, strip = match.get("answer"), match.get("regex"), match.get("strip", False)
        if (answer is None) == (regex is None) or not isinstance(strip, bool):
            raise self._fault("evaluation.match needs one of answer and regex")
        if answer is not None:
            return Match(answer=self._text(answer, "evaluation.match.answer"), strip=strip)
        try:
            re.compile(self._text(regex, "evaluation.match.regex"))
        except re.error as error:
            raise self._fault(f"evaluation.match.regex: {error}") from None
        return Match(regex=regex, strip=strip)

    def _check(self, entry: Any) -> Script | Comparison | None:
        if entry is None:
            return None
        if isinstance(entry, dict) and isinstance(entry.get("file"), str) and "code" not in entry:
            stem = Path(entry["file"]).stem
            if stem in _COMPARISONS:
                return stem
        return self._script(entry)

    def _script(self, entry: Any) -> Script:
        if isinstance(entry, str):
            return Script(self._text(entry, "a script"))
        entry = self._object(entry, "a script")
        language = entry.get("language", "bash")
        if language not in {"bash", "python"}:
            raise self._fault(f"a script is in {language!r}; known: bash, python")
        if "file" in entry:
            return Script(self._file(self._text(entry["file"], "a script's file")), language)
        return Script(self._text(entry.get("code"), "a script's code"), language)

    def _file(self, name: str) -> str:
        """Read a script file, but never one outside the data."""
        for folder in self._scripts:
            path = (folder / name).resolve()
            if path.is_relative_to(self._data.resolve()) and path.is_file():
                if path.stat().st_size > _MAX_SCRIPT_CHARS:
                    raise self._fault(f"{name} is too long for a script")
                return self._text(path.read_bytes().decode(errors="replace"), name)
        places = ", ".join(str(folder.relative_to(self._data)) for folder in self._scripts)
        raise _ScriptMissing(f"no file {name} in {places}")

    def _object(self, value: Any, what: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self._fault(f"{what} is not an object")
        return value

    def _text(self, value: Any, what: str) -> str:
        if not isinstance(value, str) or "\0" in value or len(value) > _MAX_SCRIPT_CHARS:
            raise self._fault(f"{what} is not a text of at most {_MAX_SCRIPT_CHARS} characters without NUL")
        return value

    def _fault(self, fault: str) -> TaskDataError:
        return TaskDataError(f"{self._where}: {fault}")


def _plan(example: Script | None, check: tuple[Script | Comparison | None, ...]) -> tuple[tuple[str, str], ...]:
    """The example solution, if its output is the expected answer."""
    if example is None or example.language != "bash" or check[:1] != (None,):
        return ()
    return (("I run a script that finds it out.", example.code),)
