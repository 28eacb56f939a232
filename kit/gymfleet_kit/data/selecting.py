"""The work of `gymfleet data filter`: keeping records, with one pass over the files for each filter that compares them.

Filters keep their state in memory, so a killed command begins again.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gymfleet_contracts.conversation import Record
from gymfleet_contracts.data_records import DataRecord, Form, Preference, TaskRow, form_of

from gymfleet_kit.data.chunks import Chunk, DataError, Position, chunks
from gymfleet_kit.data.conversion import in_form
from gymfleet_kit.data.converter import UnusableRecord
from gymfleet_kit.data.converting import CheckedConverter
from gymfleet_kit.data.filtering import CheckedFilter
from gymfleet_kit.data.outputs import Output
from gymfleet_kit.data.reading import Found
from gymfleet_kit.data.work import Done, Rejected, calm_collector, converted, stored


@dataclass
class Selection:
    """Filters over files, and the file of the records they keep."""

    inputs: Sequence[Path]
    output: Path
    converter: CheckedConverter
    filters: Sequence[CheckedFilter]
    """The filters, in order: each sees the records kept by those before it."""
    form: Form | None = None
    strict: bool = False
    force: bool = False
    on_progress: Callable[[int, int, Counter[str]], None] = lambda *_: None
    """Called with the bytes done, the total bytes, and the counts."""
    on_rejected: Callable[[Rejected], None] = lambda _: None
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def rejected_path(self) -> Path:
        """Return the file of unusable records."""
        return self.output.with_name(f"{self.output.name}.rejected.jsonl")

    def run(self) -> Counter[str]:
        """Filter, and return the counts: `read`, `written`, `rejected` and `left_out.NAME` of each filter.

        Raises:
            DataError: a file cannot be read or written, or, if `strict`, a record cannot be used.
            PluginError: a plug-in is at fault, or refuses the records.
        """
        self._require_room()
        output, rejected = Output(self.output), Output(self.rejected_path)
        passes = _passes(self.filters)
        try:
            output.begin()
            rejected.begin()
            kept = bytearray()
            with calm_collector():
                for number, one in enumerate(passes):
                    self._pass(one, kept, number, len(passes), output, rejected)
        except BaseException:
            for left in (output, rejected):
                left.close()
                left.partial.unlink(missing_ok=True)
            raise
        output.finish(self.form)
        rejected.finish()
        if not self.counts["rejected"]:
            self.rejected_path.unlink()
        return self.counts

    def _pass(
        self, one: "_Pass", kept: bytearray, number: int, num_passes: int, output: Output, rejected: Output
    ) -> None:
        place = 0
        for chunk, done in self._chunks(number, num_passes):
            chosen: list[tuple[Found, Record]] = []
            for found, record in converted(chunk, self.converter, done):
                if number == 0:
                    kept.append(_learnable(found, record, done))
                if kept[place] and not isinstance(record, Preference | TaskRow):
                    kept[place] = self._asked(one, record)
                    if kept[place]:
                        chosen.append((found, record))
                place += 1
            if number == 0:
                self.counts["read"] += done.counts["read"]
            else:
                done.rejected.clear()  # the first pass found the same
            if number == num_passes - 1:
                formed = list(self._formed(chosen, done))
                done.counts["written"] += len(formed)
                as_found = self.converter.is_ours and self.form is None
                output.append(stored(formed, self.form, done, is_table=output.is_table, as_found=as_found))
                self.counts["written"] += done.counts["written"]
            self._reject(done, rejected)

    def _formed(self, chosen: Sequence[tuple[Found, Record]], done: Done) -> Iterator[tuple[Found, DataRecord]]:
        """Yield kept records in the form to write; those that do not take it are added to `done.rejected`."""
        for found, one in chosen:
            try:
                yield found, in_form(one, self.form)
            except UnusableRecord as error:
                done.rejected.append(Rejected(found.place, str(error), found.shown))

    def _asked(self, one: "_Pass", record: Record) -> bool:
        if one.noting is not None:
            one.noting.note(record)
        for place, keeping in one.keeping:
            if not keeping.keep(record):
                self.counts[f"left_out.{place}.{keeping.name}"] += 1
                return False
        return True

    def _chunks(self, number: int, num_passes: int) -> Iterator[tuple[Chunk, Done]]:
        total = sum(path.stat().st_size for path in self.inputs)
        before = number * total
        for path in self.inputs:
            try:
                for chunk in chunks(path):
                    yield chunk, Done()
                    self.on_progress(before + chunk.passed_bytes, num_passes * total, self.counts)
            except DataError as error:
                head, _, reason = str(error).partition(": ")
                end = Chunk(path, "line", b"", 1, Position(), 0)
                yield end, Done(rejected=[Rejected(head, reason)])
            before += path.stat().st_size

    def _reject(self, done: Done, rejected: Output) -> None:
        """Report unusable records."""
        for one in done.rejected:
            if self.strict:
                raise DataError(f"{one.place}: {one.reason}")
            self.counts["rejected"] += 1
            self.on_rejected(one)
            rejected.append(one.line)

    def _require_room(self) -> None:
        for path in self.inputs:
            if not path.is_file():
                raise DataError(f"{path} cannot be read: there is no such file")
        if self.output.resolve() in {path.resolve() for path in self.inputs}:
            raise DataError(f"{self.output}: it is read and written; give what is written another name")
        if self.output.exists() and not self.force:
            raise DataError(f"{self.output} exists; give another name, or --force to replace it")


@dataclass
class _Pass:
    """The work of one pass through the files."""

    noting: CheckedFilter | None = None
    keeping: list[tuple[int, CheckedFilter]] = field(default_factory=list)


def _passes(filters: Sequence[CheckedFilter]) -> list[_Pass]:
    """Return the passes: a filter that notes sees all records kept by those before it, before it decides on any."""
    passes = [_Pass()]
    for place, one in enumerate(filters):
        if one.notes:
            passes = [one for one in passes if one.keeping or one.noting]
            passes += [_Pass(noting=one), _Pass()]
        passes[-1].keeping.append((place, one))
    return passes


def _learnable(found: Found, record: DataRecord, done: Done) -> bool:
    if not isinstance(record, Preference | TaskRow):
        return True
    done.rejected.append(
        Rejected(found.place, f"filters are asked about replies; {form_of(record)} have none", found.shown)
    )
    return False
