"""A file that is being written, as `NAME.partial` until it is complete."""

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from gymfleet_contracts.data_records import DataRecord, Form, form_of

from gymfleet_kit.data.chunks import TABLE, DataError, require_tables

_LENGTH: Final = struct.Struct("<Q")
SUFFIXES: Final = (".jsonl", TABLE)


class Output:
    """A `.jsonl` or `.parquet` file to which parts are appended.

    A Parquet file cannot be continued: until it is complete, its parts are stored one after the other as Arrow streams,
    and `finish` writes the table from them.
    """

    def __init__(self, path: Path) -> None:
        """Raises `DataError` for a name with another suffix, and for a table without pyarrow."""
        if path.suffix not in SUFFIXES:
            raise DataError(f"{path}: what is written is a .jsonl or a .parquet file; give it such a name")
        self.path = path
        self.partial = path.with_name(f"{path.name}.partial")
        self.is_table = path.suffix == TABLE
        if self.is_table:
            require_tables(path)
        self.size = 0

    def begin(self, size: int = 0) -> None:
        """Go on after the first `size` bytes of the partial file, or begin a new one. Raises `DataError`."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if size and (not self.partial.exists() or self.partial.stat().st_size < size):
            raise DataError(f"{self.partial} is shorter than when it was left; remove it to begin again")
        self._file = self.partial.open("r+b" if size else "wb")
        self._file.truncate(size)
        self._file.seek(size)
        self.size = size

    def append(self, content: bytes) -> None:
        """Write a part: lines of JSON, or an Arrow stream for a table."""
        if not content:
            return
        if self.is_table:
            self._file.write(_LENGTH.pack(len(content)))
            self.size += _LENGTH.size
        self._file.write(content)
        self.size += len(content)

    def sync(self) -> None:
        """Get everything so far onto the disk, for a resumed command to go on from."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the partial file, and leave it for a command that goes on."""
        self._file.close()

    def finish(self, form: Form | None = None) -> None:
        """Put the complete file in its place; `form` is the form of an empty table. Raises `DataError`."""
        self.sync()
        self.close()
        if self.is_table:
            self._write_table(form)
        else:
            self.partial.replace(self.path)

    def _write_table(self, form: Form | None) -> None:
        from gymfleet_kit.data.arrow import SCHEMAS  # noqa: PLC0415 - light services are without pyarrow
        from gymfleet_kit.data.tables import common_schema, write_table  # noqa: PLC0415

        schema = common_schema(self.path, self._parts())
        if schema is None:
            schema = SCHEMAS[form or "conversations"]
        write_table(self.path, self._parts(), schema)
        self.partial.unlink()

    def _parts(self) -> Iterator[bytes]:
        with self.partial.open("rb") as file:
            while head := file.read(_LENGTH.size):
                yield file.read(_LENGTH.unpack(head)[0])


def encoded(records: Sequence[DataRecord], form: Form | None, *, is_table: bool) -> bytes:
    """Return our records as a part of a file; a table has one form. Raises ValueError for values it cannot hold."""
    if not records:
        return b""
    if is_table:
        from gymfleet_kit.data import arrow  # noqa: PLC0415 - light services are without pyarrow

        return arrow.encoded(records, form or form_of(records[0]))
    return b"".join(record.model_dump_json().encode() + b"\n" for record in records)


def lines(records: Sequence[Mapping[str, Any]]) -> bytes:
    """Return records of another form as lines of a file."""
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)


def table_part(records: Sequence[dict[str, Any]]) -> bytes:
    """Return records of another form as a part of a table with their own columns. Raises ValueError."""
    if not records:
        return b""
    from gymfleet_kit.data.tables import inferred  # noqa: PLC0415 - light services are without pyarrow

    return inferred(records)
