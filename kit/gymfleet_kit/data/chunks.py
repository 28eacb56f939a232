"""Files cut into chunks of records, which fit into memory and begin where a resumed command can go on."""

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

from gymfleet_contracts.strict_json import refuse

CHUNK_BYTES: Final = 1 << 22
MAX_RECORD_BYTES: Final = 1 << 24
_BLOCK_BYTES: Final = 1 << 20
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_COMPRESSED: Final = {
    b"\x1f\x8b": "gunzip", b"\x28\xb5\x2f\xfd": "unzstd", b"\xfd7zXZ": "unxz", b"BZh": "bunzip2",
    b"PK\x03\x04": "unzip",
}  # fmt: skip
"""The first bytes of compressed files, and the commands that unpack them."""
_HEAD_BYTES: Final = max(map(len, _COMPRESSED))
_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
TABLE: Final = ".parquet"
_BLANKS: Final = re.compile(r"[ \t\n\r]*")


class DataError(Exception):
    """A file cannot be used; the message is one line with the file, the place in it, and the fault there."""


@dataclass(frozen=True)
class Position:
    """A place between two records of a file."""

    offset: int = 0
    """Bytes before it; in a table, rows."""
    number: int = 0
    """Lines before it; in a list or a table, records."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive records, not yet parsed: any free worker may take it."""

    path: Path
    word: str
    """The name of a record in messages: `line`, `record` or `row`."""
    content: bytes
    """Lines of JSON, or an Arrow stream."""
    first: int
    """The number of the first record, from 1."""
    end: Position
    passed_bytes: int
    """Bytes of the file up to the chunk's end; for a table, the same share as that of its rows."""

    def place(self, number: int) -> str:
        """Return the place of the record with a number, for messages."""
        return f"{self.path}, {self.word} {number}"


def chunks(path: Path, start: Position = Position()) -> Iterator[Chunk]:
    """Yield the rest of a file: `.json` is a list, `.parquet` a table, and any other file has one record per line.

    Raises `DataError` if the file cannot be read any further.
    """
    try:
        if path.suffix == TABLE:
            require_tables(path)
            from gymfleet_kit.data.tables import table_chunks  # noqa: PLC0415 - light services are without pyarrow

            yield from table_chunks(path, start)
            return
        with path.open("rb") as file:
            begin = _begin(path, file)
            file.seek(max(start.offset, begin))
            yield from _of_list(path, file, start, begin) if path.suffix == ".json" else _of_lines(path, file, start)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def require_tables(path: Path) -> None:
    """Raise `DataError` for a table if pyarrow is not installed: light services are without it."""
    if find_spec("pyarrow") is None:
        raise DataError(f"{path}: tables need pyarrow: pip install 'gymfleet[data]'")


def _begin(path: Path, file: IO[bytes]) -> int:
    head = file.read(_HEAD_BYTES)
    if unpack := next((command for mark, command in _COMPRESSED.items() if head.startswith(mark)), None):
        raise DataError(f"{path} is compressed: unpack it first, with {unpack}")
    if head.startswith(_UTF16):
        raise DataError(f"{path}, line 1: byte 1 is no UTF-8 but UTF-16; save the file as UTF-8")
    return len(_BYTE_ORDER_MARK) if head.startswith(_BYTE_ORDER_MARK) else 0


def _of_lines(path: Path, file: IO[bytes], start: Position) -> Iterator[Chunk]:
    number = start.number
    while content := file.read(CHUNK_BYTES):
        content += file.readline(MAX_RECORD_BYTES + 1)
        if len(content) > MAX_RECORD_BYTES and not content.endswith(b"\n"):
            content += _rest_of_line(file)  # whoever parses the line sees that it is too long
        end = Position(file.tell(), number + content.count(b"\n"))
        yield Chunk(path, "line", content, number + 1, end, end.offset)
        number = end.number


def _rest_of_line(file: IO[bytes]) -> bytes:
    """Go to the end of a line without keeping it."""
    while part := file.readline(_BLOCK_BYTES):
        if part.endswith(b"\n"):
            return b"\n"
    return b""


