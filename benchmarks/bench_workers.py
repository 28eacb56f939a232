"""One training process against two under Ray Train, and the time to recover when one of two is killed.

`recipes/tiny-distributed.toml` is trained three times: by one process, by two workers, and by two workers of which the
second is killed with -9 after the second step. A recovery is over when both successors have joined; the end of the
step that they take up is measured as well. On one machine without a GPU, two workers share the cores that one had.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.bench_stack import POLL_S, ROOT, training
from benchmarks.command import BenchmarkCommand
from benchmarks.record import Row, record

RECIPE: Final = ROOT / "recipes" / "tiny-distributed.toml"
KILL_AFTER: Final = 2
SMOKE: Final[dict[str, Any]] = {"only": ["killed"], "steps": 3, "set": [
    "model.scratch.corpus_episodes=40", "stages.demonstrations.num_tasks=16", "stages.sft.epochs=1",
    "stages.reinforce.groups_per_step=2", "stages.reinforce.group_size=4", "stages.before.num_tasks=4",
    "stages.after.num_tasks=4",
]}  # fmt: skip
MEASUREMENTS: Final = ("stages.before.num_tasks=20", "stages.after.num_tasks=20")
THREADS: Final = 2
"""Threads of one process; two workers get one each."""
GOAL_S: Final = 15.0
LIMIT_S: Final = 900.0
_SHOWN_CHARS: Final = 3000
"""How much of the end of a failed run's log is shown."""
RUNS: Final = {"one": 1, "two": 2, "killed": 2}
"""The runs and their workers."""


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON lines of a file that is being written; other lines are left out."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    found: list[dict[str, Any]] = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):  # Ray's own lines have braces, too
            found.append(json.loads(line[line.index("{") :]))
    return found


def steps(run_dir: Path) -> list[dict[str, Any]]:
    """Return the training steps that ended."""
    return [line for line in lines(run_dir / "metrics.jsonl") if line["kind"] == "rl_step"]


def started(run_dir: Path) -> list[dict[str, Any]]:
    """Return the workers that joined, from the trainer's log."""
    logs = sorted((run_dir / ".fleet" / "logs").glob("trainer*.log"))
    return [line for log in logs for line in lines(log) if line.get("event") == "worker.started"]


async def trained(
    run_dir: Path, workers: int, num_steps: int, changes: Sequence[str], *, kill: bool
) -> dict[str, float]:
    """Train; return seconds of an update (median without the first), and of the recovery if a worker is killed."""
    overrides = (*MEASUREMENTS, *changes, f"trainer.workers={workers}", f"stages.reinforce.steps={num_steps}")
    figures: dict[str, float] = {}
    shutil.rmtree(run_dir, ignore_errors=True)  # with its logs, which are read
    with training(RECIPE, run_dir, overrides, threads=THREADS) as process:
        deadline = time.monotonic() + LIMIT_S
        killed_at, before = 0.0, 0
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the run in {run_dir} does not end within {LIMIT_S:g} s")
            await asyncio.sleep(POLL_S)
            now, done = time.time(), len(steps(run_dir))
            if kill and not killed_at and done >= KILL_AFTER:
                (second,) = [one for one in started(run_dir) if one["rank"] == 1]
                os.kill(second["pid"], signal.SIGKILL)
                killed_at, before = now, done
            if killed_at and "joined" not in figures and len(started(run_dir)) == 2 * workers:
                figures["joined"] = now - killed_at
            if killed_at and "step" not in figures and done > before:
                figures["step"] = now - killed_at
        if process.returncode != 0:
            told = run_dir.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"the run in {run_dir} ended with code {process.returncode}: {told[-_SHOWN_CHARS:]}")
    ended = steps(run_dir)
    if [line["step"] for line in ended] != list(range(1, num_steps + 1)):
        raise RuntimeError(f"steps in {run_dir}: {[line['step'] for line in ended]}")
    figures["update"] = statistics.median(line["update_s"] for line in ended[1:])
    return figures


async def measured(options: argparse.Namespace) -> Sequence[Row]:
    """Carry out the requested runs, one after the other."""
    rows = []
    update_s = None
    for name in options.only:
        figures = await trained(options.runs / name, RUNS[name], options.steps, options.set, kill=name == "killed")
        if name == "one":
            update_s = figures["update"]
            rows.append(Row.of("one process of two threads: an update of 128 episodes", update_s, "s"))
        if name == "two":
            what = "two workers of one thread: an update of 128 episodes"
            rows.append(Row.of(what, figures["update"], "s", baseline=update_s))
        if name == "killed":
            what = "a worker killed: both successors joined"
            rows.append(Row.of(what, figures["joined"], "s", goal=GOAL_S, lower_is_better=True))
            rows.append(Row.of("a worker killed: the next training step ended", figures["step"], "s"))
    return rows


def main() -> None:
    """Measure and record."""
    parser = BenchmarkCommand(__doc__, smoke=SMOKE)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "bench-workers", help="directory of the runs")
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), help="which of the three")
    parser.add_argument("--steps", type=int, default=6, help="of each run")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="changes of the recipe")
    options = parser.options()
    record("workers", uvloop.run(measured(options)), options)


if __name__ == "__main__":
    main()
