"""A process reward model in addition to the outcome reward, at equal environment steps:
`python -m benchmarks.bench_process_reward [--seeds 0 1 2]`.

For each seed, `recipes/reward-models.toml` warms up a policy, lets it play, and trains a process reward model on its
episodes. From that policy, GRPO goes on twice, as in `recipes/methods/grpo.toml`: by the outcome alone, and by the
outcome and the product of the turns' probabilities. The environment steps of the reward model's episodes count for the
latter, so the former may take that many more. No time limit ends either training.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Final

from benchmarks.command import BenchmarkCommand
from benchmarks.record import Row, record

ROOT: Final = Path(__file__).parents[1]
PROCESS: Final = (
    "reward.process_reward_model.model=steps", "reward.process_reward_model.activation=sigmoid",
    "reward.process_reward_model.together=product", "reward.process_reward_model.weight=0.5",
)  # fmt: skip
REWARDS: Final = ("outcome", "process")
SMOKE: Final[dict[str, Any]] = {
    "seeds": [0], "only": ["process"], "env_steps": 60, "played": 6, "eval_tasks": 8,
    "set_first": [
        "model.scratch.corpus_episodes=40", "stages.demonstrations.num_tasks=16", "stages.sft.epochs=2",
        "stages.process_reward.epochs=1", "rollout.format=plain",  # in which so untrained a model acts at all
    ],
    "set": ["rollout.format=plain", "stages.reinforce.groups_per_step=4", "stages.reinforce.group_size=4"],
}  # fmt: skip


def main() -> None:
    """Train the reward models, then the policies; record."""
    parser = BenchmarkCommand(__doc__, smoke=SMOKE)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=REWARDS, default=list(REWARDS), help="which of the two")
    parser.add_argument("--env-steps", type=int, default=5000, help="environment steps by the process reward model")
    parser.add_argument("--played", type=int, default=100, help="tasks that it learns from, eight episodes each")
    parser.add_argument("--eval-tasks", type=int, default=400, help="held-out tasks of each measurement")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="changes of both trainings")
    parser.add_argument("--set-first", nargs="+", default=[], metavar="KEY=VALUE", help="changes of the first recipe")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "process-reward", help="the run directories")
    arguments = parser.options()
    ends: dict[str, list[Mapping[str, Any]]] = {name: [] for name in arguments.only}
    learned: list[int] = []
    for seed in arguments.seeds:
        first = arguments.runs / f"first-{seed}"
        own = [f"stages.played.num_tasks={arguments.played}", *arguments.set_first]
        taken = _train(_first_recipe(arguments.runs), first, seed, arguments, own)["counts"]["env_steps.played"]
        learned.append(taken)
        for name in arguments.only:
            process = name == "process"
            # The episodes that the reward model learned from count: the other training gets that many more steps.
            env_steps = arguments.env_steps if process else arguments.env_steps + taken
            common = (
                f"model.path={first / 'model'}", f"stages.reinforce.max_env_steps={env_steps}",
                "stages.reinforce.max_wall_s=100000",
                f"stages.before.num_tasks={arguments.eval_tasks}", f"stages.after.num_tasks={arguments.eval_tasks}",
            )  # fmt: skip
            directory = arguments.runs / f"{name}-{seed}"
            settings = [*common, *(PROCESS if process else ()), *arguments.set]
            recipe = ROOT / "recipes" / "methods" / "grpo.toml"
            end = _train(recipe, directory, seed, arguments, settings, first=first)
            check_taken(f"{name}, seed {seed}", end, env_steps)
            ends[name].append(end)
    record("process_reward", _rows(ends, learned), arguments)


def _first_recipe(directory: Path) -> Path:
    """Write the recipe that trains reward models, without the stage that needs pairs; return its path."""
    head, *stages = (ROOT / "recipes" / "reward-models.toml").read_text(encoding="utf-8").split("[[stages]]\n")
    kept = [stage for stage in stages if 'kind = "bradley_terry"' not in stage]
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "first.toml"
    path.write_text("[[stages]]\n".join([head, *kept]), encoding="utf-8")
    return path


def _train(
    recipe: Path,
    directory: Path,
    seed: int,
    arguments: argparse.Namespace,
    changes: Sequence[str],
    *,
    first: Path | None = None,
) -> dict[str, Any]:
    """Run or resume `gymfleet train`, and return its summary. A finished run stays as it was."""
    command = [
        str(Path(sys.executable).with_name("gymfleet")), "train", str(recipe),
        "--run-dir", str(directory), "--seed", str(seed),
    ]  # fmt: skip
    if arguments.smoke:
        command.append("--fresh")
    for change in changes:
        command += ["--set", change]
    environment = dict(os.environ)
    if first is not None:
        table = {"kind": "embedded", "scores": "turns", "path": str(first / "models" / "process_reward")}
        environment["GYMFLEET_REWARD_MODELS"] = json.dumps({"steps": {**table, "max_tokens": 1024}})
    subprocess.run(command, check=True, cwd=ROOT, env=environment)
    summary: dict[str, Any] = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    return summary


def check_taken(name: str, summary: Mapping[str, Any], env_steps: int) -> None:
    """Exit if a training ended before it took its given environment steps."""
    taken = summary["counts"]["env_steps.reinforce"]
    if taken < env_steps:
        raise SystemExit(
            f"{name}: ended after {taken} of {env_steps} environment steps, so that the two cannot be compared; "
            "allow more with --set stages.reinforce.steps=N"
        )


def _rows(ends: Mapping[str, Sequence[Mapping[str, Any]]], learned: Sequence[int]) -> list[Row]:
    rows = [Row.of("environment steps that the process reward model learned from", mean(learned), "steps")]
    for name, summaries in ends.items():
        after = [summary["evals"]["after"] for summary in summaries]
        taken = [summary["counts"]["env_steps.reinforce"] for summary in summaries]
        rows += [
            Row.of(f"{name}: success before", mean(one["evals"]["before"]["success"] for one in summaries), ""),
            Row.of(f"{name}: success, mean of {len(after)} seeds", mean(one["success"] for one in after), ""),
            Row.of(f"{name}: lowest lower end of the seeds' intervals", min(one["interval"][0] for one in after), ""),
            Row.of(f"{name}: highest upper end of the seeds' intervals", max(one["interval"][1] for one in after), ""),
            Row.of(f"{name}: environment steps of the training", mean(taken), "steps"),
        ]
    return rows


if __name__ == "__main__":
    main()
