"""The dataset environment: rows of files, their splits, what agents see of them, and what is refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymfleet_env_server.catalogue import Entry, EnvironmentUnavailable, load_entry
from gymfleet_env_server.importing import import_benchmark
from gymfleet_envs.dataset.environment import Dataset
from gymfleet_envs.dataset.options import DatasetOptions
from gymfleet_envs.dataset.row import Row
from gymfleet_envs.dataset.tool import RowTool, call_of
from gymfleet_envs.environment import BadArguments, Outcome
from gymfleet_envs.tasks import SPLITS

from tests.fixtures.paths import SHARED_DATA

TRAJECTORIES = SHARED_DATA / "trajectories"


class Shout(RowTool):
    """A tool of somebody's own."""

    name = "shout"
    description = "Say it louder."
    argument = "word"

    def call(self, argument: str) -> str:
        return argument.upper()


def row(number: int, **changes: Any) -> dict[str, Any]:
    """A row as verl has it."""
    return {
        "data_source": "arithmetic",
        "prompt": [{"role": "user", "content": f"What is {number} + {number}?"}],
        "reward_model": {"style": "rule", "ground_truth": str(2 * number)},
        "extra_info": {"index": number},
    } | changes


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


@pytest.fixture(autouse=True)
def _defaults_again() -> Iterator[None]:
    """Options are the class's: give back what the other tests expect."""
    yield
    Dataset.options, Dataset.tools = DatasetOptions(), ()


def loaded(path: Path | None = None, **options: Any) -> Entry:
    return load_entry("dataset", {}, {"dataset": {**({"path": str(path)} if path else {}), **options}})


