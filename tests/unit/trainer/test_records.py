"""What a stage's `data` names: files of every kind, ours and others."""

from pathlib import Path

import pytest
from gymfleet_contracts.data_records import DataRecord, Form
from gymfleet_kit.data import samples
from gymfleet_kit.data.converting import converter_of
from gymfleet_kit.data.outputs import Output, encoded
from gymfleet_trainer.errors import RunDirectoryError
from gymfleet_trainer.run.records import read
from gymfleet_trainer.run.run_directory import RunDirectory


def table(path: Path, given: list[DataRecord], form: Form) -> str:
    output = Output(path)
    output.begin()
    output.append(encoded(given, form, is_table=True))
    output.finish(form)
    return str(path)


def test_our_own_tables_need_no_converter(tmp_path: Path) -> None:
    episodes, conversations = samples.episodes(), samples.conversations()
    names = [
        table(tmp_path / "a.parquet", [*episodes], "episodes"),
        table(tmp_path / "b.parquet", [*conversations], "conversations"),
    ]

    found = [record for source in read(RunDirectory(tmp_path / "run"), names, None) for record in source]

    assert found[: len(episodes)] == episodes
    assert [one.model_copy(update={"source": ""}) for one in found[len(episodes) :]] == [
        one.model_copy(update={"source": ""}) for one in conversations
    ]


def test_there_is_nothing_to_imitate_in_a_task(tmp_path: Path) -> None:
    name = table(tmp_path / "rows.parquet", [*samples.rows()], "rows")

    with pytest.raises(RunDirectoryError, match=r"rows\.parquet, row 1: there are no replies to imitate in rows"):
        read(RunDirectory(tmp_path / "run"), [name], None)


def test_ids_alone_are_no_conversations(tmp_path: Path) -> None:
    path = tmp_path / "eval.jsonl"
    path.write_text('{"item_id": "textcraft_1", "conversations": null}\n')

    with pytest.raises(RunDirectoryError, match=r"eval\.jsonl, line 1: there are no replies to imitate in rows"):
        read(RunDirectory(tmp_path / "run"), [str(path)], converter_of("agentgym", table="converter"))
