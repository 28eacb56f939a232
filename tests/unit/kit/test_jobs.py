"""Commands over files: what they write, where a killed one goes on, and what becomes of records that are refused."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymfleet_contracts.data_records import Form
from gymfleet_kit.data import chunks as chunk_module
from gymfleet_kit.data import jobs, tables
from gymfleet_kit.data.chunks import Chunk, DataError
from gymfleet_kit.data.conversion import OUT, Conversion, Export
from gymfleet_kit.data.converting import converter_of
from gymfleet_kit.data.jobs import Job
from gymfleet_kit.data.reading import records
from gymfleet_kit.data.work import Done
from pydantic import JsonValue

GIVEN: dict[str, JsonValue] = {"use": "messages"}


class Killed(Exception):
    """Stands for a signal that cannot be caught."""


@dataclass
class Dying:
    """Work that is killed at one of its chunks."""

    work: Any
    after: int
    seen: list[str] = field(default_factory=list)

    def done(self, chunk: Chunk) -> Done:
        if len(self.seen) == self.after:
            raise Killed
        self.seen.append(chunk.place(chunk.first))
        done: Done = self.work.done(chunk)
        return done


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (chunk_module, tables):
        monkeypatch.setattr(module, "CHUNK_BYTES", 2000)
    monkeypatch.setattr(jobs, "_SAVE_EVERY_S", -1.0)


def chat(number: int) -> dict[str, Any]:
    said = [{"role": "user", "content": f"{number} é?"}, {"role": "assistant", "content": f"{number}!" * 5}]
    return {"messages": said, "id": f"c_{number}"}


def chats(path: Path, count: int = 100, bad: tuple[int, ...] = ()) -> Path:
    given = [{"messages": 7} if number in bad else chat(number) for number in range(1, count + 1)]
    if path.suffix == ".json":
        path.write_text(json.dumps(given, indent=1))
    else:
        path.write_text("".join(json.dumps(one) + "\n" for one in given))
    return path


def job(inputs: list[Path], output: Path, work: Any = None, **more: Any) -> Job:
    form: Form = "conversations"
    work = work or Conversion(GIVEN, form, output.suffix == ".parquet")
    return Job(inputs, {OUT: output}, work, {"command": "convert", "from": GIVEN}, form, **more)


def ids(path: Path) -> list[Any]:
    return [record["id"] for _, record in records(path)]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("source", ["x.jsonl", "x.json", "x.parquet"])
def test_a_killed_job_goes_on_where_it_was(tmp_path: Path, source: str, suffix: str) -> None:
    first = chats(tmp_path / "first.jsonl", 40)
    if source == "x.parquet":
        lines = chats(tmp_path / "lines.jsonl", 900)
        given = tmp_path / source
        job([lines], given, Conversion(GIVEN, None, is_table=True)).run()
        pq.write_table(pq.read_table(given), given, row_group_size=200)  # several groups, and batches within each
    else:
        given = chats(tmp_path / source, 300, bad=(150,))
    whole = tmp_path / f"whole{suffix}"
    counts = job([first, given], whole).run()
    work = Conversion(GIVEN, "conversations", suffix == ".parquet")

    output, lives = tmp_path / f"out{suffix}", 0
    seen: list[str] = []
    while not output.exists():
        dying = Dying(work, after=2)
        try:
            assert job([first, given], output, dying).run() == counts
        except Killed:
            lives += 1
            with (tmp_path / f"{output.name}.partial").open("ab") as file:
                file.write(b"written, but not yet accounted for")
        seen += dying.seen

    assert lives > 2
    assert len(seen) == len(set(seen)), "no chunk twice"
    assert output.read_bytes() == whole.read_bytes()
    assert ids(output) == ids(whole)
    left = {path.name for path in tmp_path.iterdir() if path.name.startswith("out")}
    assert left == {output.name} | ({f"{output.name}.rejected.jsonl"} if counts["rejected"] else set())


def test_what_is_refused_is_kept_with_its_reason(tmp_path: Path) -> None:
    given = chats(tmp_path / "x.jsonl", 100, bad=(3, 77))
    with given.open("ab") as file:
        file.write(b'{"messages": "\xe9"}\n{"messages": [{"role": "us')
    seen: list[str] = []

    counts = job([given], tmp_path / "out.jsonl", on_rejected=lambda one: seen.append(one.place)).run()

    assert (counts["read"], counts["written"], counts["rejected"]) == (102, 98, 4)
    left = [json.loads(line) for line in (tmp_path / "out.jsonl.rejected.jsonl").read_text().splitlines()]
    assert [one["place"] for one in left] == seen == [f"{given}, line {number}" for number in (3, 77, 101, 102)]
    assert left[0]["reason"] == "no record for the converter messages: messages: a list is wanted; it is a number"
    assert left[0]["content"] == '{"messages": 7}'
    assert left[2]["reason"] == "byte 15 is no UTF-8; save the file as UTF-8"
    assert left[3]["reason"].endswith("; the file ends in its middle")


@pytest.mark.parametrize(
    ("name", "content", "places"),
    [
        pytest.param("x.json", json.dumps([chat(1), chat(2)]).encode()[:-9], ", record 2", id="a list that is cut"),
        pytest.param("x.jsonl", json.dumps(chat(1)).encode("utf-16"), ", line 1", id="UTF-16"),
        pytest.param("x.parquet", b"PAR1 and so on", "", id="no table"),
    ],
)
def test_a_file_that_cannot_be_read_on_does_not_stop_the_next_one(
    tmp_path: Path, name: str, content: bytes, places: str
) -> None:
    damaged = tmp_path / name
    damaged.write_bytes(content)

    counts = job([damaged, chats(tmp_path / "good.jsonl", 3)], tmp_path / "out.jsonl").run()

    assert counts["rejected"] == 1
    assert ids(tmp_path / "out.jsonl")[-3:] == ["c_1", "c_2", "c_3"]
    (left,) = [json.loads(line) for line in (tmp_path / "out.jsonl.rejected.jsonl").read_text().splitlines()]
    assert left["place"] == f"{damaged}{places}"


TURN = '{"messages": [{"role": "user", "content": "%s"}, {"role": "assistant", "content": "a"}]}'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        pytest.param(TURN % ("x" * 10_000_000), "message 1: content: String should have at most 1000000", id="10 MB"),
        pytest.param(TURN % ("x" * 20_000_000), "longer than 16777216 bytes; a record is one line", id="20 MB"),
        pytest.param(
            TURN.replace('"role"', '"rôle"') % "x", "message 1: role: text is wanted; it is missing", id="role"
        ),
        pytest.param(TURN % "x" + "{}", "no JSON: Extra data", id="two records in a line"),
        pytest.param('{"messages": ' + "[" * 5000 + "]" * 5000 + "}", "", id="nested"),
        pytest.param('{"messages": [], "messages": []}', "an object has the key 'messages' twice", id="twice"),
        pytest.param('{"messages": [], "reward": NaN}', "NaN is no number of JSON", id="NaN"),
        pytest.param(TURN % "\\ud800", "message 1: content: Input should be a valid string", id="half a character"),
        pytest.param(
            TURN.replace('"a"}]}', '"a"}], "reward": 1e999}') % "x", "reward: Input should be a finite", id="1e999"
        ),
    ],
)
def test_a_hostile_record_costs_nothing_but_itself(tmp_path: Path, line: str, reason: str) -> None:
    given = tmp_path / "x.jsonl"
    given.write_text(f"{json.dumps(chat(1))}\n{line}\n{json.dumps(chat(3))}\n")

    counts = job([given], tmp_path / "out.jsonl").run()

    assert ids(tmp_path / "out.jsonl") == ["c_1", "c_3"]
    assert counts["rejected"] == 1
    (left,) = [json.loads(one) for one in (tmp_path / "out.jsonl.rejected.jsonl").read_text().splitlines()]
    assert left["place"] == f"{given}, line 2"
    assert reason in left["reason"]
    assert len(left["reason"]) < 400
    assert len(left["content"]) <= 1 << 16


def test_a_table_of_another_kind_and_one_that_is_cut(tmp_path: Path) -> None:
    other, cut = tmp_path / "other.parquet", tmp_path / "cut.parquet"
    pq.write_table(pa.table({"messages": [7], "when": [datetime(2026, 1, 1, tzinfo=UTC)]}), other)
    cut.write_bytes(other.read_bytes()[:-20])

    counts = job([other, cut, chats(tmp_path / "good.jsonl", 1)], tmp_path / "out.jsonl").run()

    assert counts["written"] == 1
    left = [json.loads(one) for one in (tmp_path / "out.jsonl.rejected.jsonl").read_text().splitlines()]
    assert [one["place"] for one in left] == [f"{other}, row 1", str(cut)]
    assert left[0]["reason"].endswith("messages: a list is wanted; it is a number")
    assert left[1]["reason"].startswith("no Parquet file that can be read: ")


def test_a_strict_job_stops_at_the_first_and_leaves_nothing(tmp_path: Path) -> None:
    given = chats(tmp_path / "x.jsonl", 100, bad=(3,))

    with pytest.raises(DataError, match=r"x\.jsonl, line 3: no record for the converter messages: messages: a list"):
        job([given], tmp_path / "out.jsonl", strict=True).run()

    assert list(tmp_path.iterdir()) == [given]


def killed(tmp_path: Path) -> tuple[Path, Path]:
    given, output = chats(tmp_path / "x.jsonl"), tmp_path / "out.jsonl"
    with pytest.raises(Killed):
        job([given], output, Dying(Conversion(GIVEN, "conversations", is_table=False), after=2)).run()
    return given, output


def test_another_command_does_not_go_on_with_it(tmp_path: Path) -> None:
    given, output = killed(tmp_path)
    other = job([given], output)
    other.told = {"command": "convert", "from": {"use": "sharegpt"}}

    with pytest.raises(DataError) as caught:
        other.run()

    assert str(caught.value) == (
        f'{output}: the command that was killed had from = {{"use": "messages"}}, and this one has '
        '{"use": "sharegpt"}; --force begins again'
    )


def test_a_changed_input_is_refused_by_name(tmp_path: Path) -> None:
    given, output = killed(tmp_path)
    chats(given, 101)

    with pytest.raises(DataError, match=r"x\.jsonl: it is not as it was when the command was killed; --force"):
        job([given], output).run()
    assert job([given], output, force=True).run()["written"] == 101


def test_what_exists_is_not_replaced(tmp_path: Path) -> None:
    given, output = chats(tmp_path / "x.jsonl", 3), chats(tmp_path / "out.jsonl", 1)

    with pytest.raises(DataError, match=r"out\.jsonl exists; give another name, or --force to replace it"):
        job([given], output).run()
    with pytest.raises(DataError, match="it is read and written"):
        job([given], given, force=True).run()
    with pytest.raises(DataError, match=r"out\.csv: what is written is a \.jsonl or a \.parquet file"):
        job([given], tmp_path / "out.csv").run()
    with pytest.raises(DataError, match=r"absent\.jsonl cannot be read: No such file"):
        job([tmp_path / "absent.jsonl"], tmp_path / "new.jsonl").run()
    assert ids(output) == ["c_1"]


def test_several_processes_write_the_same_in_the_same_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PARALLEL_BYTES", 0)
    given = chats(tmp_path / "x.jsonl", 400, bad=(7, 390))

    alone, together = (job([given], tmp_path / f"{n}.jsonl", workers=n) for n in (1, 2))

    assert alone.run() == together.run()
    for name in ("", ".rejected.jsonl"):
        assert (tmp_path / f"1.jsonl{name}").read_bytes() == (tmp_path / f"2.jsonl{name}").read_bytes()


def exported(tmp_path: Path, to: str, name: str = "out.parquet") -> Iterator[dict[str, Any]]:
    ours = tmp_path / "ours.jsonl"
    job([chats(tmp_path / "x.jsonl", 30)], ours).run()
    counts = job([ours], tmp_path / name, Export({"use": "gymfleet"}, {"use": to}, name.endswith(".parquet"))).run()
    assert counts["written"] == 30
    return (record for _, record in records(tmp_path / name))


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_an_export_has_the_columns_of_its_form(tmp_path: Path, name: str) -> None:
    first = next(exported(tmp_path, "sharegpt", name))

    said = [{"from": "human", "value": "1 é?"}, {"from": "gpt", "value": "1!" * 5}]
    assert first == {"id": "c_1", "conversations": said}


def test_an_export_has_the_columns_of_all_its_records(tmp_path: Path) -> None:
    facts = {"tools": '[{"name": "weather", "parameters": {"x": {"type": "string"}}}]', "success": True, "reward": 0.5}
    given, table = [chat(1), chat(2) | facts], tmp_path / "x.parquet"
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, given)))

    job([tmp_path / "x.jsonl"], table, Export(GIVEN, GIVEN, is_table=True)).run()

    converter = converter_of(GIVEN, table="x")
    assert [converter.convert(record) for _, record in records(table)] == list(map(converter.convert, given))


@pytest.mark.parametrize(
    ("of_one", "of_other", "told"),
    [
        (
            '"2"',
            '{"a": 1}',
            "the records from .*x.jsonl, line 1 on fit into no one table; write a .jsonl file: no room",
        ),
        ('{"a": {}}', '{"b": 1}', "x.parquet: its records do not fit into one table; write a .jsonl file: .*'a' with"),
    ],
)
def test_records_that_are_no_table_together_are_refused_in_a_line(
    tmp_path: Path, of_one: str, of_other: str, told: str
) -> None:
    row = '{"data_source": "x", "prompt": "?", "reward_model": {"ground_truth": %s}}'
    (tmp_path / "x.jsonl").write_text("\n".join(row % one for one in (of_one, of_other)))
    work = Export({"use": "verl"}, {"use": "verl"}, is_table=True)

    with pytest.raises(DataError, match=told):
        job([tmp_path / "x.jsonl"], tmp_path / "x.parquet", work).run()