def _of_list(path: Path, file: IO[bytes], start: Position, begin: int) -> Iterator[Chunk]:
    scanner = _ListScanner(path, file, start, at_start=start.offset <= begin)
    kept: list[bytes] = []
    size, first = 0, start.number + 1
    for element in scanner.elements():
        kept.append(element)
        size += len(element)
        if size >= CHUNK_BYTES:
            yield scanner.chunk(kept, first)
            kept, size, first = [], 0, scanner.position.number + 1
    if kept:
        yield scanner.chunk(kept, first)
    if scanner.fault is not None:
        raise DataError(scanner.fault)


class _ListScanner:
    """Finds where the elements of a JSON list end, one block of the file at a time."""

    def __init__(self, path: Path, file: IO[bytes], start: Position, *, at_start: bool) -> None:
        self.position = Position(file.tell(), start.number)
        self.fault: str | None = None
        self._path = path
        self._file = file
        self._at_start = at_start
        self._text = ""
        self._place = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._ended = False
        self._parser = json.JSONDecoder(parse_constant=refuse)

    def chunk(self, elements: list[bytes], first: int) -> Chunk:
        """Return the last elements as a chunk."""
        return Chunk(self._path, "record", b"\n".join(elements), first, self.position, self.position.offset)

    def elements(self) -> Iterator[bytes]:
        """Yield each element as one line; `fault` says why there are no more."""
        try:
            if self._at_start:
                self._expect("[", f"{self._path}: a .json file holds a list of records, in []")
                if self._next() == "]":
                    return
            elif self._next() == "]":
                return
            else:
                self._expect(",", self._told("',' is wanted before it"))
            while True:
                yield self._element()
                if self._next() == "]":
                    return
                self._expect(",", self._told("',' is wanted before it"))
        except _Damaged as damage:
            self.fault = str(damage)

    def _element(self) -> bytes:
        self._next()
        while True:
            try:
                _, end = self._parser.raw_decode(self._text, self._place)
            except RecursionError:
                raise _Damaged(self._told("nested too deeply")) from None
            except ValueError as error:
                if not self._more():
                    cut = "; the file ends in its middle" if self._ended else ""
                    raise _Damaged(self._told(f"no JSON: {error}{cut}")) from None
                continue
            if end == len(self._text) and self._more():  # a number may go on
                continue
            text = self._text[self._place : end].encode()
            self._advance(end)
            self.position = Position(self.position.offset, self.position.number + 1)
            # Between the parts of a record a line break is blank; inside a string it cannot occur.
            return text.replace(b"\r", b" ").replace(b"\n", b" ")

    def _next(self) -> str:
        """Go to the next character that is not blank, and return it."""
        while True:
            match = _BLANKS.match(self._text, self._place)
            self._advance(match.end() if match else self._place)
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._more():
                raise _Damaged(self._told("the file ends in its middle"))

    def _expect(self, wanted: str, told: str) -> None:
        if self._next() != wanted:
            raise _Damaged(told)
        self._advance(self._place + 1)

    def _advance(self, place: int) -> None:
        passed = self._text[self._place : place]
        size = len(passed) if passed.isascii() else len(passed.encode())
        self.position = Position(self.position.offset + size, self.position.number)
        self._place = place

    def _more(self) -> bool:
        """Read another block, unless the file is at its end or a record is larger than allowed."""
        if self._ended or len(self._text) - self._place > MAX_RECORD_BYTES:
            return False
        block = self._file.read(_BLOCK_BYTES)
        self._ended = not block
        try:
            added = self._decoder.decode(block, final=self._ended)
        except UnicodeDecodeError:
            raise _Damaged(self._told("it is no UTF-8; save the file as UTF-8")) from None
        self._text = self._text[self._place :] + added
        self._place = 0
        return not self._ended

    def _told(self, what: str) -> str:
        return f"{self._path}, record {self.position.number + 1}: {what}"


class _Damaged(Exception):
    """The list cannot be read any further."""
