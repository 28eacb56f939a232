"""Real rows of OpenManus-RL's Parquet files: converted, and written again in every form that can hold them."""

from collections import Counter
from functools import cache
from typing import Any

import pytest
from gymfleet_contracts.conversation import Conversation
from gymfleet_contracts.data_records import TaskRow
from gymfleet_kit.data.converting import converter_of
from gymfleet_kit.data.losses import differences
from gymfleet_kit.data.reading import records

from tests.fixtures.paths import ROOT

TRAJECTORIES = ROOT.parent / "shared" / "data" / "trajectories"
FILES = sorted(TRAJECTORIES.glob("*/*.parquet"))
FORMS = {
    "agentgym": set(), "openmanus_rows": set(), "gymfleet": set(), "agent_instruct": set(),
    "sharegpt": {"task"}, "messages": {"task"}, "agent_flan": {"task"}, "openmanus": {"task", "learned"},
}  # fmt: skip
"""What each form loses of these conversations."""

pytestmark = pytest.mark.skipif(not FILES, reason="the published sets are not here")


@cache
def rows() -> list[tuple[str, dict[str, Any]]]:
    return [found for path in FILES for found in records(path)]


def test_every_real_row_becomes_a_conversation_whose_replies_alone_are_learned() -> None:
    converter = converter_of("openmanus_rows", table="converter")
    count: Counter[str] = Counter()

    for _, row in rows():
        (one,) = converter.convert(row)
        assert isinstance(one, Conversation)
        assert one.task is not None
        assert one.id == one.task.task_id == row["item_id"]
        taught = [message.content for message in one.messages if message.teaches]
        assert taught == [given["value"] for given in row["conversations"] if given["loss"]]
        assert [message.content for message in one.messages] == [given["value"] for given in row["conversations"]]
        count[one.task.env] += 1

    assert sum(count.values()) == 1899
    assert set(count) == {path.parent.name for path in FILES} - {"sqlgym"} | {"sql"}


def test_every_real_row_is_written_again_as_it_was() -> None:
    converter = converter_of("openmanus_rows", table="converter")

    for place, row in rows():
        (one,) = converter.convert(row)
        written = converter.write(one)
        assert written.lost == set(), place
        again: dict[str, Any] = written.record
        assert again["conversations"] == row["conversations"]
        assert (again["item_id"], again["data_source"]) == (row["item_id"], row["data_source"])
        gold = row["reward_model"]["ground_truth"]
        if isinstance(gold, str):  # the file of WebShop's test set has an object there
            assert again["reward_model"] == row["reward_model"]
            assert again["extra_info"]["conversations"] == row["extra_info"]["conversations"]


def test_every_real_row_is_a_task_and_written_again_to_the_letter() -> None:
    converter = converter_of({"use": "openmanus_rows", "take": "task"}, table="converter")

    for place, row in rows():
        (one,) = converter.convert(row)
        assert isinstance(one, TaskRow)
        written = converter.write(one)
        assert written.lost == set(), place
        assert written.record == {name: value for name, value in row.items() if name != "conversations"}


@pytest.mark.parametrize("form", FORMS)
def test_there_and_back_between_every_pair_of_forms(form: str) -> None:
    theirs, other = converter_of("openmanus_rows", table="converter"), converter_of(form, table="converter")
    lost: set[str] = set()

    for place, row in rows():
        (one,) = theirs.convert(row)
        written = other.write(one)
        (back,) = other.convert(written.record)
        assert differences(one, back) == written.lost, place
        assert [m.content for m in back.messages] == [m["value"] for m in row["conversations"]]  # type: ignore[union-attr]
        lost |= written.lost

    assert lost == FORMS[form]