def opened(entry: Entry, index: int = 0, split: Any = "train") -> tuple[Dataset, str]:
    environment = entry.make()
    assert isinstance(environment, Dataset)
    return environment, environment.reset(entry.tasks.by_index(split, entry.tasks.default_level, index).data, 0)


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(EnvironmentUnavailable) as refused:
        loaded(path, **options)
    message = str(refused.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", ["train.jsonl", "train.json", "train.parquet"])
def test_rows_of_a_file_are_played_and_scored(tmp_path: Path, name: str) -> None:
    entry = loaded(written(tmp_path / name, [row(n) for n in range(3)]), validation_share=0, test_share=0)

    environment, seen = opened(entry, 2)
    assert seen == "What is 2 + 2?"
    assert environment.step("The sum is 4.") == Outcome("The answer is taken.", reward=1.0, score=1.0, terminated=True)
    environment, _ = opened(entry, 2)
    assert environment.step("5") == Outcome("The answer is taken.", terminated=True)
    environment, _ = opened(entry, 2)
    assert environment.step("<think>4") == Outcome("The reply holds no answer.", terminated=True, action_valid=False)
    assert environment.step("4").score == 0.0, "the first reply is the answer"
    assert [entry.tasks.count(split, "rows") for split in SPLITS] == [3, 0, 0]
    assert entry.tasks.by_index("train", "rows", 2).task_id == "train.2"
    assert (entry.spec.max_turns, entry.spec.instructions, entry.spec.capabilities.expert) == (
        1,
        "Solve the task.",
        False,
    )


def test_what_is_told_of_a_row_and_to_whom(tmp_path: Path) -> None:
    secret = row(0, reward_model={"style": "rule", "ground_truth": "1234567"}, prompt="How many?")
    entry = loaded(written(tmp_path / "train.jsonl", [secret]), validation_share=0, test_share=0)

    environment, seen = opened(entry)

    assert environment.start_private == {
        "ground_truth": "1234567", "data_source": "arithmetic", "style": "rule", "extra_info": {"index": 0},
    }  # fmt: skip
    wrong = environment.snapshot().step("7")
    told = (seen, environment.start_info, wrong, entry.spec, entry.tasks.by_index("train", "rows", 0))
    assert "1234567" not in repr(told)
    assert environment.expert() is None
    assert environment.step("1234567").score == 1.0, "the copy's answer was not this one's"


@pytest.mark.parametrize(
    ("messages", "seen"),
    [
        ("How many?", "How many?"),
        ([("user", "How many?")], "How many?"),
        ([("system", "Be brief."), ("user", "How many?")], "Be brief.\n\nHow many?"),
        (
            [("system", "Be brief."), ("user", "Hi."), ("assistant", "Yes?"), ("user", "How many?")],
            "System: Be brief.\n\nUser: Hi.\n\nAssistant: Yes?\n\nUser: How many?",
        ),
    ],
)
def test_a_prompt_of_several_messages_keeps_its_roles(tmp_path: Path, messages: Any, seen: str) -> None:
    listed = messages if isinstance(messages, str) else [{"role": role, "content": text} for role, text in messages]
    entry = loaded(written(tmp_path / "train.jsonl", [row(0, prompt=listed)]), validation_share=0, test_share=0)

    environment, shown = opened(entry)

    assert shown == seen
    assert environment.start_info == ({"messages": listed} if len(listed) > 1 and listed != messages else {})


def test_files_of_a_directory_are_its_splits(tmp_path: Path) -> None:
    written(tmp_path / "data" / "train-00000-of-00002.parquet", [row(n) for n in range(100)])
    written(tmp_path / "data" / "train-00001-of-00002.parquet", [row(n) for n in range(100, 200)])
    written(tmp_path / "test.jsonl", [row(n) for n in range(200, 205)])
    (tmp_path / "README.md").write_text("not a row")

    entry = loaded(tmp_path)

    tasks = entry.tasks
    counts = {split: tasks.count(split, "rows") for split in SPLITS}
    assert counts["test"] == 5
    assert counts["train"] + counts["validation"] == 200
    assert 3 <= counts["validation"] <= 20, "5 % of the train rows, by their hash"
    assert tasks.by_id("train-00001-of-00002.99").data.prompt == "What is 199 + 199?"
    again = loaded(tmp_path).tasks
    assert [again.by_index("validation", "rows", n) for n in range(counts["validation"])] == [
        tasks.by_index("validation", "rows", n) for n in range(counts["validation"])
    ]
    assert loaded(tmp_path, validation_share=0.5).tasks.count("validation", "rows") > 70
    assert loaded(tmp_path, validation_share=0).tasks.count("validation", "rows") == 0


def test_files_whose_names_mean_no_split_are_for_training_if_there_are_no_others(tmp_path: Path) -> None:
    written(tmp_path / "data" / "sums-17k.parquet", [row(n) for n in range(10)])
    (tmp_path / "dataset_infos.json").write_text('{"default": {}}')

    alone = loaded(tmp_path, validation_share=0, test_share=0).tasks
    written(tmp_path / "data" / "train.jsonl", [row(n) for n in range(10, 13)])
    beside = loaded(tmp_path, validation_share=0, test_share=0).tasks

    assert (alone.count("train", "rows"), beside.count("train", "rows")) == (10, 3)
    assert alone.by_id("sums-17k.9").data.prompt == "What is 9 + 9?"


def test_only_a_train_set_is_split_in_three_and_equal_prompts_stay_together(tmp_path: Path) -> None:
    entry = loaded(written(tmp_path / "rows.jsonl", [row(n % 150) for n in range(300)]), test_share=0.2)

    prompts = {
        split: {entry.tasks.by_index(split, "rows", n).data.prompt for n in range(entry.tasks.count(split, "rows"))}
        for split in SPLITS
    }
    assert all(prompts.values())
    assert sum(map(len, prompts.values())) == 150, "no prompt is in two splits"
    assert sum(entry.tasks.count(split, "rows") for split in SPLITS) == 300


def test_a_row_of_two_splits_is_refused_with_both_places(tmp_path: Path) -> None:
    written(tmp_path / "train.jsonl", [row(n) for n in range(5)])
    written(tmp_path / "test.parquet", [row(7), row(3, prompt=[{"role": "user", "content": "What is  3 + 3?\n"}])])

    message = refusal(tmp_path, validation_share=0)

    assert (
        f"{tmp_path / 'test.parquet'}, row 2: the same prompt stands in {tmp_path / 'train.jsonl'}, line 4" in message
    )
    assert "a test row is in train" in message


BAD = [
    pytest.param({"reward_model": {"style": "rule"}}, "ground_truth is missing; the row has data_so", id="no gold"),
    pytest.param({"prompt": None}, "line 2: prompt is missing", id="no prompt"),
    pytest.param({"prompt": []}, "prompt is neither a text nor a list of messages", id="empty prompt"),
    pytest.param({"prompt": 7}, "prompt is neither a text nor a list of messages", id="prompt of another type"),
    pytest.param({"prompt": ["Hi"]}, "prompt.0.role is 'None'; known: system, user", id="no message"),
    pytest.param({"prompt": [{"role": "boss", "content": "x"}]}, "prompt.0.role is 'boss'; known: system", id="role"),
    pytest.param({"prompt": [{"role": ["user"], "content": "x"}]}, "prompt.0.role is", id="role of another type"),
    pytest.param({"prompt": [{"role": "user", "content": ["x"]}]}, "prompt.0.content is no text", id="content"),
    pytest.param(
        {"prompt": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
        "prompt ends with the assistant's message; there is nothing to answer",
        id="already answered",
    ),
    pytest.param({"prompt": "x" * 10_000_000}, "prompt has 10000000 characters; max_prompt_chars is 32768", id="10 MB"),
    pytest.param({"data_source": "mars"}, "data_source 'mars' has no scorer; known: arithmetic, c", id="source"),
    pytest.param({"data_source": None}, "there is no data_source; known: arithmetic", id="no source"),
    pytest.param({"data_source": 7}, "data_source is int, no text", id="source of another type"),
    pytest.param(
        {"reward_model": {"ground_truth": "SECRET"}},
        "reward_model.ground_truth does not suit numeric_match: it is no number",
        id="gold that is none",
    ),
    pytest.param({"prompt": "a\ud800"}, "prompt.0.content has half of a surrogate pair", id="surrogate"),
    pytest.param(
        {"reward_model": {"ground_truth": "1", "scorer": "os:system"}},
        "unknown scorer 'os:system'; a row may name countdown, exact_match",
        id="code as a scorer",
    ),
    pytest.param({"images": ["a.png"]}, "the row has images; only texts can be played", id="images"),
    pytest.param({"extra_info": "x" * 70_000}, "right answer and extra_info have 70", id="much besides"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_a_bad_row_is_refused_by_file_and_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = written(tmp_path / "train.jsonl", [row(0), row(1, **changes)])

    told = refusal(path)

    assert told.startswith(f"environment dataset: {path}, line 2: ")
    assert message in told
    assert "SECRET" not in told
    assert len(told) < 700


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.jsonl", b'{"prompt": "a"}\n{"prompt": "b', "train.jsonl, line 1: there is no data_source"),
        ("train.jsonl", json.dumps(row(0)).encode() + b'\n{"prompt": "b', "line 2: no JSON: .*; the file ends in i"),
        ("train.jsonl", json.dumps(row(0)).encode() + b'\n"a"\n', "line 2: a row is an object, in {}"),
        ("train.jsonl", '{"prompt": "Über"}\n'.encode("latin-1"), "line 1: byte 13 is no UTF-8; save it as UTF-8"),
        ("train.jsonl", json.dumps(row(0)).encode("utf-16"), "line 1: byte 1 is no UTF-8"),
        ("train.jsonl", b"[" * 100_000 + b"\n", "line 1: nested too deeply"),
        ("train.jsonl", b"\n", "the files hold no row"),
        ("train.json", b'{"prompt": "a"}', "a .json file holds a list of rows"),
        ("train.jsonl", b'{"prompt": "a", "prompt": "b"}\n', "line 1: no JSON: an object has the key 'prompt' twice"),
        ("train.jsonl", b'{"prompt": "a", "reward_model": {"ground_truth": NaN}}\n', "NaN is no number of JSON"),
        ("train.json", b'[{"prompt": "a"}', "no JSON: .*; the file ends in its middle"),
        ("train.parquet", b"PAR1 and no more", "train.parquet: no parquet, or damaged: "),
        ("train.csv", b"prompt,answer\n", "rows are .parquet, .jsonl, .json"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(EnvironmentUnavailable, match=message):
        loaded(path)
    assert str(path) in refusal(path)


@pytest.mark.parametrize(
    ("column", "fault"),
    [
        (pa.array([b"\xff"]).view(pa.string()), "can't decode byte 0xff"),
        (pa.array([2**62], pa.timestamp("us")), "date value out of range"),
    ],
    ids=["no UTF-8", "a day beyond the calendar"],
)
def test_a_parquet_file_with_values_that_python_lacks_is_refused(tmp_path: Path, column: pa.Array, fault: str) -> None:
    path = tmp_path / "train.parquet"
    pq.write_table(pa.table({"prompt": ["2 + 2"], "odd": column}), path)

    assert f"{path}: no parquet, or damaged: " in refusal(path)
    assert fault in refusal(path)


def test_a_parquet_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "train.parquet", [row(n) for n in range(5000)])
    path.write_bytes(path.read_bytes()[:-3000])

    assert f"{path}: no parquet, or damaged" in refusal(path)


def test_a_directory_without_rows_and_two_files_of_one_name(tmp_path: Path) -> None:
    assert f"{tmp_path} holds no rows: no .parquet, .jsonl, .json for train, validation" in refusal(tmp_path)
    assert "there is no such file or directory" in refusal(tmp_path / "nowhere")
    written(tmp_path / "train.jsonl", [row(0)])
    written(tmp_path / "data" / "train.parquet", [row(1)])
    assert "has the same name; keep one of them" in refusal(tmp_path)


def test_a_byte_order_mark_is_no_part_of_a_row(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(row(0)).encode() + b"\r\n")

    assert opened(loaded(path, validation_share=0, test_share=0))[1] == "What is 0 + 0?"


def test_keys_may_have_other_names_and_every_row_one_data_source(tmp_path: Path) -> None:
    rows = [{"question": "How many?", "final": {"answer": 7}, "worked": "It is <answer>7</answer>."}]
    path = written(tmp_path / "train.jsonl", rows)
    names = {"prompt_key": "question", "ground_truth_key": "final.answer", "solution_key": "worked"}

    entry = loaded(path, **names, data_source="arithmetic", validation_share=0, test_share=0, instructions="Think.")

    environment, seen = opened(entry)
    assert (seen, entry.spec.instructions, entry.spec.capabilities.expert) == ("How many?", "Think.", True)
    move = environment.expert()
    assert move is not None
    assert environment.step(move.action).score == 1.0
    assert environment.expert() is None


def test_scorers_are_chosen_by_data_source(tmp_path: Path) -> None:
    rows = [
        row(1, data_source="capitals", reward_model={"ground_truth": ["Rome", "Roma"]}),
        row(2, data_source="openai/gsm8k"),
        row(2, prompt="Another two?", data_source="math_dapo"),
        row(3, data_source="mine/letters", reward_model={"ground_truth": "B"}),
        row(4, data_source="lighteval/MATH", reward_model={"ground_truth": "\\frac{1}{2}"}),
    ]
    path = written(tmp_path / "train.jsonl", rows)
    scorers = {"capitals": {"use": "exact_match", "answer": "tag"}, "mine/letters": "multiple_choice"}

    entry = loaded(path, scorers=scorers, validation_share=0, test_share=0)

    replies = [
        ["Roma", "<answer>roma</answer>"], ["4", "2 + 2 = 4\n#### 4"], ["4", "So\nAnswer: $4$"], ["A", "(B)"],
        ["0.5", "It is $\\boxed{\\dfrac12}$."],
    ]  # fmt: skip
    worth = [[opened(entry, n)[0].step(reply).score for reply in both] for n, both in enumerate(replies)]
    assert worth == [[0.0, 1.0]] * 5


def test_of_a_right_answer_that_is_a_whole_solution_the_marked_part_counts(tmp_path: Path) -> None:
    solution = "She sold 48/2 = <<48/2=24>>24 clips in May.\nAltogether 48+24 = <<48+24=72>>72.\n#### 72"
    rows = [
        {"question": "How many clips?", "answer": solution, "source": "openai/gsm8k"},
        {"question": "How much is it?", "answer": "So \\boxed{0.50} is it.", "source": "halves"},
    ]
    path = written(tmp_path / "train.jsonl", rows)
    keys = {"prompt_key": "question", "ground_truth_key": "answer", "solution_key": "answer"}
    scorers = {"halves": {"use": "numeric_match", "answer": "boxed"}}

    entry = loaded(path, **keys, data_source_key="source", scorers=scorers, validation_share=0, test_share=0)

    for number, right, wrong in [(0, "#### 72", "#### 48"), (1, "\\boxed{0.5}", "0.5")]:
        assert [opened(entry, number)[0].step(reply).score for reply in (right, wrong)] == [1.0, 0.0]
        environment, _ = opened(entry, number)
        move = environment.expert()
        assert move is not None
        assert environment.step(move.action).score == 1.0
    tasks = [entry.tasks.by_index("train", "rows", number).data for number in range(2)]
    assert [task.private["ground_truth"] for task in tasks] == ["72", "0.50"], "as a component compares it"


def test_a_row_may_name_its_scorer(tmp_path: Path) -> None:
    rows = [
        row(1, data_source=None, reward_model={"ground_truth": "Rome", "scorer": "exact_match"}),
        row(2, reward_model={"ground_truth": "B", "scorer": "multiple_choice"}),
        row(3, scoring="f1", reward_model={"ground_truth": "red wine"}),
    ]
    path = written(tmp_path / "train.jsonl", rows[:2])

    entry = loaded(path, validation_share=0, test_share=0)
    other = loaded(written(tmp_path / "other.jsonl", rows[2:]), scorer_key="scoring", validation_share=0, test_share=0)

    assert [opened(entry, n)[0].step(reply).score for n, reply in enumerate(["rome.", "(b)"])] == [1.0, 1.0]
    assert opened(other)[0].step("white wine").score == 0.5


def test_a_misspelt_scorer_or_tool_is_refused_though_no_row_needs_it(tmp_path: Path) -> None:
    path = written(tmp_path / "train.jsonl", [row(0)])

    assert "scorers.mars: unknown scorer 'exactmatch'; known: countdown" in refusal(
        path, scorers={"mars": "exactmatch"}
    )
    assert "tools: unknown tool 'abacus'; known: calculator" in refusal(path, tools=["abacus"], max_turns=2)
    assert "set max_turns to 2 or more" in refusal(path, tools=["calculator"])
    assert "max_turns is 1" in refusal(path, max_turns=3)
    assert "give path or hub, not both" in refusal(path, hub="a/b")
    assert "give hub, too" in refusal(path, hub_folder="main")
    with pytest.raises(ValueError, match=r"\.\. does not"):
        DatasetOptions(hub="a/b", hub_folder="../..")


def test_a_tool_is_called_before_the_answer(tmp_path: Path) -> None:
    path = written(tmp_path / "train.jsonl", [row(21)])
    shout = f"{__name__}:Shout"
    entry = loaded(path, tools=["calculator", shout], max_turns=3, validation_share=0, test_share=0)

    environment, seen = opened(entry)
    steps = [
        environment.step("<think>calculator[1]</think>I compute.\ncalculator[21 + 21]"),
        environment.step("shout[it is]"),
    ]

    assert seen == (
        "What is 21 + 21?\n\nBefore you answer you may call a tool, up to 2 times, by a last line such as:\n"
        "calculator[expression]: Evaluate numbers, + - * / ^ and parentheses.\nshout[word]: Say it louder."
    )
    assert steps == [Outcome("42"), Outcome("IT IS")]
    assert environment.snapshot().step("calculator[1/0]") == Outcome("calculator: division by zero", action_valid=False)
    assert environment.step("42").score == 1.0
    assert (entry.spec.max_turns, environment.turn_limit) == (3, 3)
    assert [tool.name for tool in entry.spec.tools] == ["calculator", "shout"]
    assert environment.action_of("calculator", {"expression": "1 + 1"}) == "calculator[1 + 1]"
    with pytest.raises(BadArguments, match="one line"):
        environment.action_of("shout", {"word": "a\nb"})


def test_without_tools_a_call_is_an_answer(tmp_path: Path) -> None:
    environment, _ = opened(loaded(written(tmp_path / "train.jsonl", [row(0)]), validation_share=0, test_share=0))

    assert environment.step("calculator[0]").terminated
    assert call_of("calculator[0]", ()) is None
    assert call_of("calculator[0] or so", ("calculator",)) is None


def test_importing_copies_the_splits_alone_and_checks_every_row(tmp_path: Path) -> None:
    source = tmp_path / "mine"
    written(source / "data" / "train.jsonl", [row(n) for n in range(40)])
    written(source / "test.jsonl", [row(50)])
    (source / "passwords.txt").write_text("x")

    found = import_benchmark("dataset", source, tmp_path / "home", {})

    assert sorted(path.name for path in (tmp_path / "home" / "dataset").iterdir()) == ["test.jsonl", "train.jsonl"]
    assert found["tasks"]["rows"]["test"] == 1
    written(source / "test.jsonl", [row(5)])
    with pytest.raises(EnvironmentUnavailable, match=f"{source / 'test.jsonl'}, line 1: the same prompt stands in"):
        import_benchmark("dataset", source, tmp_path / "home", {})


@pytest.mark.parametrize("level", ["arithmetic", "countdown", "arithmetic_hard", "countdown_hard"])
def test_generated_rows_are_solved_by_their_solution_and_split_by_their_prompt(level: str) -> None:
    entry = loaded()
    prompts: dict[str, set[str]] = {split: set() for split in SPLITS}
    for split in SPLITS:
        for index in range(60):
            data: Row = entry.tasks.by_index(split, level, index).data
            prompts[split].add(data.prompt)
            assert data.scorer.score(data.solution, data.right) == 1.0
            assert data.private["data_source"] == level.removesuffix("_hard")

    assert not prompts["train"] & prompts["test"]
    assert not prompts["train"] & prompts["validation"]
    assert not prompts["validation"] & prompts["test"]


@pytest.mark.skipif(not TRAJECTORIES.exists(), reason="no published rows here")
@pytest.mark.parametrize("name", ["babyai", "maze", "movie", "textcraft", "webshop"])
def test_published_rows_without_a_scorer_of_ours_are_refused_by_name(name: str) -> None:
    assert f"row 1: data_source '{name}' has no scorer" in refusal(TRAJECTORIES / name)
