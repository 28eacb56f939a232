"""Questions and passages in published files: HotpotQA's, AgentGym's and Search-R1's, and those of a user."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from gymfleet_contracts.session import Split

from gymfleet_envs.records import SUFFIXES, records
from gymfleet_envs.searchqa.passages import Passage
from gymfleet_envs.tasks import TaskDataError

_SPLITS: Final[Mapping[str, Split]] = {
    "train": "train", "training": "train", "dev": "validation", "valid": "validation", "val": "validation",
    "validation": "validation", "test": "test",
}  # fmt: skip
_HELD_OUT: Final = "hotpot_distractor"
"""The beginning of the names of AgentTuning's held-out questions."""
_LEVEL: Final = re.compile(r"[\w.-]{1,64}")
_MAX_QUESTION_CHARS: Final = 8_000
_MAX_ANSWER_CHARS: Final = 1_000
_MAX_ANSWERS: Final = 1_000
_MAX_PASSAGE_CHARS: Final = 1_000_000
_MAX_TITLE_CHARS: Final = 1_000


class Row(msgspec.Struct, frozen=True):
    """A question of a file."""

    place: str
    """Its place in the files, for messages."""
    file: str
    question_id: str | None
    split: Split | None
    """None if neither the row nor the file's name gives it."""
    level: str
    question: str
    answers: tuple[str, ...]
    support: tuple[str, ...]
    passages: tuple[Passage, ...]
    """Its own passages, of which the corpus is made; empty if a file of passages is searched."""


