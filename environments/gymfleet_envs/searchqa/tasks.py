"""Published questions as tasks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from gymfleet_envs.searchqa.corpus import Corpus, memory_corpus
from gymfleet_envs.searchqa.gathering import Question, gather
from gymfleet_envs.searchqa.options import SearchQAOptions
from gymfleet_envs.searchqa.passages import Passage
from gymfleet_envs.searchqa.store import MANIFEST, open_store
from gymfleet_envs.searchqa.task import SearchTask
from gymfleet_envs.tasks import ListedTasks, Task, TaskDataError

MAX_IN_MEMORY: Final = 20_000
"""The most passages of files that were not imported."""
_EASIEST_FIRST: Final = ("easy", "medium", "hard")
_AGENTGYM_ORDER: Final = ("test", "validation", "train")
_MAX_DIGITS: Final = 9
log = structlog.get_logger()


class Questions(ListedTasks[SearchTask]):
    """Questions by their own ids, and by AgentGym's numbers: test questions, then those of the other splits."""

    def __init__(self, tasks: Sequence[Task[SearchTask]], *, left_out: Sequence[str]) -> None:
        super().__init__("searchqa", "questions", tasks, left_out=left_out)
        self.levels = tuple(sorted(self.levels, key=_rank))
        self.default_level = self.levels[0]
        self._numbered = [task for split in _AGENTGYM_ORDER for task in tasks if task.split == split]

    def by_id(self, task_id: str) -> Task[SearchTask]:
        """Return the question with an id, or else with a number."""
        if task_id not in self._by_id and task_id.isascii() and task_id.isdigit() and len(task_id) <= _MAX_DIGITS:
            number = int(task_id)
            if number < len(self._numbered):
                return self._numbered[number]
        return super().by_id(task_id)


def published_questions(data: Path, options: SearchQAOptions) -> Questions:
    """Return the questions of an imported directory, or of published files. Raises `TaskDataError`."""
    if (data / MANIFEST).is_file():
        corpus, questions, manifest = open_store(data, options)
        left_out: Sequence[str] = manifest.left_out
    else:
        corpus, questions, left_out = _in_memory(data, options)
    log.info("benchmark.loaded", env="searchqa", questions=len(questions), left_out=list(left_out))
    attempts = _attempts(options)
    tasks = [
        Task(one.task_id, one.split, one.level,
             SearchTask(one.question, one.answers, one.support, str(data), lambda: corpus, attempts))
        for one in questions
    ]  # fmt: skip
    return Questions(tasks, left_out=left_out)


def _in_memory(data: Path, options: SearchQAOptions) -> tuple[Corpus, list[Question], list[str]]:
    if options.search != "bm25":
        raise TaskDataError(
            f"searchqa: search={options.search} needs the vectors of {data}: run `gymfleet data import searchqa` on it "
            "with the same options first"
        )
    held: list[Passage] = []

    def add(passage: Passage) -> None:
        held.append(passage)
        if len(held) > MAX_IN_MEMORY:
            raise TaskDataError(
                f"searchqa: {data} has more than {MAX_IN_MEMORY} passages: run `gymfleet data import searchqa` on it "
                "first, which puts them into an index on disk"
            )

    questions, left_out = gather(data, add)
    return memory_corpus(held), questions, left_out


def _attempts(options: SearchQAOptions) -> int | None:
    if options.attempts == "auto":
        return 1 if options.reward == "f1" else None
    return None if options.attempts == "unlimited" else options.attempts


def _rank(level: str) -> int:
    return _EASIEST_FIRST.index(level) if level in _EASIEST_FIRST else len(_EASIEST_FIRST)
