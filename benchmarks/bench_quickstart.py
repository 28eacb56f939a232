"""A recipe over several seeds: `python -m benchmarks.bench_quickstart [--recipe NAME] [--seeds 0 1 2] [--keep]`.

Each run is `gymfleet train` with another seed; its record is `summary.json`.
With `--keep`, a finished run directory is measured as it stands.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.command import BenchmarkCommand
from benchmarks.record import Row, record


@dataclass(frozen=True)
class Goals:
    """The goals of a recipe, in addition to a statistically significant gain."""

    gain: float
    seconds: float


GOALS: Final = {"quickstart": Goals(gain=0.30, seconds=600.0), "dataset": Goals(gain=0.10, seconds=300.0)}
ROOT = Path(__file__).parents[1]
SMOKE: Final[dict[str, Any]] = {"seeds": [0], "set": [
    "model.scratch.corpus_episodes=40", "stages.demonstrations.num_tasks=24", "stages.sft.epochs=3",
    "stages.reinforce.steps=2", "stages.reinforce.groups_per_step=4", "stages.reinforce.group_size=4",
    "stages.before.num_tasks=40", "stages.after.num_tasks=40",
]}  # fmt: skip


def main() -> None:
    """Run, read the summaries, record."""
    parser = BenchmarkCommand(__doc__, smoke=SMOKE)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--recipe", default="quickstart", help="a name in recipes/")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="changes of the recipe")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="directory of the run directories")
    parser.add_argument("--keep", action="store_true", help="use runs that are already finished")
    arguments = parser.options()
    name: str = arguments.recipe
    rows = [row for seed in arguments.seeds for row in _rows(seed, _run(seed, arguments), GOALS.get(name))]
    record(name, rows, arguments)


def _run(seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    name = arguments.recipe
    run_dir = arguments.runs / f"bench-{name}-{seed}"
    gymfleet = str(Path(sys.executable).with_name("gymfleet"))
    recipe = str(ROOT / "recipes" / f"{name}.toml")
    command = [gymfleet, "train", recipe, "--run-dir", str(run_dir), "--seed", str(seed)]
    if not (arguments.keep and (run_dir / "summary.json").is_file()):
        command.append("--fresh")
    for change in arguments.set:
        command += ["--set", change]
    subprocess.run(command, check=True, cwd=ROOT)
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    return summary


def _rows(seed: int, summary: dict[str, Any], goals: Goals | None) -> list[Row]:
    seconds = summary["seconds"]
    steps = summary["steps"]
    gap = summary["interval_after"][0] - summary["interval_before"][1]
    name = f"seed {seed}"
    shares = [
        Row.of(f"{name}: {part} per training step", spent / steps, "s") for part, spent in seconds["steps"].items()
    ]
    return [
        Row.of(f"{name}: held-out success before", summary["success_before"], ""),
        Row.of(f"{name}: held-out success after", summary["success_after"], ""),
        Row.of(f"{name}: gain", summary["gain"], "", goal=goals.gain if goals else None),
        Row.of(f"{name}: gap between the 95 % intervals", gap, "", goal=0.0),
        Row.of(f"{name}: held-out episodes of each measurement", float(summary["num_eval_episodes"]), "", goal=200.0),
        Row.of(
            f"{name}: training and measuring",
            seconds["total"],
            "s",
            goal=goals.seconds if goals else None,
            lower_is_better=True,
        ),
        Row.of(
            f"{name}: worst mean |difference| in log-probability of all publishes",
            1e6 * summary["parity_mean_abs"],
            "1e-6 nat",
            goal=1000.0,
            lower_is_better=True,
        ),
        *shares,
    ]


if __name__ == "__main__":
    main()
