import re
from pathlib import Path
from typing import Any

import pytest
from gymfleet_envs.tasks import TaskDataError, UnknownTask
from gymfleet_envs.wordle.environment import ENVIRONMENT, Wordle
from gymfleet_envs.wordle.game import consistent, feedback, parse_guess
from gymfleet_envs.wordle.tasks import UPSTREAM_LISTS, WordleTask
from gymfleet_envs.wordle.words import WORDS

from tests.fixtures.hash_seeds import outputs_by_hash_seed
from tests.fixtures.paths import SHARED_DATA

DATA = SHARED_DATA
TASK = WordleTask(("apple", "crane", "frown", "lemon", "panic", "shire"), hidden="frown")


def opened(task: WordleTask = TASK) -> Wordle:
    environment = ENVIRONMENT()
    environment.reset(task, 0)
    return environment


def solve(environment: Wordle) -> float:
    while (move := environment.expert()) is not None:
        outcome = environment.step(move.action)
        assert outcome.action_valid
        if outcome.terminated:
            return outcome.score
    return 0.0


@pytest.mark.parametrize(
    ("guess", "hidden", "shown"),
    [
        pytest.param("panic", "frown", "bbybb", id="one letter elsewhere"),
        pytest.param("felon", "frown", "gbbyg", id="in place and elsewhere"),
        pytest.param("frown", "frown", "ggggg", id="the word"),
        pytest.param("geese", "delta", "bgyby", id="a repeated letter is yellow each time, as recorded"),
        pytest.param("apple", "paper", "yygby", id="repeated in both"),
    ],
)
def test_feedback(guess: str, hidden: str, shown: str) -> None:
    assert feedback(guess, hidden) == shown


def test_only_words_with_the_same_feedback_stay_possible() -> None:
    assert consistent(("frown", "lemon", "panic"), "crane", "bgbgb") == ()
    assert consistent(("frown", "lemon", "panic"), "lemon", "bbbyg") == ("frown",)


@pytest.mark.parametrize(
    ("action", "guess"),
    [("s h i r e", "shire"), ("shire", "shire"), (" S H I R E\n", "shire"), ('"s h i r e"', "shire"),
     ("s h i r", None), ("s h i r e s", None), ("s  h i r e", None), ("", None), ("1 2 3 4 5", None),
     ("s h i r é", None), ("x" * 256, None)],
)  # fmt: skip
def test_guesses_are_read_strictly(action: str, guess: str | None) -> None:
    assert parse_guess(action) == guess


def test_an_episode_by_hand() -> None:
    environment = ENVIRONMENT()

    assert environment.reset(TASK, 0) == ("Let's start Wordle!\nVocabulary: apple, crane, frown, lemon, panic, shire")
    miss = environment.step("p a n i c")
    assert (miss.observation, miss.reward, miss.terminated, miss.action_valid) == ("b b y b b", 0.0, False, True)
    assert miss.info == {"guesses_left": 5}
    invalid = environment.step("f e l o n")
    assert (invalid.observation, invalid.reward, invalid.action_valid) == ("invalid word", 0.0, False)
    win = environment.step("f r o w n")
    assert (win.observation, win.reward, win.terminated, win.score) == ("g g g g g", 1.0, True, 1.0)
    assert win.info == {"guesses_left": 3}
    assert environment.expert() is None


def test_the_sixth_miss_ends_the_episode_and_invalid_words_count() -> None:
    environment = opened()
    ends = [environment.step(action).terminated for action in ("c r a n e", "", "rm -rf", "x", "lemon")]
    last = environment.step("p a n i c")

    assert ends == [False] * 5
    assert (last.terminated, last.reward, last.score) == (True, 0.0, 0.0)
    assert environment.expert() is None


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize(("level", "size"), [("words_20", 20), ("words_100", 100), ("words_400", 400)])
def test_the_expert_solves_generated_tasks(level: str, size: int, split: Any) -> None:
    tasks = Wordle.task_source(None)
    scores = []
    for index in range(30):
        task = tasks.by_index(split, level, index).data
        assert len(task.vocabulary) == size
        assert task.hidden in task.vocabulary
        scores.append(solve(opened(task)))
    assert sum(scores) >= 29


def test_the_tasks_of_the_shared_level_have_one_vocabulary_and_their_splits_hide_different_words() -> None:
    tasks = Wordle.task_source(None)
    drawn = {
        split: [tasks.by_index(split, "shared_400", index).data for index in range(60)]
        for split in ("train", "validation", "test")
    }

    (vocabulary,) = {task.vocabulary for tasks in drawn.values() for task in tasks}
    hidden = {split: {task.hidden for task in tasks} for split, tasks in drawn.items()}

    assert len(vocabulary) == 400
    assert min(len(words) for words in hidden.values()) >= 10
    assert sum(map(len, hidden.values())) == len(set.union(*hidden.values())), "no word is hidden in two splits"
    assert sum(solve(opened(task)) for task in drawn["test"][:20]) >= 19


def test_the_words_are_words() -> None:
    assert len(WORDS) == len(set(WORDS)) >= 600
    assert all(len(word) == 5 and word.isalpha() and word.islower() and word.isascii() for word in WORDS)


