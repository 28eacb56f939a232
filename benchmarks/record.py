"""The output of every benchmark: a table on the screen, and a file at the place given on its command line."""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.sources import digest

RESULTS: Final = Path(__file__).parent / "results"
"""The published figures, shown in the docs."""
OWN_RESULTS: Final = Path(__file__).parents[1] / "runs" / "benchmarks"
"""The figures of your own benchmark runs; git ignores them."""
_ARGUMENTS: Final = tuple(sys.argv)
"""The original arguments: some engines overwrite `sys.argv`."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `baseline` was measured in the same run; `ratio` is value over baseline."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    ratio: float | None = None
    goal: float | None = None
    met: bool | None = None

    @classmethod
    def of(
        cls,
        name: str,
        value: float,
        unit: str,
        *,
        baseline: float | None = None,
        goal: float | None = None,
        lower_is_better: bool = False,
    ) -> Self:
        """Return a row; work out the fields that follow from the others."""
        return cls(
            name=name,
            value=round(value, 4),
            unit=unit,
            baseline=None if baseline is None else round(baseline, 4),
            ratio=round(value / baseline, 4) if baseline else None,
            goal=goal,
            met=None if goal is None else (value <= goal if lower_is_better else value >= goal),
        )


def record(name: str, rows: Sequence[Row], options: argparse.Namespace, runs: Sequence[Mapping[str, Any]] = ()) -> None:
    """Print the rows, and write them with hardware, commit, command and the hash of the measured sources.

    `options` are those of a `BenchmarkCommand`: a smoke run writes nothing. `runs` are the data behind the rows, if the
    file should have them too.
    """
    document = {
        "hardware": hardware(),
        "commit": commit_of(Path(__file__).parents[1]),
        "command": _command(),
        "sources": digest(name),
        "rows": [asdict(row) for row in rows],
        **({"runs": list(runs)} if runs else {}),
    }
    print(f"{name}: {document['hardware']}, commit {document['commit']}")
    print(_table(rows))
    if options.smoke:
        return
    directory = RESULTS if options.publish else OWN_RESULTS
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"written to {path}" + ("; `make tables` puts it into the docs" if options.publish else ""))


def hardware() -> str:
    """Return the GPU (of a benchmark that uses PyTorch), processor, cores that this process may use, and memory."""
    torch = sys.modules.get("torch")
    gpu = "" if torch is None or not torch.cuda.is_available() else f"{torch.cuda.get_device_name()}, "
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{gpu}{model}, {len(os.sched_getaffinity(0))} cores, {memory_gib:.0f} GiB"


def commit_of(repository: Path) -> str:
    """Return the repository's commit, marked if files differ from it other than what benchmarks write themselves."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, cwd=repository)
        return done.stdout.strip()

    commit = git("rev-parse", "--short", "HEAD") or "unknown"
    changed = git("status", "--porcelain", "--", ".", ":(exclude)benchmarks/results")
    return f"{commit}+changes" if changed else commit


def _command() -> str:
    module = getattr(sys.modules["__main__"], "__spec__", None)
    # Directories on the measuring machine mean nothing elsewhere.
    given = [Path(one).name if Path(one).is_absolute() else one for one in _ARGUMENTS[1:]]
    return shlex.join(["python", "-m", module.name if module else Path(_ARGUMENTS[0]).stem, *given])


def _table(rows: Sequence[Row]) -> str:
    head = ("", "value", "unit", "baseline", "ratio", "goal", "met")
    lines = [head, *(tuple(cell(value, missing="-", no="NO") for value in asdict(row).values()) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def cell(value: object, *, missing: str, no: str) -> str:
    """Format one value of a row for a table; `missing` stands for a missing value, `no` for a missed goal."""
    if value is None:
        return missing
    if isinstance(value, bool):
        return "yes" if value else no
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
