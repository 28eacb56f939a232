"""AgentBench's task files: lists of questions with scripts that prepare, solve and check."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import structlog
from gymfleet_contracts.session import Split

from gymfleet_envs.os.task import Comparison, Match, OsTask, Script
from gymfleet_envs.runtime.tasks import ListedTasks, Task, TaskDataError, TaskSource

_COMPARISONS: Final[tuple[Comparison, ...]] = ("integer-match", "string-match", "size-match")
_MAX_FILE_BYTES: Final = 64 << 20
_MAX_SCRIPT_CHARS: Final = 120_000  # the kernel's limit for one argument, less a little
log = structlog.get_logger()


class _ScriptMissing(Exception):
    """A task names a script file that is not there."""


def agentbench_tasks(data: Path) -> TaskSource[OsTask]:
    """All tasks of `data/*.json`: `training*` to train on, `dev*` for validation, others for testing.

    Task id: the file's stem and the task's place, such as `training-00042`. A task
    whose script files are not in `data` is left out, and logged. Raises `TaskDataError`.
    """
    if not (files := sorted(data.glob("*.json"))):
        raise TaskDataError(f"{data} holds no .json file; expected AgentBench's OS tasks, such as training.json")
    tasks = [task for path in files for task in _read(path, data)]
    if not tasks:
        raise TaskDataError(f"{data} holds no task that can be played")
    return ListedTasks("os", "agentbench", tasks)


def _read(path: Path, data: Path) -> Iterator[Task[OsTask]]:
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise TaskDataError(f"{path.name} is larger than {_MAX_FILE_BYTES >> 20} MiB")
    try:
        items = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise TaskDataError(f"{path.name} is not JSON: {error}") from None
    if isinstance(items, dict):
        items = [items]
    if not isinstance(items, list):
        raise TaskDataError(f"{path.name} must hold a list of tasks")
    left_out = []
    for place, item in enumerate(items):
        task_id = f"{path.stem}-{place:05d}"
        try:
            task = _Reader(f"{path.name}[{place}]", data).task(item)
        except _ScriptMissing as error:
            left_out.append(f"{task_id}: {error}")
            continue
        yield Task(task_id=task_id, split=_split(path.stem), level="default", data=task)
    if left_out:
        log.warning("tasks.left_out", env="os", file=path.name, count=len(left_out), reasons=left_out[:10])


def _split(stem: str) -> Split:
    if stem.startswith("train"):
        return "train"
    return "validation" if stem.startswith("dev") else "test"


class _Reader:
    """Reads one task, as AgentBench does."""

    def __init__(self, where: str, data: Path) -> None:
        self._where = where
        self._data = data

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
        # A list in place of an object is in the published files; AgentBench finds no init in it.
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
        """From the data directory, or from `scripts` in it or `scripts/dev`, as upstream's tree has it."""
        for folder in (self._data, self._data / "scripts", self._data / "scripts" / "dev"):
            path = (folder / name).resolve()
            if path.is_relative_to(self._data.resolve()) and path.is_file():
                if path.stat().st_size > _MAX_SCRIPT_CHARS:
                    raise self._fault(f"{name} is too long for a script")
                return self._text(path.read_bytes().decode(errors="replace"), name)
        raise _ScriptMissing(f"no file {name}")

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
    """The example solution, where its output is the answer that is asked for."""
    if example is None or example.language != "bash" or check[:1] != (None,):
        return ()
    return (("I run a script that finds it out.", example.code),)