def test_redrawing_keeps_to_what_was_said_and_follows_the_seed() -> None:
    guesses = ("c r a n e", "l e m o n", "p a n i c", "a p p l e", "s h i r e")
    task = WordleTask(TASK.vocabulary, redraw_seed=3)
    environment, again = opened(task), opened(task)
    possible = task.vocabulary
    for guess in guesses:
        outcome = environment.step(guess)
        assert outcome == again.step(guess)
        possible = consistent(possible, guess.replace(" ", ""), outcome.observation.replace(" ", ""))
        assert possible
        if outcome.terminated:
            break
    firsts = {opened(WordleTask(TASK.vocabulary, redraw_seed=seed)).step("c r a n e").observation for seed in range(30)}
    assert len(firsts) > 2


@pytest.mark.parametrize("task", [TASK, WordleTask(TASK.vocabulary, redraw_seed=1)])
def test_a_snapshot_is_independent(task: WordleTask) -> None:
    environment = opened(task)
    environment.step("c r a n e")
    twin = environment.snapshot()
    first = environment.step("l e m o n")

    assert twin.step("l e m o n") == first
    environment.step("panic")
    assert twin.step("x").info == {"guesses_left": 3}


def test_tasks_do_not_depend_on_the_process() -> None:
    script = (
        "from gymfleet_envs.wordle.environment import Wordle as T\n"
        "s = T.task_source(None)\n"
        "print([(s.by_index('test', level, i), ) for level in s.levels for i in range(5)])"
    )
    assert len(outputs_by_hash_seed(script)) == 1


def write_list(folder: Path, text: str | bytes, name: str = "tweet_words") -> Path:
    (folder / f"{name}.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def test_upstream_lists_become_levels(tmp_path: Path) -> None:
    words = WORDS[:40]
    write_list(tmp_path, "\n".join(["of", *words, "longer"]))
    write_list(tmp_path, "not a list", name="SOURCE")

    tasks = Wordle.task_source(tmp_path)

    assert list(tasks.levels) == ["tweet_words", "tweet_words_fixed"]
    assert tasks.by_id("17").data == WordleTask(words, redraw_seed=17)
    assert tasks.by_index("test", "tweet_words", 2).task_id == "29"
    assert tasks.by_index("train", "tweet_words", 9).task_id == "11"
    hidden: dict[str, set[str | None]] = {}
    for seed in range(300):
        task = tasks.by_id(f"tweet_words_fixed.{seed}")
        hidden.setdefault(task.split, set()).add(task.data.hidden)
    assert {split: len(words) for split, words in hidden.items()} == {"train": 32, "validation": 4, "test": 4}
    assert len(set.union(*hidden.values())) == 40, "no word is hidden in two splits"


def test_places_and_ids_agree(tmp_path: Path) -> None:
    tasks = Wordle.task_source(write_list(tmp_path, "\n".join(WORDS[:40])))
    for level in tasks.levels:
        for split in ("train", "validation", "test"):
            for index in (0, 7, 8, tasks.count(split, level) - 1):
                task = tasks.by_index(split, level, index)
                assert tasks.by_id(task.task_id) == task
                assert task.split == split
    for bad in ("", "x", "-1", "words.3", "tweet_words.", "1" * 40):
        with pytest.raises(UnknownTask):
            tasks.by_id(bad)
    with pytest.raises(UnknownTask):
        tasks.by_index("test", "tweet_words", 1000)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("\n".join([*WORDS[:12], "two words"]), "line 13: 'two words' is not a word in lower case"),
        ("\n".join([*WORDS[:12], WORDS[3]]), "line 13: 'acute' stands already in line 4"),
        ("\n".join(WORDS[:9]), "9 words of five letters"),
        (b"\xff\xfe", "byte 0 is not ASCII"),
        ("a" * 1_100_000, "larger than 1048576 bytes"),
    ],
)
def test_damaged_lists_are_named_with_their_fault(tmp_path: Path, text: str | bytes, fault: str) -> None:
    with pytest.raises(TaskDataError, match=f"tweet_words.txt: {fault}"):
        Wordle.task_source(write_list(tmp_path, text))


def test_a_directory_without_lists_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskDataError, match=r"holds none of tweet_words\.txt"):
        Wordle.task_source(tmp_path)


@pytest.mark.parametrize("data", [path for path in [DATA / "wordle"] if path.is_dir()], ids=["upstream"])
def test_the_expert_solves_upstream_lists(data: Path) -> None:
    tasks = Wordle.task_source(data)
    assert len(tasks.levels) == 2 * len(UPSTREAM_LISTS)
    for level in ("tweet_words", "wordle_official_400_fixed"):
        assert sum(solve(opened(tasks.by_index("test", level, index).data)) for index in range(20)) >= 19


@pytest.mark.parametrize(
    "folder", [path for path in [DATA / "trajectories" / "wordle"] if path.is_dir()], ids=["recorded"]
)
def test_recorded_feedback_follows_our_rule(folder: Path) -> None:
    from pyarrow import parquet  # noqa: PLC0415 - for recorded data alone

    for file in sorted(folder.glob("*.parquet")):
        for row in parquet.read_table(file, columns=["conversations"]).to_pylist():
            turns = row["conversations"]
            words: Any = re.search(r"```\n(.*?)\n```", turns[2]["value"], re.DOTALL)
            possible = tuple(words[1].split())
            for reply, answer in zip(turns[3::2], turns[4::2], strict=False):
                guess = parse_guess(reply["value"].rpartition("Action:")[2])
                shown = answer["value"].strip().replace(" ", "")
                if guess is not None and re.fullmatch("[byg]{5}", shown):
                    possible = consistent(possible, guess, shown)
            assert possible, "each recorded game has a word that gives all of its feedback"
