"""Records from users' files: .jsonl, .json and .parquet."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gymfleet_contracts import strict_json

from gymfleet_envs.task_files import read_text
from gymfleet_envs.tasks import TaskDataError

SUFFIXES: Final = (".parquet", ".jsonl", ".json")
_MAX_LINE_BYTES: Final = 1 << 24
_MAX_FILE_BYTES: Final = 1 << 30
_BATCH_ROWS: Final = 1_000
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the records of a file, each with its place for messages. Raises `TaskDataError`.

    Parquet needs pyarrow.
    """
    read = {".parquet": _of_parquet, ".jsonl": _of_lines, ".json": _of_list}[path.suffix]
    try:
        for place, record in read(path):
            if not isinstance(record, dict):
                raise TaskDataError(f"{place}: a row is an object, in {{}}")
            yield place, record
    except OSError as error:
        raise TaskDataError(f"{path} cannot be read: {error.strerror or error}") from None


def _of_lines(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_MAX_LINE_BYTES + 1):
            number += 1
            place = f"{path}, line {number}"
            if len(line) > _MAX_LINE_BYTES:
                raise TaskDataError(f"{place}: longer than {_MAX_LINE_BYTES} bytes; a row is one line")
            line = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
            if line.strip():
                try:
                    text = line.decode()
                except UnicodeDecodeError as error:
                    raise TaskDataError(f"{place}: byte {error.start + 1} is no UTF-8; save it as UTF-8") from None
                yield place, _parsed(text, place, cut=not line.endswith(b"\n"))


def _of_list(path: Path) -> Iterator[tuple[str, Any]]:
    text = read_text("records", path, max_bytes=_MAX_FILE_BYTES, encoding="utf-8-sig")
    found = _parsed(text, str(path), cut=not text.rstrip().endswith("]"))
    if not isinstance(found, list):
        raise TaskDataError(f"{path}: a .json file holds a list of rows, in []")
    for number, record in enumerate(found, 1):
        yield f"{path}, row {number}", record


def _of_parquet(path: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa  # noqa: PLC0415 - heavy, and only for those who bring parquet
    from pyarrow import parquet  # noqa: PLC0415

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                for record in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", record
    except (pa.ArrowException, ValueError, OverflowError) as error:  # the latter of texts and times that Python lacks
        where = f"{path}, after row {number}" if number else str(path)
        raise TaskDataError(f"{where}: no parquet, or damaged: {str(error).splitlines()[0]}") from None


def _parsed(text: str, place: str, *, cut: bool) -> Any:
    try:
        return strict_json.loads(text)
    except RecursionError:
        raise TaskDataError(f"{place}: nested too deeply") from None
    except ValueError as error:
        told = "; the file ends in its middle" if cut else ""
        raise TaskDataError(f"{place}: no JSON: {error}{told}") from None
