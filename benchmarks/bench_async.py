"""Playing while training against taking turns: `python -m benchmarks.bench_async [--staleness 0 1 2] [--seeds 0 1 2]`.

The environment is BabyAI with steps that wait for lognormally distributed times, without using a processor. With
`max_staleness = 0`, a training step's episodes end with the slowest, and only then does training begin. With more,
groups of the next steps are played meanwhile, and weights are replaced while episodes run. All variants of a seed train
for equally many steps from the same demonstrations; variants that take turns have both processors for either half.

An overlapping run must not gain its speed by a different choice of episodes: `passed over` is the share of groups that
were asked for and never learned from, and `slow` is the share of the slowest tenth of tasks among the episodes that the
run keeps (two groups of each step).
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Final

from gymfleet_contracts.trajectory import ScoredTrajectory

from benchmarks.command import BenchmarkCommand
from benchmarks.record import Row, record

ROOT: Final = Path(__file__).parents[1]
_ENVIRONMENT: Final = Path(__file__).with_name("waiting_environment.py")
SMOKE: Final[dict[str, Any]] = {
    "seeds": [0], "staleness": [1], "steps": 2, "groups": 4, "eval_tasks": 8, "median_s": 0.01,
    "set": [
        "model.scratch.corpus_episodes=40", "stages.demonstrations.num_tasks=24", "stages.sft.epochs=3",
        "stages.reinforce.group_size=4",
    ],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """The results of one run."""

    samples_per_s: float
    """Episodes learned from, divided by the seconds of the stage."""
    before: float
    after: float
    passed_over: float
    """Share of groups that were asked for but not learned from."""
    slow: float
    staleness: float


def main() -> None:
    """Run the grid, read the results of the runs, record them."""
    parser = BenchmarkCommand(__doc__, smoke=SMOKE)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=20, help="training steps of each run")
    parser.add_argument("--groups", type=int, default=16, help="groups of each step")
    parser.add_argument("--eval-tasks", type=int, default=200, help="held-out tasks of the measurements")
    parser.add_argument("--median-s", type=float, default=0.25, help="what a step of the median task waits")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="changes of every run")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="directory of the run directories")
    parser.add_argument("--keep", action="store_true", help="use runs that are already finished")
    arguments = parser.options()
    found = {
        staleness: [run_of(staleness, seed, arguments) for seed in arguments.seeds] for staleness in arguments.staleness
    }
    record("async", rows(found), arguments)


def run_of(staleness: int, seed: int, arguments: argparse.Namespace) -> Run:
    """Train with one staleness from one seed, and return the results."""
    directory = arguments.runs / f"async-{staleness}-{seed}"
    command = [
        str(Path(sys.executable).with_name("gymfleet")), "train", str(ROOT / "recipes" / "quickstart.toml"),
        "--env", str(_ENVIRONMENT), "--run-dir", str(directory), "--seed", str(seed), "--fresh",
    ]  # fmt: skip
    for change in (
        "environments.babyai.name=waiting", f"environments.waiting.options.median_s={arguments.median_s}",
        f"stages.before.num_tasks={arguments.eval_tasks}", f"stages.after.num_tasks={arguments.eval_tasks}",
        f"stages.reinforce.steps={arguments.steps}", f"stages.reinforce.groups_per_step={arguments.groups}",
        "stages.reinforce.max_wall_s=3600", f"stages.reinforce.max_staleness={staleness}", *arguments.set,
    ):  # fmt: skip
        command += ["--set", change]
    if not (arguments.keep and (directory / "summary.json").is_file()):
        subprocess.run(command, check=True, cwd=ROOT)
    summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [entry for entry in map(json.loads, lines) if entry["kind"] == "rl_step"]
    episodes = (directory / "trajectories" / "reinforce.jsonl").read_text(encoding="utf-8").splitlines()
    played = [ScoredTrajectory.model_validate_json(line).trajectory for line in episodes]
    return Run(
        samples_per_s=sum(step["episodes"] for step in steps) / summary["seconds"]["stages"]["reinforce"],
        before=summary["evals"]["before"]["success"],
        after=summary["evals"]["after"]["success"],
        passed_over=1 - summary["groups"]["trained"] / (arguments.steps * arguments.groups),
        slow=mean(any(turn.info.get("slow") for turn in one.turns) for one in played),
        staleness=mean(step["staleness_max"] for step in steps),
    )


def rows(found: dict[int, list[Run]]) -> list[Row]:
    """Return the figures of each staleness; the first is the baseline of the others."""
    made: list[Row] = []
    first: Sequence[Run] = next(iter(found.values()))
    base = mean(run.samples_per_s for run in first)
    for staleness, runs in found.items():
        name = f"max_staleness = {staleness}"
        speed = mean(run.samples_per_s for run in runs)
        baseline = None if runs is first else base
        made += [
            Row.of(f"{name}: episodes learned from", speed, "1/s", baseline=baseline),
            Row.of(f"{name}: success before, mean of {len(runs)} seeds", mean(run.before for run in runs), ""),
            Row.of(f"{name}: success after", mean(run.after for run in runs), ""),
            Row.of(
                f"{name}: groups passed over",
                mean(run.passed_over for run in runs),
                "",
                goal=0.02,
                lower_is_better=True,
            ),
            Row.of(f"{name}: episodes of slow tasks, of those kept", mean(run.slow for run in runs), ""),
            Row.of(
                f"{name}: staleness of the oldest episode of a step", mean(run.staleness for run in runs), "versions"
            ),
        ]
        if baseline is not None:
            made.append(Row.of(f"{name}: speed-up", speed / base, "x", goal=1.5))
    return made


if __name__ == "__main__":
    main()
