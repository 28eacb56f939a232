"""Files of records: what is read of them, and the line that a damaged one gets."""

import bz2
import gzip
from pathlib import Path

import pytest
from gymfleet_kit.data import chunks, reading
from gymfleet_kit.data.reading import DataError, records


def written(directory: Path, name: str, content: bytes) -> Path:
    path = directory / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.jsonl", b'{"a": 1}\n{"b": "\xc3\xa9"}\n'),
        ("x.jsonl", b'{"a": 1}\r\n\n  \n{"b": "\\u00e9"}'),
        ("x.txt", b'\xef\xbb\xbf{"a": 1}\n{"b": "\xc3\xa9"}'),
        ("x.json", b'\xef\xbb\xbf[{"a": 1},\n {"b": "\xc3\xa9"}]\n'),
    ],
)
def test_records_in_their_order(tmp_path: Path, name: str, content: bytes) -> None:
    path = written(tmp_path, name, content)

    found = list(records(path))

    assert [record for _, record in found] == [{"a": 1}, {"b": "é"}]
    last = 2 if name == "x.json" else content.rstrip().count(b"\n") + 1
    assert [place for place, _ in found] == [
        f"{path}, {'record' if name == 'x.json' else 'line'} {number}" for number in (1, last)
    ]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        pytest.param(
            "x.jsonl", b'{"a": 1}\n{"b": "cut', r", line 2: no JSON: .*; the file ends in its middle$", id="cut"
        ),
        pytest.param("x.jsonl", b'{"a": 1}\n{"b"}\n', r", line 2: no JSON: Expecting ':' [^;]*$", id="no JSON"),
        pytest.param("x.jsonl", b'{"a": 1}\n[1]\n', r", line 2: a record is an object, in \{\}$", id="no object"),
        pytest.param("x.jsonl", b'{"a": "\xe9"}\n', r", line 1: byte 8 is no UTF-8; save the file", id="Latin-1"),
        pytest.param("x.jsonl.gz", gzip.compress(b'{"a": 1}\n'), " is compressed: .* with gunzip$", id="gzip"),
        pytest.param("x.json", bz2.compress(b'[{"a": 1}]'), " is compressed: .* with bunzip2$", id="bzip2"),
        pytest.param("x.jsonl", '{"a": 1}\n'.encode("utf-16"), r", line 1: byte 1 is no UTF-8", id="UTF-16"),
        pytest.param("x.jsonl", b'{"a": NaN}\n', r", line 1: no JSON: NaN is no number of JSON$", id="NaN"),
        pytest.param("x.jsonl", b"[" * 100_000 + b"\n", r", line 1: (nested too deeply|no JSON)", id="deep"),
        pytest.param("x.jsonl", b'{"a": ' + b"9" * 5000 + b"}\n", r", line 1: no JSON: Exceeds the limit", id="large"),
        pytest.param("x.jsonl", b'{"a": "' + b"x" * 200 + b'"}\n', r", line 1: longer than 100 bytes", id="long"),
        pytest.param("x.jsonl", b'{"a": 1, "b": {"c": 1, "c": 2}}\n', r", line 1: .*key 'c' twice$", id="a key twice"),
        pytest.param(
            "x.json", b'[{"a": 1}, {"b"', r", record 2: no JSON: .*; the file ends in its middle$", id="cut list"
        ),
        pytest.param("x.json", b'[{"a": 1},', r", record 2: the file ends in its middle$", id="list cut at a comma"),
        pytest.param("x.json", b'[{"a": 1}', r", record 2: the file ends in its middle$", id="list without an end"),
        pytest.param("x.json", b'[{"a": 1} {"a": 2}]', r", record 2: ',' is wanted before it$", id="no comma"),
        pytest.param("x.json", b'[{"a": "\xe9"}]', r", record 1: it is no UTF-8", id="Latin-1 list"),
        pytest.param("x.json", b'[{"a": NaN}]', r", record 1: no JSON: NaN is no number", id="NaN in a list"),
        pytest.param("x.json", b"[" * 100_000, r", record 1: (nested too deeply|no JSON)", id="deep list"),
        pytest.param("x.json", b'[{"a": "' + b"x" * 200, r", record 1: no JSON.*", id="long in a list"),
        pytest.param("x.json", b'{"a": 1}', r"x\.json: a \.json file holds a list of records, in \[\]$", id="no list"),
        pytest.param("x.json", b'[{"a": 1}, 7]', r", record 2: a record is an object", id="a number in a list"),
    ],
)
def test_a_damaged_file_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, told: str
) -> None:
    if b"xxx" in content:
        monkeypatch.setattr(reading, "MAX_RECORD_BYTES", 100)
        monkeypatch.setattr(chunks, "MAX_RECORD_BYTES", 100)

    with pytest.raises(DataError, match=told) as caught:
        list(records(written(tmp_path, name, content)))

    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_what_comes_before_the_damage_was_read(tmp_path: Path) -> None:
    found = records(written(tmp_path, "x.jsonl", b'{"a": 1}\n{'))

    assert next(found)[1] == {"a": 1}


@pytest.mark.parametrize("name", ["absent.jsonl", "."])
def test_a_file_that_cannot_be_opened_is_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"cannot be read: (No such file or directory|Is a directory)$"):
        list(records(tmp_path / name))
