"""SearchQA's published files: forms, ids, splits, imports, and damage that is named."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from gymfleet_env_server.catalogue import load_entry
from gymfleet_envs.searchqa import tasks as tasks_module
from gymfleet_envs.searchqa.environment import SearchQA
from gymfleet_envs.searchqa.options import SearchQAOptions
from gymfleet_envs.searchqa.store import open_store, write_store
from gymfleet_envs.searchqa.tasks import Questions, published_questions
from gymfleet_envs.tasks import TaskDataError, split_of
from pyarrow import parquet

from tests.fixtures.paths import SHARED_DATA

HOTPOT: dict[str, Any] = {
    "_id": "5a7a0",
    "question": "Where does the author of Q live?",
    "answer": "Paris",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": [["Q (novel)", 0], ["Ann", 1], ["Q (novel)", 1]],
    "context": [["Q (novel)", ["Q is by Ann.", " It is long."]], ["Ann", ["Ann writes.", " She lives in Paris."]]],
}
ON_THE_HUB: dict[str, Any] = {
    **{key: HOTPOT[key] for key in ("question", "answer", "type", "level")},
    "id": "5a7a0",
    "supporting_facts": {"title": ["Q (novel)", "Ann", "Q (novel)"], "sent_id": [0, 1, 1]},
    "context": {
        "title": ["Q (novel)", "Ann"],
        "sentences": [["Q is by Ann.", " It is long."], ["Ann writes.", " She lives in Paris."]],
    },
}
PASSAGE = {"id": "0", "contents": '"Ann"\nAnn lives in Paris.'}


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def questions(directory: Path, **options: Any) -> Questions:
    return published_questions(directory, SearchQAOptions(**options))


@pytest.mark.parametrize("form", ["published", "lines", "hub"])
def test_hotpotqas_forms_are_the_same_question(tmp_path: Path, form: str) -> None:
    if form == "published":
        (tmp_path / "hotpot_dev_distractor_v1.json").write_text(json.dumps([HOTPOT]))
    elif form == "lines":
        lines(tmp_path / "dev.jsonl", HOTPOT)
    else:
        parquet.write_table(pa.Table.from_pylist([ON_THE_HUB]), tmp_path / "validation-00000-of-00001.parquet")

    task = questions(tmp_path).by_id("5a7a0")

    assert (task.split, task.level, task.data.attempts) == ("validation", "hard", None)
    assert (task.data.question, task.data.answers) == (HOTPOT["question"], ("Paris",))
    assert task.data.support == ("Q (novel)", "Ann")
    passages = [tuple(task.data.corpus.passages[n]) for n in range(2)]
    assert passages == [("Q (novel)", "Q is by Ann. It is long."), ("Ann", "Ann writes. She lives in Paris.")]


@pytest.mark.parametrize(
    ("name", "row", "split"),
    [
        ("hotpot_train_v1.1.jsonl", {}, "train"),
        ("hotpot_dev_fullwiki_v1.jsonl", {}, "validation"),
        ("test.jsonl", {}, "test"),
        ("test.jsonl", {"split": "train"}, "train"),
        ("hotpot_distractor_easy.jsonl", {}, "test"),
        ("mine.jsonl", {}, split_of(HOTPOT["question"])),
        ("latest.jsonl", {}, split_of(HOTPOT["question"])),
    ],
)
def test_a_split_is_the_rows_or_the_files_or_by_hash(tmp_path: Path, name: str, row: Any, split: str) -> None:
    lines(tmp_path / name, {**HOTPOT, **row})

    assert questions(tmp_path).by_id("5a7a0").split == split


@pytest.mark.parametrize(
    "gold",
    [
        {"answer": "Paris"},
        {"answers": ["Paris", "City of Light"]},
        {"golden_answers": ["Paris", "City of Light"]},
        {"answers": {"text": ["Paris"], "answer_start": [0]}},
        {"reward_model": {"style": "rule", "ground_truth": {"target": ["Paris"]}}},
    ],
)
def test_a_users_corpus_has_questions_and_passages_of_any_published_form(tmp_path: Path, gold: dict[str, Any]) -> None:
    lines(tmp_path / "questions.jsonl", {"question": "Where is Ann?", **gold})
    lines(tmp_path / "corpus.jsonl", PASSAGE, {"title": "Bob", "text": "Bob is in Rome."}, {"text": ["He", "moved."]})

    task = questions(tmp_path).by_id("questions.0")

    assert task.data.answers[0] == "Paris"
    passages = [tuple(task.data.corpus.passages[n]) for n in range(3)]
    assert passages == [("Ann", "Ann lives in Paris."), ("Bob", "Bob is in Rome."), ("", "He moved.")]
    environment = SearchQA()
    environment.reset(task.data, 0)
    found = environment.step("<search>Ann Paris</search>").observation
    assert found == '<information>Doc 1(Title: "Ann") Ann lives in Paris.</information>'


def test_agentgyms_numbers_count_test_questions_and_then_training_questions(tmp_path: Path) -> None:
    for split, sources in (("train", ("nq", "hotpotqa")), ("test", ("nq", "triviaqa"))):
        rows = [
            {"id": f"{split}_0", "data_source": source, "question": f"{split} {source}?",
             "reward_model": {"ground_truth": {"target": ["x"]}}}
            for source in sources
        ]  # fmt: skip
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / f"{split}.parquet")
    lines(tmp_path / "wiki-18.jsonl", PASSAGE)

    source = questions(tmp_path)

    asked = [source.by_id(str(number)).data.question for number in range(4)]
    assert asked == ["test nq?", "test triviaqa?", "train nq?", "train hotpotqa?"]
    assert source.by_id("triviaqa/test_0").level == "triviaqa"
    assert set(source.levels) == {"nq", "triviaqa", "hotpotqa"}
    with pytest.raises(LookupError):
        source.by_id("4")


def test_what_cannot_be_played_is_left_out_with_the_reason(tmp_path: Path) -> None:
    lines(tmp_path / "a_dev.jsonl", HOTPOT, {**HOTPOT, "_id": "2", "answer": "</answer>"})
    lines(tmp_path / "b_simplified.jsonl", {"question": "Who?", "answer": "Ann"})
    lines(tmp_path / "c_test.jsonl", {"question": "Who?"}, {"question": "What?", "answer": None})
    lines(tmp_path / "d_dev.jsonl", {"id": 1, "claim": "Ann lives.", "label": "SUPPORTS"})

    source = questions(tmp_path)

    assert list(source._by_id) == ["5a7a0"]
    assert sorted(source.left_out) == [
        "a_dev: 1 with an answer that cannot be given between tags",
        "b_simplified: 1 with no passages: neither of their own nor in a file of passages beside them",
        "c_test: 2 with no answer, without which nothing can be scored",
        "d_dev.jsonl: claims (FEVER), which are no questions",
    ]


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"question": 7}, "dev.jsonl, line 2: question must be a text, got int"),
        ({"question": " "}, "dev.jsonl, line 2: the question is empty"),
        ({"answer": 7}, "line 2: the answer must be a text, or a list of them"),
        ({"answer": ["a", 7]}, "line 2: the answer must be a text, or a list of them"),
        ({"answer": "a" * 1001}, "line 2: more than 1000 answers, or one of over 1000 characters"),
        ({"context": [["Ann"]]}, r"line 2: context must be a list of \[title, sentences\]"),
        ({"context": [["Ann", "lives"]]}, r"line 2: context must be a list of \[title, sentences\]"),
        ({"context": {"title": ["a"], "sentences": []}}, "as many titles as lists of sentences"),
        ({"context": [[" ", [" "]]]}, "line 2: a passage is empty"),
        ({"supporting_facts": "Ann"}, "line 2: supporting_facts must be a list"),
        ({"level": "a b"}, "line 2: level must be of letters"),
        ({"split": "exam"}, "line 2: split must be train, validation or test, got 'exam'"),
        ({"_id": "5a7a0"}, r"line 2: the id '5a7a0' is that of .*line 1 too"),
        ({"_id": [1]}, "line 2: the id must be a text or a number"),
        ({"question": "Who \ud800?"}, "line 2: the question has half of a surrogate pair"),
        ({"answer": ["Ann", "\udfff"]}, "line 2: the question has half of a surrogate pair"),
        ({"_id": "\ud800"}, "line 2: the question has half of a surrogate pair"),
    ],
)
def test_a_damaged_question_is_named(tmp_path: Path, row: dict[str, Any], fault: str) -> None:
    lines(tmp_path / "dev.jsonl", HOTPOT, {**HOTPOT, "_id": "other", **row})

    with pytest.raises(TaskDataError, match=fault):
        questions(tmp_path)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", "holds no rows"),
        ("{", "line 1: no JSON"),
        ('{"title": "a"}', "line 1: neither a question .* nor a passage .*; it has title"),
        ('{"text": 7}', "line 1: text must be a text, got int"),
        ('{"contents": null}', "line 1: contents must be a text, got NoneType"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: str, fault: str) -> None:
    lines(tmp_path / "dev.jsonl", HOTPOT)
    (tmp_path / "corpus.jsonl").write_text(content)

    with pytest.raises(TaskDataError, match=fault):
        questions(tmp_path)


def test_a_directory_without_questions_says_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(TaskDataError, match=r"no \.json, \.jsonl or \.parquet file with questions"):
        questions(tmp_path)
    lines(tmp_path / "test.jsonl", {"question": "Who?"})
    with pytest.raises(TaskDataError, match="test: 1 with no answer"):
        questions(tmp_path)


def stored(directory: Path) -> Path:
    source, target = directory / "source", directory / "target"
    source.mkdir()
    target.mkdir()
    lines(source / "dev.jsonl", HOTPOT, {**HOTPOT, "_id": "é", "question": "Ünd?"})
    write_store(source, target, SearchQAOptions())
    return target


def test_an_import_plays_as_the_files_do(tmp_path: Path) -> None:
    target = stored(tmp_path)
    again = tmp_path / "again"
    again.mkdir()
    write_store(target, again, SearchQAOptions())

    for directory in (target, again):
        source = questions(directory)
        task, other = source.by_id("5a7a0"), questions(tmp_path / "source").by_id("5a7a0")
        assert (task.split, task.level, task.data.question, task.data.answers, task.data.support) == (
            other.split, other.level, other.data.question, other.data.answers, other.data.support
        )  # fmt: skip
        assert len(task.data.corpus.passages) == 2, "each passage once"
        for query in ("lives Paris", "Q", "nothing"):
            found, expected = (one.data.corpus.search(query, 3) for one in (task, other))
            assert found == expected
            assert [task.data.corpus.passages[n] for n in found] == [other.data.corpus.passages[n] for n in expected]


@pytest.mark.parametrize(
    "name",
    ["searchqa.json", "questions.msgpack", "texts.bin", "places.npy", "terms.sqlite", "offsets.npy", "impacts.npy"],
)
@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_damaged_import_is_told(tmp_path: Path, name: str, damage: str) -> None:
    target = stored(tmp_path)
    path = target / name
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] if name != "terms.sqlite" else b"SQLite")

    with pytest.raises(TaskDataError, match="is damaged"):
        open_store(target, SearchQAOptions())


def test_an_index_of_other_terms_is_not_searched(tmp_path: Path) -> None:
    target = stored(tmp_path)
    manifest = json.loads((target / "searchqa.json").read_text())
    (target / "searchqa.json").write_text(json.dumps({**manifest, "format": 1}))

    with pytest.raises(TaskDataError, match="of another format: import the files again"):
        open_store(target, SearchQAOptions())


def test_too_many_passages_have_to_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines(tmp_path / "dev.jsonl", HOTPOT)
    monkeypatch.setattr(tasks_module, "MAX_IN_MEMORY", 1)

    with pytest.raises(TaskDataError, match="more than 1 passages: run `gymfleet data import searchqa`"):
        questions(tmp_path)


@pytest.mark.skipif(not (SHARED_DATA / "searchqa").is_dir(), reason="needs the published files")
def test_the_published_questions_are_answered_by_their_gold_and_by_nothing_else() -> None:
    entry = load_entry("searchqa", {"searchqa": SHARED_DATA / "searchqa"}, {"searchqa": {"attempts": 1}})
    tasks = [entry.tasks.by_index("test", level, index) for level in ("easy", "medium", "hard") for index in range(100)]
    assert tuple(entry.tasks.levels) == ("easy", "medium", "hard")
    assert len(tasks[0].data.corpus.passages) == 2958

    def score(task: Any, answer: str) -> float:
        environment = entry.make()
        environment.reset(task.data, 0)
        return environment.step(f"<answer>{answer}</answer>").score

    golds = [task.data.answers[0] for task in tasks]
    assert [score(task, gold) for task, gold in zip(tasks, golds, strict=True)] == [1.0] * 300
    others = golds[1:] + golds[:1]
    pairs = zip(tasks, golds, others, strict=True)
    assert not any(score(task, other) for task, gold, other in pairs if gold.lower() != other.lower())
    assert not any(score(task, task.data.question) for task in tasks)
    # A supporting passage is among the first five of a search for the question: 292 of 300 with Lucene's arithmetic.
    found = [
        {task.data.corpus.passages[n].title for n in task.data.corpus.search(task.data.question, 5)} for task in tasks
    ]
    assert sum(bool(titles & set(task.data.support)) for task, titles in zip(tasks, found, strict=True)) == 292
