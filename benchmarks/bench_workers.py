"""One training process against two under Ray Train, and how soon a run goes on when one of two is killed.

`recipes/tiny-distributed.toml` is trained three times: by one process, by two workers, and by two workers of which the
second is killed with -9 after the second step. A recovery is over when both successors have joined; the end of the
step that they take up is measured beside it. On one machine without a GPU two workers share the cores that one had.
"""

import argparse
import asyncio
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
from benchmarks.record import Row, record

RECIPE: Final = ROOT / "recipes" / "tiny-distributed.toml"
STEPS: Final = 6
KILL_AFTER: Final = 2
THREADS: Final = 2
"""Of one process; two workers get one each."""
GOAL_S: Final = 15.0
LIMIT_S: Final = 900.0


def lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file that is being written; others are left out."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    found = (line[line.index("{") :] for line in text.splitlines() if "{" in line and line.endswith("}"))
    return [json.loads(line) for line in found]


def steps(run_dir: Path) -> list[dict[str, Any]]:
    """The training steps that ended."""
    return [line for line in lines(run_dir / "metrics.jsonl") if line["kind"] == "rl_step"]


def started(run_dir: Path) -> list[dict[str, Any]]:
    """The workers that joined, as the trainer's log says."""
    logs = sorted((run_dir / ".fleet" / "logs").glob("trainer*.log"))
    return [line for log in logs for line in lines(log) if line.get("event") == "worker.started"]


async def trained(run_dir: Path, workers: int, *, kill: bool) -> dict[str, float]:
    """Train; seconds of an update (median, the first one left out), and of the recovery if a worker is killed."""
    overrides = (f"trainer.workers={workers}", f"rl.steps={STEPS}", "eval.num_tasks=20")
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
            raise RuntimeError(f"the run in {run_dir} ended with code {process.returncode}; see {run_dir}.log")
    ended = steps(run_dir)
    if [line["step"] for line in ended] != list(range(1, STEPS + 1)):
        raise RuntimeError(f"steps in {run_dir}: {[line['step'] for line in ended]}")
    figures["update"] = statistics.median(line["update_s"] for line in ended[1:])
    return figures


def rows(one: dict[str, float], two: dict[str, float], recovery: dict[str, float]) -> Sequence[Row]:
    """The figures."""
    return [
        Row.of("one process of two threads: an update of 128 episodes", one["update"], "s"),
        Row.of("two workers of one thread: an update of 128 episodes", two["update"], "s", baseline=one["update"]),
        Row.of("a worker killed: both successors joined", recovery["joined"], "s", goal=GOAL_S, lower_is_better=True),
        Row.of("a worker killed: the next training step ended", recovery["step"], "s"),
    ]


async def measured(directory: Path) -> Sequence[Row]:
    """All three runs, one after the other."""
    one = await trained(directory / "one", 1, kill=False)
    two = await trained(directory / "two", 2, kill=False)
    return rows(one, two, await trained(directory / "killed", 2, kill=True))


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", type=Path, default=ROOT / "runs" / "bench-workers", help="directory of the three runs"
    )
    record("workers", uvloop.run(measured(parser.parse_args().runs)))


if __name__ == "__main__":
    main()
