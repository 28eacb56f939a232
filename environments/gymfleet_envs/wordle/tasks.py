"""The sources of hidden words: sampled vocabularies, or LMRL-Gym's word lists."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gymfleet_contracts.session import Split

from gymfleet_envs.task_files import read_text
from gymfleet_envs.tasks import SPLITS, GeneratedTasks, Task, TaskDataError, UnknownTask
from gymfleet_envs.wordle.game import WORD_LENGTH
from gymfleet_envs.wordle.words import WORDS

UPSTREAM_LISTS: Final = (
    "tweet_words",
    "wordle_official_200",
    "wordle_official_400",
    "wordle_official_800",
    "wordle_official",
    "wordle_official_guess",
    "10k_words",
)
_FIXED: Final = "_fixed"
_LEVEL_SIZES: Final = {"words_20": 20, "words_100": 100, "words_400": 400}
_SHARED: Final = "shared_400"
_SHARED_WORDS: Final = tuple(sorted(random.Random(_SHARED).sample(WORDS, 400)))
_NUM_SEEDS: Final = 10_000
_SPLIT_OF_DIGIT: Final[dict[int, Split]] = {8: "validation", 9: "test"}
_MAX_FILE_BYTES: Final = 1024 * 1024
_MAX_LISTED_WORDS: Final = 500


@dataclass(frozen=True, slots=True)
class WordleTask:
    """A vocabulary and a hidden word, or a seed from which the word is redrawn after each guess."""

    vocabulary: tuple[str, ...]
    hidden: str | None = None
    redraw_seed: int | None = None

    @property
    def listed(self) -> bool:
        """Whether the first observation names all words."""
        return len(self.vocabulary) <= _MAX_LISTED_WORDS


def generated_tasks() -> GeneratedTasks[WordleTask]:
    """Return tasks whose levels differ in the size of the vocabulary.

    Each task samples its own vocabulary, except those of the last level: they share one, and differ in the hidden word.
    """
    return GeneratedTasks(
        "wordle",
        _generate,
        lambda task: f"{task.hidden} of {' '.join(task.vocabulary)}",
        levels=(*_LEVEL_SIZES, _SHARED),
    )


def _generate(rng: random.Random, level: str) -> WordleTask:
    vocabulary = _SHARED_WORDS if level == _SHARED else tuple(sorted(rng.sample(WORDS, _LEVEL_SIZES[level])))
    return WordleTask(vocabulary, hidden=rng.choice(vocabulary))


class WordListTasks:
    """LMRL-Gym's lists, two levels each.

    `<list>` is upstream's game: id `n` is upstream's seed, and the hidden word is
    drawn again from the words still possible before each guess. `<list>_fixed`
    keeps one word, and its splits hide different words. Seeds that end in 8 are
    for validation, those that end in 9 for testing. Ids are `<level>.<seed>`; a
    bare number is a seed of the default level.
    """

    name: Final = "lmrl-gym"

    def __init__(self, lists: dict[str, tuple[str, ...]]) -> None:
        self._lists = lists
        self.levels: Sequence[str] = tuple(level for name in lists for level in (name, name + _FIXED))
        self.default_level: str = self.levels[0]
        self._hidden = {name: _hidden_words(words) for name, words in lists.items()}

    def count(self, split: Split, level: str) -> int:
        """Return the number of seeds offered."""
        self._check(level)
        if split not in SPLITS:
            raise UnknownTask(f"wordle has no split {split!r}; it has {', '.join(SPLITS)}")
        return _NUM_SEEDS // 10 * (1 if split != "train" else 8)

    def by_index(self, split: Split, level: str, index: int) -> Task[WordleTask]:
        """Return a task of the split, counted in ascending order of the seeds."""
        count = self.count(split, level)
        if not 0 <= index < count:
            raise UnknownTask(f"wordle has {count} {split} tasks; index {index} is outside", count=count)
        digit = {"validation": 8, "test": 9}.get(split)
        seed = index // 8 * 10 + index % 8 if digit is None else index * 10 + digit
        return self._task(level, seed)

    def by_id(self, task_id: str) -> Task[WordleTask]:
        """Return a task by `<level>.<seed>`, or by the seed alone."""
        level, _, seed = task_id.rpartition(".")
        level = level or self.default_level
        if level not in self.levels or not (seed.isascii() and seed.isdigit() and len(seed) <= 9):
            raise UnknownTask(f"wordle has no task {task_id!r}; ids look like '{self.default_level}.0' or '0'")
        return self._task(level, int(seed))

    def _task(self, level: str, seed: int) -> Task[WordleTask]:
        split: Split = _SPLIT_OF_DIGIT.get(seed % 10, "train")
        name = level.removesuffix(_FIXED)
        words = self._lists[name]
        if level == name:
            data = WordleTask(words, redraw_seed=seed)
        else:
            data = WordleTask(words, hidden=random.Random(f"{name}/{seed}").choice(self._hidden[name][split]))
        task_id = str(seed) if level == self.default_level else f"{level}.{seed}"
        return Task(task_id=task_id, split=split, level=level, data=data)

    def _check(self, level: str) -> None:
        if level not in self.levels:
            raise UnknownTask(f"wordle has no level {level!r}; it has {', '.join(self.levels)}")


def word_list_tasks(data: Path) -> WordListTasks:
    """Read the lists of LMRL-Gym that are in `data`. Raises `TaskDataError`."""
    paths = [data / f"{name}.txt" for name in UPSTREAM_LISTS]
    lists = {path.stem: _read_words(path) for path in paths if path.is_file()}
    if not lists:
        raise TaskDataError(f"wordle: {data} holds none of {', '.join(path.name for path in paths)}")
    return WordListTasks(lists)


def _read_words(path: Path) -> tuple[str, ...]:
    """Read one word per line; as upstream, count only words of five letters."""
    lines = read_text("wordle", path, max_bytes=_MAX_FILE_BYTES, encoding="ascii").splitlines()
    words: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        word = line.strip()
        if word and not (word.isalpha() and word.islower()):
            raise TaskDataError(f"wordle: {path}: line {number}: {word[:40]!r} is not a word in lower case")
        if word in words:
            raise TaskDataError(f"wordle: {path}: line {number}: {word!r} stands already in line {words[word]}")
        if len(word) == WORD_LENGTH:
            words[word] = number
    if len(words) < 10:
        raise TaskDataError(f"wordle: {path}: {len(words)} words of five letters; at least 10 are needed")
    return tuple(words)


def _hidden_words(words: Sequence[str]) -> dict[Split, tuple[str, ...]]:
    """Deal the words to the splits: each may be hidden in one split only, and every split gets some."""
    order = sorted(words, key=lambda word: hashlib.sha256(word.encode()).digest())
    digits: dict[Split, range] = {"train": range(8), "validation": range(8, 9), "test": range(9, 10)}
    return {
        split: tuple(word for place, word in enumerate(order) if place % 10 in group) for split, group in digits.items()
    }
