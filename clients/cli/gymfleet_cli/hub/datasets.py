"""Records as a data set on the hub: tables that `datasets.load_dataset` finds, and a card that describes them."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from gymfleet_contracts.conversation import Conversation
from gymfleet_contracts.data_records import DataRecord, Form, form_of
from gymfleet_contracts.faults import faults
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.data.columns import record_of
from gymfleet_kit.data.outputs import Output
from gymfleet_kit.data.reading import DataError, records
from pydantic import ValidationError

DATA_SUFFIXES: Final = (".parquet", ".jsonl", ".json")
_TABLE: Final = re.compile(r"data/([a-z][a-z0-9_]{0,31})\.parquet")
_AT_ONCE: Final = 256


@dataclass(slots=True)
class Counts:
    """The counts on the card."""

    form: Form | None = None
    num_records: int = 0
    num_solved: int = 0
    num_failed: int = 0
    num_rewarded: int = 0
    environments: Counter[str] = field(default_factory=Counter)

    def note(self, record: DataRecord) -> None:
        """Count a record."""
        self.num_records += 1
        if isinstance(record, ScoredTrajectory):
            trajectory = record.trajectory
            self.environments[trajectory.task.env] += 1
            self._outcome(trajectory.success, record.reward is not None)
            return
        if record.task is not None:
            self.environments[record.task.env] += 1
        if isinstance(record, Conversation) and record.success is not None:
            self._outcome(record.success, record.reward is not None)

    def _outcome(self, solved: bool, rewarded: bool) -> None:
        self.num_solved += solved
        self.num_failed += not solved
        self.num_rewarded += rewarded


def write_table(source: Path, table: Path) -> Counts:
    """Write the records of a file as a Parquet table, a few at a time. Raises `DataError`."""
    from gymfleet_kit.data.arrow import encoded  # noqa: PLC0415 - pyarrow is heavy, and not everybody has it

    counts = Counts()
    output = Output(table)
    output.begin()
    found = _records(source)
    while some := list(islice(found, _AT_ONCE)):
        counts.form = counts.form or form_of(some[0])
        for record in some:
            counts.note(record)
        try:
            output.append(encoded(some, counts.form))
        except ValueError as error:
            raise DataError(f"{source}: {error}") from None
    if counts.form is None:
        raise DataError(f"{source} has no records")
    output.finish(counts.form)
    return counts


def other_splits(paths: Sequence[str]) -> list[str]:
    """Return the splits for which a repository has a table."""
    return [found[1] for path in paths if (found := _TABLE.fullmatch(path)) is not None]


def card(name: str, split: str, counts: Counts, others: Sequence[str]) -> str:
    """Return README.md: the tables of all splits for `load_dataset`, counts of the pushed one, and the schema."""
    from gymfleet_kit.data.arrow import SCHEMAS  # noqa: PLC0415

    splits = sorted({split, *others})
    lines = ["---", "configs:", "- config_name: default", "  data_files:"]
    for one in splits:
        lines += [f"  - split: {one}", f"    path: data/{one}.parquet"]
    lines += ["tags:", "- gymfleet", "---", f"# {name}", "", f"Records of gymfleet, in the form `{counts.form}`.", ""]
    lines += [f"| split `{split}` | number |", "|---|---|", f"| records | {counts.num_records} |"]
    lines += [f"| of {env} | {number} |" for env, number in sorted(counts.environments.items())]
    if counts.num_solved + counts.num_failed:
        lines += [f"| solved | {counts.num_solved} |", f"| not solved | {counts.num_failed} |"]
        lines += [f"| with a reward | {counts.num_rewarded} |"]
    lines += ["", "| column | type |", "|---|---|"]
    schema = SCHEMAS[counts.form or "conversations"]
    lines += [f"| `{column.name}` | {_short(str(column.type))} |" for column in schema]
    return "\n".join([*lines, ""])


def _records(source: Path) -> Iterator[DataRecord]:
    for place, raw in records(source):
        try:
            yield record_of(raw)
        except ValidationError as error:
            raise DataError(f"{place}: {faults(error, most=2)}") from None
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{place}: no record of ours: {type(error).__name__}: {error}") from None


def _short(kind: str) -> str:
    """Return a type without the fields of its structures."""
    return re.sub(r"struct<.*>", "struct", kind).replace("|", "\\|")
