"""Splits: by what records are about, the same on every machine, in the shares that are told."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.conversation import Conversation, ConversationTask, MadeCall, Message
from gymfleet_contracts.data_records import DataRecord, TaskRow
from gymfleet_contracts.session import Split
from gymfleet_kit.data import samples
from gymfleet_kit.data.jobs import Job
from gymfleet_kit.data.reading import records
from gymfleet_kit.data.splitting import By, Splitting, key_of

SHARES: dict[Split, float] = {"train": 0.7, "validation": 0.2, "test": 0.1}


def said(question: str, reply: str, **more: Any) -> Conversation:
    messages = Message(role="user", content=question), Message(role="assistant", content=reply)
    return Conversation(messages=messages, **more)


def called(argument: str) -> Conversation:
    calls = (MadeCall(name="act", arguments={"action": argument}),)
    return Conversation(
        messages=(Message(role="user", content="q"), Message(role="assistant", content="", tool_calls=calls))
    )


def splitting(seed: int = 0, by: By = "task", shares: dict[Split, float] = SHARES) -> Splitting:
    return Splitting({"use": "gymfleet"}, shares, seed, by, None, is_table=False)


def task(task_id: str, split: Split = "train") -> ConversationTask:
    return ConversationTask(env="maze", split=split, task_id=task_id)


@pytest.mark.parametrize(
    ("one", "other", "same_task", "same_dialogue"),
    [
        pytest.param(said("q", "a"), said("q", "b"), True, False, id="another reply to the same question"),
        pytest.param(called("x"), called("y"), True, False, id="another call at the same question"),
        pytest.param(said("q", "a", task=task("1")), said("r", "b", task=task("1", "test")), True, False, id="task"),
        pytest.param(said("q", "a", task=task("1")), said("q", "a", task=task("2")), False, True, id="another task"),
        pytest.param(said("q", "a", reward=1.0, source="x"), said("q", "a"), True, True, id="the same words"),
        pytest.param(TaskRow(task=task("1")), said("q", "a", task=task("1")), True, False, id="a row of the task"),
        pytest.param(samples.episodes()[0], samples.episodes()[5], True, True, id="the same episode"),
        pytest.param(samples.episodes()[0], samples.episodes()[1], False, False, id="episodes of two tasks"),
        pytest.param(samples.preferences()[0], said("?", "yes"), True, False, id="a preference for the question"),
    ],
)
def test_what_is_not_to_be_on_two_sides(
    one: DataRecord, other: DataRecord, same_task: bool, same_dialogue: bool
) -> None:
    assert (key_of(one, "task") == key_of(other, "task")) is same_task
    assert (key_of(one, "dialogue") == key_of(other, "dialogue")) is same_dialogue


def test_replies_that_are_not_learned_from_belong_to_the_question() -> None:
    def told(goal: str) -> Conversation:
        rules, ready = Message(role="user", content="rules"), Message(role="assistant", content="OK.", learned=False)
        return Conversation(messages=(rules, ready, *said(goal, "go").messages))

    assert key_of(told("left"), "task") != key_of(told("right"), "task")


def test_the_shares_are_kept_and_another_seed_splits_otherwise() -> None:
    given = [said(str(number), "a") for number in range(3000)]

    sides = [splitting().side(one) for one in given]
    others = [splitting(seed=1).side(one) for one in given]

    found = Counter(sides)
    assert all(abs(found[side] - share * 3000) < 100 for side, share in SHARES.items())  # 4 standard deviations
    assert sides[:4] == [splitting().side(one) for one in given[:4]]
    assert sum(one != other for one, other in zip(sides, others, strict=True)) > 1000
    assert {splitting(shares={"train": 1.0, "test": 0.0}).side(one) for one in given} == {"train"}


def test_a_row_that_is_in_the_files_twice_is_on_one_side(tmp_path: Path) -> None:
    given = tmp_path / "x.jsonl"
    lines = [said(str(number % 50), "a").model_dump_json() for number in range(200)]
    given.write_text("\n".join([*lines, '{"messages": 1}']))
    outputs = {side: tmp_path / f"out.{side}.jsonl" for side in SHARES}

    counts = Job([given], dict(outputs.items()), splitting(), {}).run()

    found = {side: [json.dumps(r["messages"]) for _, r in records(path)] for side, path in outputs.items()}
    assert {side: counts[side] for side in SHARES} == {side: len(lines) for side, lines in found.items()}
    assert sum(map(len, found.values())) == counts["written"] == 200
    assert not set(found["train"]) & set(found["test"])
    assert len(set(found["train"])) * 4 == len(found["train"])
    assert counts["rejected"] == 1
    assert (tmp_path / "out.train.jsonl.rejected.jsonl").exists()
