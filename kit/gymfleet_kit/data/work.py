"""The work on a chunk of a file, in any free process."""

import gc
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from gymfleet_contracts.data_records import DataRecord, Form

from gymfleet_kit.data.chunks import Chunk, DataError
from gymfleet_kit.data.converter import UnusableRecord
from gymfleet_kit.data.converting import CheckedConverter, ConverterFailed, placed, refusal
from gymfleet_kit.data.outputs import encoded
from gymfleet_kit.data.reading import Found, parsed

RecordT = TypeVar("RecordT")


@contextmanager
def calm_collector() -> Iterator[None]:
    """Make the cycle collector visit the records of a chunk rarely: they have no cycles, and are freed without it."""
    before = gc.get_threshold()
    gc.set_threshold(1_000_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@dataclass(frozen=True)
class Rejected:
    """An unusable record."""

    place: str
    reason: str
    content: str = ""
    """The line itself, at most 64 KiB of it; "" for the row of a table."""

    @property
    def line(self) -> bytes:
        """Return it as a line for a file of rejected records."""
        said = {"place": self.place, "reason": self.reason, "content": self.content}
        return json.dumps(said, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"


@dataclass
class Done:
    """The results for a chunk."""

    parts: dict[str, bytes] = field(default_factory=dict)
    """The part to append to each output, by its name."""
    rejected: list[Rejected] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class Work(Protocol):
    """The work on each chunk. It is pickled for other processes, and keeps nothing of the chunks."""

    def done(self, chunk: Chunk) -> Done:
        """Return the results for a chunk.

        Raises `PluginError` if a plug-in is at fault, and `DataError` if the results cannot be stored together.
        """
        ...


def converted(chunk: Chunk, converter: CheckedConverter, done: Done) -> Iterator[tuple[Found, DataRecord]]:
    """Yield the records of a chunk, each with its place; unusable ones are added to `done.rejected`."""
    for found in parsed(chunk):
        done.counts["read"] += 1
        if found.record is None:
            done.rejected.append(Rejected(found.place, found.fault, found.shown))
            continue
        try:
            ours = converter.convert(found.record)
        except UnusableRecord as error:
            done.rejected.append(Rejected(found.place, refusal(converter, error), found.shown))
            continue
        except ConverterFailed as error:
            raise ConverterFailed(f"{found.place}: {error}") from error
        for one in ours:
            yield found, placed(one, found.place)


def stored(
    records: Sequence[tuple[Found, DataRecord]], form: Form | None, done: Done, *, is_table: bool, as_found: bool
) -> bytes:
    """Return our records as a part of a file; lines already in our form stay as they were found."""
    if as_found and not is_table and all(found.content for found, _ in records):
        return b"".join(found.content + b"\n" for found, _ in records)
    return storable(records, partial(encoded, form=form, is_table=is_table), done)


def storable(
    records: Sequence[tuple[Found, RecordT]], encode: Callable[[Sequence[RecordT]], bytes], done: Done
) -> bytes:
    """Return records as a part of a file; those that a table cannot hold are added to `done.rejected`.

    Raises `DataError` for records that fit into a table each by itself, and not together.
    """
    try:
        return encode([one for _, one in records])
    except ValueError:
        fits = [(found, one) for found, one in records if _fits(found, one, encode, done)]
    try:
        return encode([one for _, one in fits])
    except ValueError as error:
        place = fits[0][0].place
        raise DataError(f"the records from {place} on fit into no one table; write a .jsonl file: {error}") from None


def _fits(found: Found, one: RecordT, encode: Callable[[Sequence[RecordT]], bytes], done: Done) -> bool:
    try:
        encode([one])
    except ValueError as error:
        done.rejected.append(Rejected(found.place, str(error), found.shown))
        done.counts["written"] -= 1
        return False
    return True
