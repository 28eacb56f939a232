"""The file of collected records: a record already in it is not made again."""

import fcntl
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from gymfleet_contracts.conversation import RECORDS, Conversation, Record
from gymfleet_contracts.faults import faults
from gymfleet_kit.data.chunks import MAX_RECORD_BYTES, DataError
from pydantic import ValidationError

from gymfleet_cli.console import CliError

_READ_AT_ONCE: Final = 1 << 16


class RecordFile:
    """Records as lines of JSON, written by one process at a time.

    A cut-off last line, as a kill may leave it, is removed on opening, and `mended` says so; any other damage is an
    error.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mended = ""
        """A description of what was removed; empty if nothing was."""
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        """Open and lock the file. Raises `CliError` if it cannot be written, or another process writes it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b")
        except OSError as error:
            raise CliError(f"{self.path} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise CliError(f"another gymfleet command writes {self.path}; wait for it or choose another file") from None
        try:
            self._mend(self._file)
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def records(self) -> Iterator[Record]:
        """Yield the records of the file. Raises `DataError`, with the line."""
        with self.path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_RECORD_BYTES + 1), b""), 1):
                yield _record(line, f"{self.path}, line {number}")

    def append(self, record: Record) -> None:
        """Write a record: after a kill it is there whole, or as a cut-off last line."""
        file = self._opened
        file.write(record.model_dump_json().encode() + b"\n")
        file.flush()

    def drop(self, ids: Collection[str]) -> None:
        """Remove records by their ids. After a kill the file is as it was before, or as it is afterwards."""
        path = self.path.resolve()
        kept = path.with_name(f"{path.name}.kept")
        new = kept.open("w+b")
        try:
            fcntl.flock(new, fcntl.LOCK_EX)
            for record in self.records():
                if record_id(record) not in ids:
                    new.write(record.model_dump_json().encode() + b"\n")
            new.flush()
            os.fsync(new.fileno())
            kept.replace(path)
        except BaseException:
            new.close()
            kept.unlink(missing_ok=True)
            raise
        self._opened.close()
        self._file = new

    @property
    def _opened(self) -> IO[bytes]:
        if self._file is None:
            raise RuntimeError("the file is written within `with`")
        return self._file

    def _mend(self, file: IO[bytes]) -> None:
        end = file.seek(0, os.SEEK_END)
        begin = _after_last_line(file, end)
        if begin == end:
            return
        file.seek(begin)
        try:
            _record(file.read(MAX_RECORD_BYTES + 1), "")
        except DataError:
            file.truncate(begin)
            self.mended = f"{self.path}: its last line was cut off; {end - begin} bytes were removed"
        else:
            file.write(b"\n")
            file.flush()


def record_id(record: Record) -> str:
    """Return the id of a record."""
    return record.id if isinstance(record, Conversation) else record.trajectory.trajectory_id


def succeeded(record: Record) -> bool:
    """Return whether the record is of an episode that solved its task."""
    return bool(record.success) if isinstance(record, Conversation) else record.trajectory.success


def _record(line: bytes, place: str) -> Record:
    if len(line) > MAX_RECORD_BYTES:
        raise DataError(f"{place}: longer than {MAX_RECORD_BYTES} bytes; a record is one line")
    try:
        return RECORDS.validate_json(line)
    except ValidationError as error:
        raise DataError(f"{place}: no record: {faults(error, most=2)}") from None


def _after_last_line(file: IO[bytes], end: int) -> int:
    """Return where the bytes after the last line break begin."""
    while end > 0:
        begin = max(0, end - _READ_AT_ONCE)
        file.seek(begin)
        piece = file.read(end - begin)
        if (found := piece.rfind(b"\n")) >= 0:
            return begin + found + 1
        end = begin
    return 0
