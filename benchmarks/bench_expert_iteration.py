"""Learning from a search where sampling finds little: `python -m benchmarks.bench_expert_iteration [--seeds 0 1 2]`.

All methods begin with one model, which has imitated a few demonstrations of BabyAI, and learn a level that it almost
never solves (`hard_level.py`; chosen by the output of `--choose` before the methods were run). Each may take
`--env-steps` environment steps, including those of redrawn groups, branches and replays. Success is measured on
held-out tasks; `--tune` measures on the validation split, by which alone settings are chosen.

A finished run is not run again, and an interrupted run goes on, so the work can be spread over several days.
"""

import argparse
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from gymfleet_cli.recipes import to_toml
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.trajectory import ScoredTrajectory

from benchmarks.bench_methods import uncommitted
from benchmarks.command import BenchmarkCommand
from benchmarks.hard_level import CANDIDATES, CHOSEN, METHODS, Sampled, method, warm_start
from benchmarks.record import Row, record
from benchmarks.training import ROOT, train

SMOKE: Final[dict[str, Any]] = {
    "seeds": [0], "only": ["expert_iteration"], "env_steps": 128, "eval_tasks": 8, "choice_tasks": 2,
    "choice_samples": 2,
    "set_warm_start": [
        "model.scratch.corpus_episodes=40", "stages.demonstrations.num_tasks=24", "stages.sft.epochs=3",
        "rollout.format=plain",  # in which so untrained a model acts at all
    ],
    "set": ["rollout.format=plain"],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """The results of one run."""

    method: str
    seed: int
    success_before: float
    success: float
    interval: tuple[float, float]
    num_tasks: int
    """Number of held-out tasks measured."""
    env_steps: int
    """All environment steps taken to learn, including replays."""
    tokens_trained: int
    total_s: float


def main() -> None:
    """Run the unfinished runs, read the summaries, record; or measure the candidates for the level."""
    parser = BenchmarkCommand(__doc__, smoke=SMOKE)
    parser.add_argument(
        "--choose", action="store_true", help="only show what the start comes to on the candidate levels"
    )
    parser.add_argument("--level", choices=CANDIDATES, default=CHOSEN)
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS), metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the learning")
    parser.add_argument("--env-steps", type=int, default=12_000, help="that each method may take")
    parser.add_argument("--eval-tasks", type=int, default=400, help="held-out tasks of each measurement")
    parser.add_argument("--choice-tasks", type=int, default=32, help="validation tasks of each candidate")
    parser.add_argument("--choice-samples", type=int, default=64, help="episodes of each of them")
    parser.add_argument("--tune", action="store_true", help="measure on the validation split")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="changes of every method")
    parser.add_argument(
        "--set-warm-start", nargs="+", default=[], metavar="KEY=VALUE", help="changes of the warm start"
    )
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "expert_iteration", help="the run directories")
    arguments = parser.options()
    if arguments.publish and (changed := uncommitted()):
        parser.error(f"{changed} is not committed: settings are fixed before anything is run")
    warm = _trained("warm_start", 0, warm_start(arguments), arguments.set_warm_start, arguments)
    if arguments.choose:
        for level in CANDIDATES:
            print(f"{level}: {sampled(warm / 'trajectories' / f'{level}.jsonl')}")
        return
    runs: list[Run] = []
    try:
        for seed in arguments.seeds:
            for name in arguments.only:
                recipe = method(name, warm / "model", arguments)
                runs.append(run_of(name, seed, _trained(name, seed, recipe, arguments.set, arguments)))
                print(f"{name}, seed {seed}: {runs[-1].success:.1%}", flush=True)
    finally:  # Ctrl-C leaves what was finished
        record("expert_iteration", rows(runs), arguments, [asdict(run) for run in runs])


def _trained(name: str, seed: int, recipe: Recipe, changes: Sequence[str], arguments: argparse.Namespace) -> Path:
    """Return the directory of a run of a changed recipe; make or resume the run if it is not finished.

    Its name has a hash of the recipe and the changes: with others, a run begins in another directory.
    """
    told = hashlib.sha256("\n".join([to_toml(recipe), *changes]).encode()).hexdigest()[:6]
    directory: Path = arguments.runs.resolve() / f"{name}-{seed}-{told}"
    train(directory, recipe, seed, fresh=arguments.smoke, changes=changes)
    return directory


def sampled(path: Path) -> Sampled:
    """Return the success rates over the episodes of a file, in which every task has equally many."""
    tasks: defaultdict[str, list[bool]] = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        trajectory = ScoredTrajectory.model_validate_json(line).trajectory
        tasks[trajectory.task.task_id].append(trajectory.success)
    played = [success for own in tasks.values() for success in own]
    return Sampled(
        num_tasks=len(tasks), samples=len(played) // len(tasks), one=sum(played) / len(played),
        any=sum(map(any, tasks.values())) / len(tasks),
    )  # fmt: skip


def run_of(name: str, seed: int, directory: Path) -> Run:
    """Return the results of a finished run."""
    summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    before, after = (summary["evals"][name] for name in ("before", "after"))
    return Run(
        method=name, seed=seed, success_before=before["success"], success=after["success"],
        interval=tuple(after["interval"]), num_tasks=after["num_episodes"],
        env_steps=sum(count for key, count in summary["counts"].items() if key.startswith("env_steps.")),
        tokens_trained=summary["tokens_trained"], total_s=round(summary["seconds"]["total"], 1),
    )  # fmt: skip


def rows(runs: Iterable[Run]) -> list[Row]:
    """Return the figures of each method over its seeds."""
    found: list[Row] = []
    for name, own in by_method(runs).items():
        low, high = ends(own)
        found += [
            Row.of(f"{name}: success before", sum(run.success_before for run in own) / len(own), ""),
            Row.of(f"{name}: success, mean of {len(own)} seeds", sum(run.success for run in own) / len(own), ""),
            Row.of(f"{name}: lowest lower end of the intervals", low, ""),
            Row.of(f"{name}: highest upper end of the intervals", high, ""),
            Row.of(f"{name}: environment steps", sum(run.env_steps for run in own) / len(own), "steps"),
            Row.of(f"{name}: tokens trained on", sum(run.tokens_trained for run in own) / len(own), "tokens"),
        ]
    return found


def by_method(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return the runs of each method, in the order in which methods were run."""
    found: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        found[run.method].append(run)
    return dict(found)


def ends(runs: Iterable[Run]) -> tuple[float, float]:
    """Return the lowest and the highest end of the seeds' intervals: wide enough for tasks and for seeds."""
    intervals = [run.interval for run in runs]
    return min(low for low, _ in intervals), max(high for _, high in intervals)


if __name__ == "__main__":
    main()
