"""The output of commands over data files: their progress, the rejected records, and a final account."""

import time
from collections.abc import Mapping
from typing import Final, Self

from gymfleet_kit.data.inspecting import HALLUCINATED, OFFERED, quantiles, values
from gymfleet_kit.data.work import Rejected
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from gymfleet_cli.console import err, one_line, out, plain

_SHOWN: Final = 10
"""The most rejected records to show; a file has them all."""
_LINE_EVERY_S: Final = 10.0
_QUANTILES: Final = (0.0, 0.5, 0.95, 1.0)


class DataDisplay:
    """A bar on a terminal, a line every ten seconds elsewhere, and the first rejected records."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._started = time.monotonic()
        self._told_at = self._started
        self._num_rejected = 0
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
            TimeRemainingColumn(), console=err, disable=not err.is_terminal, transient=True,
        )  # fmt: skip
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    @property
    def seconds(self) -> float:
        """Return the time taken so far."""
        return time.monotonic() - self._started

    def progress(self, done_bytes: int, total_bytes: int, counts: Mapping[str, int]) -> None:
        """Show the progress."""
        if err.is_terminal:
            if self._task is None:
                self._task = self._bar.add_task(self._what, total=total_bytes)
            self._bar.update(self._task, completed=done_bytes)
        elif time.monotonic() - self._told_at >= _LINE_EVERY_S:
            self._told_at = time.monotonic()
            share = done_bytes / max(1, total_bytes)
            err.print(plain(f"{self._what}: {share:.0%}, {counts.get('read', 0):,} records, {self.seconds:.0f} s"))

    def rejected(self, one: Rejected) -> None:
        """Show an unusable record, if it is one of the first."""
        self._num_rejected += 1
        if self._num_rejected <= _SHOWN:
            err.print(plain(one_line(f"rejected: {one.place}: {one.reason}")), soft_wrap=True)
        elif self._num_rejected == _SHOWN + 1:
            err.print("rejected: more, which are not shown here")


def account(counts: Mapping[str, int], seconds: float, size_bytes: int, *, resumed: bool = False) -> None:
    """Print an account of the work done."""
    parts = [
        f"{counts.get('read', 0):,} read",
        f"{counts.get('written', 0):,} written",
        f"{counts.get('rejected', 0):,} rejected",
    ]
    rate = "resumed" if resumed else f"{size_bytes / 1e6 / max(seconds, 1e-9):.1f} MB/s"
    out.print(plain(f"{', '.join(parts)}; {seconds:.1f} s, {rate}"), soft_wrap=True)
    told = {name: count for name, count in counts.items() if name not in ("read", "written", "rejected") and count}
    for name, count in sorted(told.items()):
        out.print(plain(f"  {name.replace('.', ' ')}: {count:,}"), soft_wrap=True)


def facts_table(counts: Mapping[str, int]) -> Table:
    """Return the counts of an inspection as a table."""
    table = Table(show_header=False)
    table.add_row("records", f"{counts.get('read', 0):,}")
    for name in ("form", "env", "split", "success", "status", "label", "data_source", "calls"):
        if found := values(counts, name):
            table.add_row(name, plain("\n".join(f"{value}  {count:,}" for value, count in found.items())))
    for name, told in (("turns", "replies"), ("chars", "characters"), ("longest", "longest message")):
        if (spread := quantiles(counts, name, _QUANTILES)) is not None:
            least, median, most_of, most = spread
            table.add_row(told, f"{least:,} to {most:,}, median {median:,}, 95 % at most {most_of:,}")
    calls = values(counts, "calls")
    if listed := calls.get(OFFERED, 0) + calls.get(HALLUCINATED, 0):
        table.add_row(
            "hallucinated tools", f"{calls.get(HALLUCINATED, 0) / listed:.1%} of the calls where tools are listed"
        )
    table.add_row("cannot be used", f"{counts.get('rejected', 0):,}")
    return table
