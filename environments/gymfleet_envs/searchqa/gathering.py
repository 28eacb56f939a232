"""Makes playable questions from rows of files: ids, splits, and the rows left out, with the reasons."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from gymfleet_contracts.formats.searchqa import read_move
from gymfleet_contracts.session import Split

from gymfleet_envs.searchqa.files import Row, read_directory
from gymfleet_envs.searchqa.passages import Passage
from gymfleet_envs.searchqa.scoring import exact_match
from gymfleet_envs.tasks import TaskDataError, split_of

_DIGEST_BYTES: Final = 16
NO_ANSWER: Final = "no answer, without which nothing can be scored"
NO_PASSAGES: Final = "no passages: neither of their own nor in a file of passages beside them"
UNSAYABLE: Final = "an answer that cannot be given between tags"


class Question(msgspec.Struct, frozen=True):
    """A question that can be played."""

    task_id: str
    split: Split
    level: str
    question: str
    answers: tuple[str, ...]
    support: tuple[str, ...]


def gather(data: Path, add: Callable[[Passage], None]) -> tuple[list[Question], list[str]]:
    """Return the questions of a directory, and notes on those left out; pass each of its passages to `add`, once.

    Raises `TaskDataError`.
    """
    taken = _Passages(add)
    rows: list[Row] = []
    left_out: list[str] = []
    own: list[bool] = []
    has_corpus = False
    for found in read_directory(data):
        if isinstance(found, str):
            left_out.append(found)
        elif isinstance(found, Passage):
            has_corpus = True
            taken.take(found)
        else:
            for passage in found.passages:
                taken.take(passage)
            own.append(bool(found.passages))
            rows.append(msgspec.structs.replace(found, passages=()))
    faults = Counter[tuple[str, str]]()
    questions = list[Question]()
    for row, task_id, has_passages in zip(rows, _ids(rows), own, strict=True):
        if fault := _fault(row, has_passages=has_passages or has_corpus):
            faults[row.file, fault] += 1
        else:
            split = row.split or split_of(row.question)
            questions.append(Question(task_id, split, row.level, row.question, row.answers, row.support))
    left_out += [f"{file}: {count} with {fault}" for (file, fault), count in faults.items()]
    if not questions:
        told = "; ".join(left_out) or "it has no .json, .jsonl or .parquet file with questions"
        raise TaskDataError(f"searchqa: {data} has no question that can be played: {told}")
    return questions, left_out


class _Passages:
    """Passes on each passage that has not occurred before."""

    def __init__(self, add: Callable[[Passage], None]) -> None:
        self._add = add
        self._seen: set[bytes] = set()

    def take(self, passage: Passage) -> None:
        digest = hashlib.blake2b(passage.whole.encode(errors="replace"), digest_size=_DIGEST_BYTES).digest()
        if digest not in self._seen:
            self._seen.add(digest)
            self._add(passage)


def _ids(rows: Sequence[Row]) -> list[str]:
    """Return the rows' own ids, or else their file's name and their number in it."""
    numbers, ids = Counter[str](), dict[str, str]()
    for row in rows:
        task_id = row.question_id or f"{row.file}.{numbers[row.file]}"
        numbers[row.file] += 1
        if task_id in ids:
            raise TaskDataError(f"{row.place}: the id {task_id[:80]!r} is that of {ids[task_id]} too")
        ids[task_id] = row.place
    return list(ids)


def _fault(row: Row, *, has_passages: bool) -> str | None:
    if not row.answers:
        return NO_ANSWER
    if not has_passages:
        return NO_PASSAGES
    said = (read_move(f"<answer>{answer}</answer>") for answer in row.answers)
    if not any(move and move.verb == "answer" and exact_match(move.content, row.answers) for move in said):
        return UNSAYABLE
    return None
