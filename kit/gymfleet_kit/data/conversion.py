"""The work of `gymfleet data convert` and `export`: converting records of one form to another."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from gymfleet_contracts.data_records import DataRecord, Form, form_of
from gymfleet_contracts.trajectory import ScoredTrajectory

from gymfleet_kit.data.chunks import Chunk
from gymfleet_kit.data.converter import UnusableRecord
from gymfleet_kit.data.converting import CheckedConverter, ConverterFailed, converter_of, refusal
from gymfleet_kit.data.outputs import encoded, lines, table_part
from gymfleet_kit.data.reading import Found
from gymfleet_kit.data.replies import conversation_of
from gymfleet_kit.data.work import Done, Rejected, converted, storable

OUT = "out"
"""The name of the only output."""


@dataclass(frozen=True)
class Conversion:
    """Converts records that a converter reads to ours."""

    given: Mapping[str, Any]
    """The converter, in the form of a recipe."""
    form: Form | None
    """The form to write; None writes each record in its own form."""
    is_table: bool

    @cached_property
    def converter(self) -> CheckedConverter:
        """Return the converter."""
        return converter_of(self.given, table="--from")

    def done(self, chunk: Chunk) -> Done:
        """Return the records of a chunk, converted."""
        done = Done()
        kept: list[tuple[Found, DataRecord]] = []
        for found, one in converted(chunk, self.converter, done):
            try:
                kept.append((found, in_form(one, self.form)))
            except UnusableRecord as error:
                done.rejected.append(Rejected(found.place, str(error), found.shown))
        done.counts["written"] = len(kept)
        for _, one in kept:
            done.counts[form_of(one)] += 1
        encode = partial(encoded, form=self.form, is_table=self.is_table)
        done.parts[OUT] = storable(kept, encode, done)
        return done


@dataclass(frozen=True)
class Export:
    """Converts records that one converter reads to the form of another."""

    given: Mapping[str, Any]
    to: Mapping[str, Any]
    is_table: bool

    @cached_property
    def converter(self) -> CheckedConverter:
        """Return the converter that reads."""
        return converter_of(self.given, table="--from")

    @cached_property
    def target(self) -> CheckedConverter:
        """Return the converter that writes."""
        return converter_of(self.to, table="--to")

    def done(self, chunk: Chunk) -> Done:
        """Return the records of a chunk in the other form; losses are counted by name."""
        done = Done()
        kept: list[tuple[Found, dict[str, Any]]] = []
        for found, one in converted(chunk, self.converter, done):
            try:
                kept.append((found, self._written(one, found, done)))
            except UnusableRecord as error:
                done.rejected.append(Rejected(found.place, refusal(self.target, error), found.shown))
        done.counts["written"] = len(kept)
        done.parts[OUT] = storable(kept, table_part if self.is_table else lines, done)
        return done

    def _written(self, one: DataRecord, found: Found, done: Done) -> dict[str, Any]:
        if isinstance(one, ScoredTrajectory) and not self.target.is_ours:
            one = conversation_of(one)
            done.counts["lost.tokens"] += 1
        try:
            written = self.target.write(one)
        except ConverterFailed as error:
            raise ConverterFailed(f"{found.place}: {error}") from error
        for name in written.lost:
            done.counts[f"lost.{name}"] += 1
        return written.record


def in_form(one: DataRecord, form: Form | None) -> DataRecord:
    """Return a record in the given form; an episode can become a conversation. Raises `UnusableRecord`."""
    if form is None or form_of(one) == form:
        return one
    if isinstance(one, ScoredTrajectory) and form == "conversations":
        return conversation_of(one)
    raise UnusableRecord(f"it is one of {form_of(one)}, which do not become {form}")
