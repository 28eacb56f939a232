"""Records of somebody's file: `.jsonl`, one to a line, or `.json`, a list of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from pydantic import JsonValue

MAX_RECORD_BYTES: Final = 1 << 24
MAX_LIST_BYTES: Final = 1 << 30
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class DataError(Exception):
    """A file cannot be used; the message is one line with the file, the place in it, and what is wrong there."""


def records(path: Path) -> Iterator[tuple[str, dict[str, JsonValue]]]:
    """Yield the records of a file, each with its place for messages. Raises `DataError`."""
    try:
        with path.open("rb") as file:
            if file.read(len(_BYTE_ORDER_MARK)) != _BYTE_ORDER_MARK:
                file.seek(0)
            for place, record in _of_list(path, file) if path.suffix == ".json" else _of_lines(path, file):
                if not isinstance(record, dict):
                    raise DataError(f"{place}: a record is an object, in {{}}")
                yield place, record
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def _of_lines(path: Path, file: IO[bytes]) -> Iterator[tuple[str, Any]]:
    number = 0
    while line := file.readline(MAX_RECORD_BYTES + 1):
        number += 1
        place = f"{path}, line {number}"
        if len(line) > MAX_RECORD_BYTES:
            raise DataError(f"{place}: longer than {MAX_RECORD_BYTES} bytes; a record is one line")
        if line.strip():
            yield place, _parsed(line, place, cut=not line.endswith(b"\n"))


def _of_list(path: Path, file: IO[bytes]) -> Iterator[tuple[str, Any]]:
    content = file.read(MAX_LIST_BYTES + 1)
    if len(content) > MAX_LIST_BYTES:
        raise DataError(f"{path}: larger than {MAX_LIST_BYTES} bytes; write it as .jsonl, one record to a line")
    found = _parsed(content, str(path), cut=not content.rstrip().endswith(b"]"))
    if not isinstance(found, list):
        raise DataError(f"{path}: a .json file holds a list of records, in []")
    for number, record in enumerate(found, 1):
        yield f"{path}, record {number}", record


def _parsed(content: bytes, place: str, *, cut: bool) -> Any:
    try:
        return json.loads(content.decode(), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: byte {error.start + 1} is no UTF-8; save the file as UTF-8") from None
    except RecursionError:
        raise DataError(f"{place}: nested too deeply") from None
    except ValueError as error:
        told = "; the file ends in its middle" if cut else ""
        raise DataError(f"{place}: no JSON: {error}{told}") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")