def read_directory(data: Path) -> Iterator[Row | Passage | str]:
    """Yield all questions and passages, and a note on each file that holds neither. Raises `TaskDataError`."""
    files = sorted(path for path in data.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    for path in files:
        empty = True
        for place, record in records(path):
            empty = False
            if "claim" in record and "question" not in record:
                yield f"{path.name}: claims (FEVER), which are no questions"
                break
            yield _question(place, path.stem, record) if "question" in record else _passage(place, record)
        if empty:
            raise TaskDataError(f"{path}: holds no rows")


def _question(place: str, file: str, record: Mapping[str, Any]) -> Row:
    question = _text(place, record, "question", _MAX_QUESTION_CHARS).strip()
    if not question:
        raise TaskDataError(f"{place}: the question is empty")
    source = record.get("data_source")
    named = record.get("_id", record.get("id"))
    if named is not None and not isinstance(named, str | int):
        raise TaskDataError(f"{place}: the id must be a text or a number, got {type(named).__name__}")
    level = record.get("level") or source or "default"
    if not isinstance(level, str) or _LEVEL.fullmatch(level) is None:
        raise TaskDataError(f"{place}: level must be of letters, digits, _, . and -, got {str(level)[:80]!r}")
    number = None if named is None else str(named)
    row = Row(
        place=place,
        file=file,
        # AgentGym's merged files count each data set's questions from 0.
        question_id=f"{source}/{number}" if isinstance(source, str) and number is not None else number,
        split=_split(place, file, record),
        level=level,
        question=question,
        answers=_answers(place, record),
        support=_titles(place, record.get("supporting_facts")),
        passages=tuple(_context(place, record.get("context"))),
    )
    try:
        "".join((row.question, row.question_id or "", *row.answers, *row.support)).encode()
    except UnicodeEncodeError:
        raise TaskDataError(f"{place}: the question has half of a surrogate pair, which is no character") from None
    return row


def _split(place: str, file: str, record: Mapping[str, Any]) -> Split | None:
    given = record.get("split")
    if given is not None:
        if not isinstance(given, str) or given not in _SPLITS:
            raise TaskDataError(f"{place}: split must be train, validation or test, got {str(given)[:80]!r}")
        return _SPLITS[given]
    words = re.split(r"[^a-z]+", file.lower())
    named = next((_SPLITS[word] for word in words if word in _SPLITS), None)
    return named or ("test" if file.startswith(_HELD_OUT) else None)


def _answers(place: str, record: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the right answers in the form of HotpotQA, FlashRAG and Search-R1, SQuAD, or AgentGym's reward model."""
    found: Any = next((record[key] for key in ("answer", "answers", "golden_answers") if record.get(key)), None)
    if found is None and isinstance(model := record.get("reward_model"), dict):
        truth = model.get("ground_truth")
        found = truth.get("target") if isinstance(truth, dict) else truth
    if isinstance(found, dict):
        found = found.get("text")
    answers = [found] if isinstance(found, str) else [] if found is None else found
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise TaskDataError(f"{place}: the answer must be a text, or a list of them")
    if len(answers) > _MAX_ANSWERS or any(len(answer) > _MAX_ANSWER_CHARS for answer in answers):
        raise TaskDataError(f"{place}: more than {_MAX_ANSWERS} answers, or one of over {_MAX_ANSWER_CHARS} characters")
    return tuple(dict.fromkeys(stripped for answer in answers if (stripped := answer.strip())))


def _titles(place: str, facts: Any) -> tuple[str, ...]:
    """Return the titles of supporting facts, which are pairs of title and sentence, or two lists as on the hub."""
    titles = facts.get("title") if isinstance(facts, dict) else facts
    if titles is None:
        return ()
    if not isinstance(titles, list):
        raise TaskDataError(f"{place}: supporting_facts must be a list of [title, sentence]")
    firsts = [fact[0] if isinstance(fact, list) and fact else fact for fact in titles]
    if not all(isinstance(title, str) for title in firsts):
        raise TaskDataError(f"{place}: supporting_facts must be a list of [title, sentence]")
    return tuple(dict.fromkeys(_one_line(title) for title in firsts))


def _context(place: str, context: Any) -> Iterator[Passage]:
    if context is None:
        return
    if isinstance(context, dict):
        titles, texts = context.get("title"), context.get("sentences")
        if not isinstance(titles, list) or not isinstance(texts, list) or len(titles) != len(texts):
            raise TaskDataError(f"{place}: context must have as many titles as lists of sentences")
        context = [[title, sentences] for title, sentences in zip(titles, texts, strict=True)]
    if not isinstance(context, list):
        raise TaskDataError(f"{place}: context must be a list of [title, sentences]")
    for paragraph in context:
        match paragraph:
            case [str(title), list(sentences)] if all(isinstance(sentence, str) for sentence in sentences):
                yield _made(place, title, " ".join(sentence.strip() for sentence in sentences))
            case _:
                raise TaskDataError(f"{place}: context must be a list of [title, sentences]")


def _passage(place: str, record: Mapping[str, Any]) -> Passage:
    """Return a passage of title and text, or of Search-R1's `contents`, whose first line is the title in quotes."""
    if "contents" in record:
        title, _, text = _text(place, record, "contents", _MAX_PASSAGE_CHARS).partition("\n")
        title = title.strip()
        quoted = len(title) > 1 and title[0] == title[-1] == '"'
        return _made(place, title[1:-1] if quoted else title, text)
    if "text" not in record:
        raise TaskDataError(
            f"{place}: neither a question (with `question` and `answer`) nor a passage (with `title` and `text`, or "
            f"`contents`); it has {', '.join(map(str, sorted(record)))[:200] or 'no keys'}"
        )
    text = record["text"]
    if isinstance(text, list) and all(isinstance(part, str) for part in text):
        text = " ".join(part.strip() for part in text)
    title = _text(place, record, "title", _MAX_TITLE_CHARS) if record.get("title") is not None else ""
    return _made(place, title, _text(place, {"text": text}, "text", _MAX_PASSAGE_CHARS))


def _made(place: str, title: str, text: str) -> Passage:
    if not (title.strip() or text.strip()):
        raise TaskDataError(f"{place}: a passage is empty")
    if len(text) > _MAX_PASSAGE_CHARS or len(title) > _MAX_TITLE_CHARS:
        raise TaskDataError(f"{place}: a passage has more than {_MAX_PASSAGE_CHARS} characters, or its title too many")
    return Passage(_one_line(title), text.strip())


def _text(place: str, record: Mapping[str, Any], key: str, most_chars: int) -> str:
    value = record[key]
    if not isinstance(value, str):
        raise TaskDataError(f"{place}: {key} must be a text, got {type(value).__name__}")
    if len(value) > most_chars:
        raise TaskDataError(f"{place}: {key} has more than {most_chars} characters")
    return value


def _one_line(title: str) -> str:
    return " ".join(title.split())
