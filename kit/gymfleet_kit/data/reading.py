"""Reading records of files: `.jsonl`, one per line; `.json`, a list of them; `.parquet`, a table."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from gymfleet_contracts import strict_json
from pydantic import JsonValue

from gymfleet_kit.data.chunks import MAX_RECORD_BYTES, Chunk, DataError, chunks

__all__ = ["DataError", "Found", "parsed", "records"]
_MAX_SHOWN: Final = 1 << 16
_OF_A_CALL: Final = ("arguments", "parameters")
"""The keys of objects whose own keys differ from function to function."""
_DECODER: Final = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True)
class Found:
    """A record at a place of a file, or the fault there."""

    place: str
    record: dict[str, JsonValue] | None
    fault: str = ""
    content: bytes = b""
    """The line itself; empty for the row of a table."""

    @property
    def shown(self) -> str:
        """Return at most 64 KiB of the line, for a report of its fault."""
        return self.content[:_MAX_SHOWN].decode(errors="backslashreplace").rstrip("\r\n")


def records(path: Path) -> Iterator[tuple[str, dict[str, JsonValue]]]:
    """Yield the records of a file, each with its place for messages. Raises `DataError` at a damaged one."""
    for chunk in chunks(path):
        for found in parsed(chunk):
            if found.record is None:
                raise DataError(f"{found.place}: {found.fault}")
            yield found.place, found.record


def parsed(chunk: Chunk) -> Iterator[Found]:
    """Yield the records and faults in a chunk, skipping blank lines."""
    if chunk.word == "row":
        from gymfleet_kit.data.tables import rows  # noqa: PLC0415 - light services are without pyarrow

        for number, row in enumerate(rows(chunk.content), chunk.first):
            yield Found(chunk.place(number), row if "rest_json" in row else _told(row))  # our episodes call nothing
        return
    lines = chunk.content.split(b"\n")
    for number, line in enumerate(lines, chunk.first):
        if line and not line.isspace():
            last = number - chunk.first == len(lines) - 1
            yield _line(chunk.place(number), line, cut=last and chunk.word == "line")


def _told(given: dict[str, JsonValue], *, of_a_call: bool = False) -> dict[str, JsonValue]:
    """Return a table's object without the keys that calls and declarations in it have only from other rows.

    The objects of a column have the keys of all rows, and null for those that they lack.
    """
    return {
        key: _part(value, of_a_call=of_a_call or key in _OF_A_CALL)
        for key, value in given.items()
        if value is not None or not of_a_call
    }


def _part(value: JsonValue, *, of_a_call: bool) -> JsonValue:
    if isinstance(value, list):
        return [_part(one, of_a_call=of_a_call) for one in value]
    return _told(value, of_a_call=of_a_call) if isinstance(value, dict) else value


def _line(place: str, line: bytes, *, cut: bool) -> Found:
    if len(line) > MAX_RECORD_BYTES:
        return Found(place, None, f"longer than {MAX_RECORD_BYTES} bytes; a record is one line", line)
    fault = ""
    record: Any = None
    try:
        record = _quickly(line)
        if record is None:
            record = strict_json.loads(line.decode())
    except UnicodeDecodeError as error:
        fault = f"byte {error.start + 1} is no UTF-8; save the file as UTF-8"
    except RecursionError:
        fault = "nested too deeply"
    except ValueError as error:
        fault = f"no JSON: {error}{'; the file ends in its middle' if cut else ''}"
    if not fault and not isinstance(record, dict):
        fault, record = "a record is an object, in {}", None
    return Found(place, record, fault, line)


def _quickly(line: bytes) -> dict[str, JsonValue] | None:
    """Return a record, or None if it needs a closer look: only the slower parser reports faults.

    msgspec takes the last of several values of a key. A key is followed by `":`, as is anything like one inside a text:
    if there are as many of these as keys, no key was repeated.
    """
    try:
        record = _DECODER.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return record if line.count(b'":') == _num_keys(record) else None


def _num_keys(value: dict[str, Any] | list[Any]) -> int:
    if type(value) is dict:
        count, parts = len(value), value.values()
    else:
        count, parts = 0, value  # type: ignore[assignment]
    for part in parts:
        if type(part) is dict or type(part) is list:
            count += _num_keys(part)
    return count
