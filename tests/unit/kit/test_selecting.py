"""Filters over files: in order, streamed, and with as many passes as they need."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.conversation import Conversation, Message
from gymfleet_contracts.data_records import DataRecord
from gymfleet_kit.data import samples, selecting
from gymfleet_kit.data.chunks import DataError, chunks
from gymfleet_kit.data.converting import converter_of
from gymfleet_kit.data.filtering import FilterFailed, filter_of
from gymfleet_kit.data.reading import records
from gymfleet_kit.data.selecting import Selection

MOST = '''
"""Keep what has as many characters as any: it compares a record with those behind it."""

from gymfleet_kit.data.filter import Filter, FilterOptions, replies


class Longest(Filter):
    """Keep the longest."""

    longest = 0

    def note(self, record):
        self.longest = max(self.longest, sum(map(len, replies(record))))

    def keep(self, record):
        return sum(map(len, replies(record))) == self.longest
'''


def said(reply: str) -> Conversation:
    return Conversation(messages=(Message(role="user", content="?"), Message(role="assistant", content=reply)))


def written(path: Path, given: list[DataRecord]) -> Path:
    path.write_text("".join(record.model_dump_json() + "\n" for record in given))
    return path


def selection(inputs: list[Path], output: Path, *filters: object, **more: object) -> Selection:
    made = [filter_of(one, table="filter") for one in filters]  # type: ignore[arg-type]
    return Selection(inputs, output, converter_of("gymfleet", table="--from"), made, **more)  # type: ignore[arg-type]


def kept(path: Path) -> list[str]:
    found: list[Any] = [record["messages"] for _, record in records(path)]
    return [messages[1]["content"] for messages in found]


@pytest.fixture
def longest(tmp_path: Path) -> str:
    path = tmp_path / "longest.py"
    path.write_text(MOST)
    return str(path)


@pytest.mark.parametrize(
    ("order", "found", "num_passes"),
    [
        (["length", "longest"], ["333", "444", "333"], 3),
        (["longest", "length"], [], 2),
        (["length", "longest", "duplicates"], ["333", "444"], 3),
        (["length", "duplicates"], ["1", "333", "444"], 1),
    ],
)
def test_each_is_asked_about_what_those_before_it_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest: str, order: list[str], found: list[str], num_passes: int
) -> None:
    given = written(tmp_path / "x.jsonl", [said(reply) for reply in ("1", "333", "55555", "444", "333")])
    known = {"length": {"use": "length", "max_chars": 4}, "longest": longest, "duplicates": "duplicates"}
    reads: Counter[Path] = Counter()
    monkeypatch.setattr(selecting, "chunks", lambda path: reads.update([path]) or chunks(path))

    counts = selection([given], tmp_path / "out.jsonl", *(known[name] for name in order)).run()

    assert kept(tmp_path / "out.jsonl") == found
    assert reads[given] == num_passes
    assert counts["read"] == 5
    left_out = sum(count for name, count in counts.items() if name.startswith("left_out"))
    assert counts["written"] == len(found) == 5 - left_out


def test_what_cannot_be_used_is_told_once_however_often_it_is_read(tmp_path: Path, longest: str) -> None:
    given = written(tmp_path / "x.jsonl", [said("1"), *samples.preferences(), said("2")])
    with given.open("a") as file:
        file.write("{\n")
    told: list[str] = []
    one = selection([given], tmp_path / "out.parquet", longest, "duplicates")
    one.on_rejected = lambda rejected: told.append(f"{rejected.place}: {rejected.reason}")

    counts = one.run()

    assert kept(tmp_path / "out.parquet") == ["1", "2"]
    assert counts["rejected"] == len(told) == 3
    assert told[0] == f"{given}, line 2: filters are asked about replies; preferences have none"
    assert told[2].startswith(f"{given}, line 5: no JSON")


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_episodes_that_are_kept_become_conversations(tmp_path: Path, name: str) -> None:
    given = written(tmp_path / "x.jsonl", [*samples.episodes()[:2], said("1")])

    counts = selection([given], tmp_path / name, "length", form="conversations").run()

    assert (counts["written"], counts["rejected"]) == (3, 0)
    assert len(kept(tmp_path / name)) == 3


def test_what_the_form_cannot_hold_is_told_after_several_passes_too(tmp_path: Path, longest: str) -> None:
    given = written(tmp_path / "x.jsonl", [samples.episodes()[3], said("1"), *samples.rows()])
    one = selection([given], tmp_path / "out.jsonl", longest, form="rows")

    counts = one.run()

    assert (counts["written"], counts["rejected"]) == (0, 1 + len(samples.rows()))
    told = [record["reason"] for _, record in records(one.rejected_path)]
    assert told[-1] == "it is one of episodes, which do not become rows"


def test_a_filter_that_fails_leaves_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(MOST.replace("return sum", "raise RuntimeError('no'); return sum"))
    given = written(tmp_path / "x.jsonl", [said("1")])

    with pytest.raises(FilterFailed, match=r"the filter broken failed in keep for .*: RuntimeError: no"):
        selection([given], tmp_path / "out.jsonl", str(broken)).run()

    assert sorted(tmp_path.iterdir()) == [broken, given]


def test_a_strict_selection_stops_and_an_output_that_exists_stays(tmp_path: Path) -> None:
    given = written(tmp_path / "x.jsonl", [*samples.rows(), said("1")])

    with pytest.raises(DataError, match=r"line 1: filters are asked about replies; rows have none"):
        selection([given], tmp_path / "out.jsonl", "length", strict=True).run()
    with pytest.raises(DataError, match="it is read and written"):
        selection([given], given, "length", force=True).run()
    (tmp_path / "out.jsonl").touch()
    with pytest.raises(DataError, match="exists; give another name"):
        selection([given], tmp_path / "out.jsonl", "length").run()
