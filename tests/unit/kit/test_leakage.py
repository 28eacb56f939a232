"""Leakage: records of tasks that are tested on, by id, by opening and by split; dropped, or refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.conversation import Conversation, Record
from gymfleet_kit.data import samples
from gymfleet_kit.data.converting import converter_of
from gymfleet_kit.data.filter import Refused
from gymfleet_kit.data.filtering import filter_of
from gymfleet_kit.data.outputs import Output, encoded
from gymfleet_kit.plugins import PluginError

DATA = Path(__file__).parents[4] / "shared/data/trajectories"


def about(goal: str, task_id: str | None = None, *, env: str = "babyai", split: str = "train") -> Conversation:
    task = None if task_id is None else {"env": env, "task_id": task_id, "split": split}
    messages = [
        {"role": "user", "content": "Always the same rules."},
        {"role": "assistant", "content": "OK.", "learned": False},
        {"role": "user", "content": goal},
        {"role": "assistant", "content": "go"},
    ]
    return Conversation.model_validate({"messages": messages, "task": task, "source": f"train, {goal}"})


def listed(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def sharegpt(goal: str, **more: Any) -> dict[str, Any]:
    said = [("human", "Other rules.", None), ("gpt", "OK.", False), ("human", goal, None), ("gpt", "go", True)]
    return {"conversations": [{"from": role, "value": text, "loss": loss} for role, text, loss in said], **more}


def kept(records: list[Record], **options: Any) -> list[int]:
    found = {id(record) for record in filter_of({"use": "leakage", **options}, table="x").kept(records)}
    return [place for place, record in enumerate(records) if id(record) in found]


TRAIN: list[Record] = [
    about("red", "12"), about("blue", "babyai_13"), about("green", "12", env="maze"), about("pink"),
    samples.episodes()[0],
]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "options", "places"),
    [
        pytest.param([{"item_id": "babyai_12", "conversations": None}], {}, [1, 2, 3, 4], id="AgentEval"),
        pytest.param([{"task_id": "12", "env": "babyai"}], {}, [1, 2, 3, 4], id="with an environment"),
        pytest.param([{"id": 12}, {"id": 13}], {"env": "babyai"}, [2, 3, 4], id="whose environment is an option"),
        pytest.param([{"item_id": "12"}], {}, [1, 3, 4], id="of any environment"),
        pytest.param([{"item_id": "babyai_12"}], {"by": ["opening"]}, [0, 1, 2, 3, 4], id="ids do not count"),
        pytest.param([sharegpt(" PINK\n")], {}, [0, 1, 2, 4], id="by its opening, other rules"),
        pytest.param([about("pink").model_dump(mode="json")], {}, [0, 1, 2, 4], id="by its opening, our own record"),
        pytest.param([sharegpt("pink")], {"by": ["task_id"]}, [0, 1, 2, 3, 4], id="openings do not count"),
        pytest.param([sharegpt("pink", id="1"), sharegpt("pink", id="2")], {}, [0, 1, 2, 3, 4], id="a shared opening"),
        pytest.param([sharegpt("pink", id="1"), sharegpt("pink", id="1")], {}, [0, 1, 2, 4], id="one task twice"),
        pytest.param(
            [{"prompt": [{"role": "user", "content": "Red"}], "data_source": "x"}], {}, [1, 2, 3, 4], id="verl"
        ),
        pytest.param([{"task_id": "HumanEval/0", "prompt": "Red"}], {}, [1, 2, 3, 4], id="a prompt that is a text"),
        pytest.param(
            [{"id": "x", "messages": [{"role": "user", "content": [{"type": "text", "text": "Red"}]}]}],
            {},
            [1, 2, 3, 4],
            id="a content of parts",
        ),
        pytest.param([{"item_id": "x"}], {"by": ["task_id"], "unknown": "drop"}, [0, 1, 2, 4], id="unknown"),
        pytest.param([{"item_id": "x"}], {"unknown": "drop"}, [0, 1, 2, 3, 4], id="known by its opening"),
    ],
)
def test_what_is_a_test_task_is_left_out(
    tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, Any], places: list[int]
) -> None:
    assert kept(TRAIN, against=listed(tmp_path / "test.jsonl", *rows), **options) == places


@pytest.mark.parametrize("name", ["measure.jsonl", "measure.parquet"])
def test_episodes_that_were_measured_are_test_tasks(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    output = Output(path)
    output.begin()
    output.append(encoded([samples.episodes()[1]], "episodes", is_table=output.is_table))
    output.finish()
    same_task = samples.episodes()[1]
    others = samples.episodes()[0]

    assert kept([same_task, others], against=str(path), by=["task_id"]) == [1]
    assert kept([same_task, others], against=str(path), by=["opening"]) == [], "both begin in room 0"


def test_a_held_out_split_is_a_leak_without_any_file() -> None:
    given: list[Record] = [about("a", "1"), about("b", "2", split="test"), about("c", "3", split="validation")]

    assert kept(given) == [0, 2]
    assert kept(given, splits=["test", "validation"]) == [0]
    assert kept(given, splits=[]) == [0, 1, 2]


def test_leaks_are_refused_by_name_and_counted(tmp_path: Path) -> None:
    path = listed(tmp_path / "test.jsonl", *({"item_id": f"babyai_{number}"} for number in range(20)))
    given: list[Record] = [about(f"goal {number}", str(number)) for number in range(14, 30)]

    with pytest.raises(Refused) as caught:
        kept(given, against=path, action="refuse")

    assert str(caught.value) == (
        "the filter leakage: test tasks are in the training data: train, goal 14, train, goal 15, train, goal 16, "
        "train, goal 17, train, goal 18 and 1 more"
    )
    assert kept(given[6:], against=path, action="refuse") == list(range(10))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"a": 1}\n', "line 1: neither a task's id (item_id, task_id, id) nor messages"),
        ('{"id": "1"}\n{"id":', "line 2: no JSON: "),
        (None, "test.jsonl cannot be read: No such file"),
    ],
)
def test_a_damaged_file_of_test_tasks_is_a_line(tmp_path: Path, content: str | None, told: str) -> None:
    path = tmp_path / "test.jsonl"
    if content is not None:
        path.write_text(content)

    with pytest.raises(PluginError, match=r"^the filter leakage cannot be made: DataError: ") as caught:
        kept([], against=str(path))

    assert told in str(caught.value)


@pytest.mark.skipif(not DATA.is_dir(), reason="no real trajectories here")
@pytest.mark.parametrize(
    ("env", "left_in"), [("movie", 20), ("textcraft", 20), ("todo", 21), ("weather", 20), ("babyai", 7)]
)
def test_openmanus_leaves_its_validation_rows_in_train(tmp_path: Path, env: str, left_in: int) -> None:
    """Of babyai only the first 120 training rows are here, and with them 7 of the 20; todo asks one of them twice."""
    parquet = pytest.importorskip("pyarrow.parquet")
    train, val = (parquet.read_table(DATA / env / f"{split}.parquet").to_pylist() for split in ("train", "val"))
    path = listed(
        tmp_path / "val.jsonl", *({"item_id": row["item_id"], "conversations": row["conversations"]} for row in val)
    )
    converter = converter_of("sharegpt", table="x")
    found = [one for row in train for one in converter.convert(row)]
    given: list[Record] = [one for one in found if isinstance(one, Conversation)]

    assert len(given) - len(kept(given, against=path)) == left_in
