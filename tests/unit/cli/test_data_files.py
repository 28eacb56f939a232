"""Commands over files of data: exit codes, what they print, and mistakes in what was typed."""

import json
from pathlib import Path

import pytest
from gymfleet_cli.main import run

GOOD = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "success": True}


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    path.write_text(f'{json.dumps(GOOD)}\n{{"conversations": []}}\n')
    return path


def test_a_record_that_is_refused_makes_the_exit_code(
    tmp_path: Path, chats: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "ours.jsonl"
    command = ["data", "convert", str(chats), str(output), "--from", "sharegpt"]

    assert run(command) == 1
    told = capsys.readouterr()
    assert "2 read, 1 written, 1 rejected" in told.out
    assert f"rejected: {chats}, line 2: no record for the converter sharegpt: messages: Tuple should have" in told.err
    assert f"error: 1 of 2 records were rejected; they and the reasons: {output}.rejected.jsonl" in told.err
    assert json.loads(output.read_text())["source"] == f"{chats}, line 1"

    assert run(command) == 1
    assert f"error: {output} exists; give another name, or --force to replace it" in capsys.readouterr().err
    assert run([*command, "--force", "--keep-going"]) == 0
    assert run([*command, "--force", "--strict"]) == 1
    assert "error: " in capsys.readouterr().err


def test_nothing_written_is_a_failure_all_the_same(tmp_path: Path, chats: Path) -> None:
    assert run(["data", "convert", str(chats), str(tmp_path / "x.jsonl"), "--from", "agentgym", "--keep-going"]) == 1


def test_there_and_back_with_a_table_between(tmp_path: Path, chats: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, back = tmp_path / "ours.parquet", tmp_path / "back.jsonl"

    assert run(["data", "convert", str(chats), str(table), "--from", "sharegpt", "--keep-going"]) == 0
    assert run(["data", "inspect", str(table), "--json"]) == 0
    counts = json.loads(capsys.readouterr().out.split("\n", 2)[2])
    assert (counts["form:conversations"], counts["success:yes"], counts["turns:1"]) == (1, 1, 1)
    to = ["--to", "sharegpt", "--to-option", "success=solved"]
    assert run(["data", "export", str(table), str(back), *to]) == 0

    assert json.loads(back.read_text()) == {"conversations": GOOD["conversations"], "solved": True}


def test_calls_of_tools_that_nobody_offers_are_seen_by_inspect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = 'Tools: [{"name": "search"}, {"name": "open"}]'
    said = ["search(a)", "open(b)", "close(c)", "fine, then", "search(d)"]
    messages = [{"role": "user", "content": tools}]
    for reply in said:
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "and?"}]
    alone = [{"role": "user", "content": "hm"}, {"role": "assistant", "content": "look(x)"}]
    path = tmp_path / "calls.jsonl"
    path.write_text("".join(json.dumps({"messages": given}) + "\n" for given in (messages, alone)))

    assert run(["data", "inspect", str(path), "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert {name: count for name, count in counts.items() if name.startswith("calls:")} == {
        "calls:of tools that are offered": 3,
        "calls:of tools that nobody offers": 1,
        "calls:without a list of tools": 1,
    }
    assert run(["data", "inspect", str(path)]) == 0
    assert "25.0% of the calls where tools are listed" in capsys.readouterr().out


def test_what_cannot_be_used_is_seen_by_inspect(chats: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "inspect", str(chats), "--from", "sharegpt"]) == 1

    assert "error: 1 of 2 records cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["convert", "IN", "out.jsonl", "--from", "sharegbt"], "there is no converter 'sharegbt'"),
        (["convert", "IN", "out.jsonl", "--option", "kee=x"], "--from.kee: Extra inputs are not permitted"),
        (["convert", "IN", "out.jsonl", "--to", "chats"], "--to chats: the forms are episodes, conversations, "),
        (
            ["export", "IN", "out.jsonl", "--to", "./reader.py"],
            "the converter ./reader.py only reads; it has no way back",
        ),
        (["split", "IN", "out.jsonl", "--share", "train=0.5"], "--share: the parts add up to 0.5, and not to 1"),
        (["split", "IN", "out.jsonl", "--share", "dev=1"], "--share dev=1: give train, validation, test and a part"),
        (["split", "IN", "out.jsonl", "--by", "luck"], "--by luck: it is task or dialogue"),
        (
            ["filter", "IN", "out.jsonl", "--filter", "length", "--option", "max=1"],
            "give NAME.KEY=VALUE, such as length.",
        ),
        (["filter", "IN", "out.jsonl", "--filter", "length", "--option", "x.y=1"], "options are given for x, and the"),
        (["filter", "IN", "out.jsonl", "--filter", "lenght"], "there is no filter 'lenght'"),
    ],
)
def test_a_mistake_in_what_was_typed_is_a_line(
    tmp_path: Path, chats: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    typed: list[str], told: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reader.py").write_text(
        "from gymfleet_kit.data.converter import Converter\n\n\n"
        "class Reader(Converter):\n    def convert(self, record):\n        return []\n"
    )

    assert run(["data", *(str(chats) if word == "IN" else word for word in typed)]) == 2

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert told in lines[0]
    assert not (tmp_path / "out.jsonl").exists()
