"""Credit by turn against credit by episode, at equal environment steps:
`python -m benchmarks.bench_credit [--only NAME ...] [--seeds 0 1 2]`.

GRPO, GiGPO and Monte-Carlo credit by forks on mazes, where episodes come to the same states again and again. All
methods of a seed begin with the same random weights and are warmed up on the same demonstrations. Every environment
step that was taken for training counts, those of continuations too: a run ends with the training step by which
`--env-steps` were taken, and success is that of its last measurement.
"""

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Final

from benchmarks.bench_variants import Measured, curve
from benchmarks.command import BenchmarkCommand
from benchmarks.record import Row, record

ROOT: Final = Path(__file__).parents[1]
_MAZE: Final = (
    "environments.babyai.name=maze", "environments.maze.level=small", "rollout.limits.max_turns=12",
    "rollout.limits.max_context_tokens=2000", "inference.max_model_len=2048",
)  # fmt: skip
_FORKS: Final = (
    "rollout.strategy.use=forks", "rollout.strategy.continuations=2", "rollout.strategy.every=2",
    "rollout.evaluator.goal.success=1.0", "rollout.evaluator.goal.failure=0.0", "rollout.evaluator.format.weight=0.2",
)  # fmt: skip
"""With the reward of the recipe."""
METHODS: Final[Mapping[str, Sequence[str]]] = {
    "grpo": _MAZE,
    "gigpo": (*_MAZE, "stages.reinforce.algorithm=gigpo"),
    "monte_carlo": (
        *_MAZE, *_FORKS, "stages.reinforce.algorithm=monte_carlo", "stages.reinforce.group_size=2",
    ),
}  # fmt: skip
SMOKE: Final[dict[str, Any]] = {
    "seeds": [0], "only": ["monte_carlo"], "env_steps": 10_000, "every": 1, "eval_tasks": 8,
    "set": [
        "model.scratch.corpus_episodes=40", "stages.demonstrations.num_tasks=16", "stages.sft.epochs=2",
        "stages.reinforce.steps=1", "stages.reinforce.groups_per_step=4", "rollout.limits.max_turns=6",
        "stages.before.num_tasks=8", "stages.after.num_tasks=8",
    ],
}  # fmt: skip


def main() -> None:
    """Run the methods, read what they measured, record."""
    parser = BenchmarkCommand(__doc__, smoke=SMOKE)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these methods alone")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--env-steps", type=int, default=30_000, help="environment steps, after which all are compared")
    parser.add_argument("--every", type=int, default=2, help="training steps between two measurements")
    parser.add_argument("--eval-tasks", type=int, default=200, help="held-out tasks of each measurement")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="changes of every method")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="directory of the run directories")
    parser.add_argument("--keep", action="store_true", help="use runs that are already finished")
    arguments = parser.options()
    if unknown := sorted(set(arguments.only) - set(METHODS)):
        parser.error(f"--only {', '.join(unknown)}: known are {', '.join(METHODS)}")
    rows = [
        row
        for name, changes in METHODS.items()
        if not arguments.only or name in arguments.only
        for row in _rows(name, [_run(name, changes, seed, arguments) for seed in arguments.seeds])
    ]
    record("credit", rows, arguments)


def _run(name: str, changes: Sequence[str], seed: int, arguments: argparse.Namespace) -> list[Measured]:
    """Train by one method from one seed, and return what was measured on the way, from before the first step on."""
    run_dir = arguments.runs / f"credit-{name}-{seed}"
    command = [
        str(Path(sys.executable).with_name("gymfleet")), "train", str(ROOT / "recipes" / "quickstart.toml"),
        "--run-dir", str(run_dir), "--seed", str(seed),
    ]  # fmt: skip
    if not (arguments.keep and (run_dir / "summary.json").is_file()):
        command.append("--fresh")
    on_the_way = (
        f"stages.reinforce.max_env_steps={arguments.env_steps}",
        f"stages.reinforce.measure.every_steps={arguments.every}",
        f"stages.reinforce.measure.num_tasks={arguments.eval_tasks}",
    )
    for change in (*changes, *on_the_way, *arguments.set):
        command += ["--set", change]
    subprocess.run(command, check=True, cwd=ROOT)
    return curve((run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines())


def _rows(name: str, runs: Sequence[Sequence[Measured]]) -> list[Row]:
    ends = [measured[-1] for measured in runs]
    return [
        Row.of(f"{name}: success before reinforcement", mean(measured[0].success for measured in runs), ""),
        Row.of(f"{name}: success at equal steps, mean of {len(ends)} seeds", mean(one.success for one in ends), ""),
        Row.of(f"{name}: the worst of the seeds", min(one.success for one in ends), ""),
        Row.of(f"{name}: the best of the seeds", max(one.success for one in ends), ""),
        Row.of(f"{name}: environment steps by then", mean(one.env_steps for one in ends), "steps"),
    ]


if __name__ == "__main__":
    main()
