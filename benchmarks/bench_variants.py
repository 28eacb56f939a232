"""One recipe in several variants, at equal environment steps:
`python -m benchmarks.bench_variants [--family FAMILY] [--only NAME ...] [--seeds 0 1 2]`.

The variants are: reply formats; ways to show the policy its actions; options that make it explore, each switched on
alone; credit by turn on mazes, where episodes often return to the same states; and preferences between episodes of a
group or between turns that were forked. All variants of a seed begin with the same random weights and are warmed up on
the same demonstrations, written in their own format. A run ends with the training step by which `--env-steps`
environment steps were taken, including those of continuations; success is that of its last measurement.

The recipe is the quickstart; for credit and preferences, without the options that not every algorithm has, and at a
constant learning rate: their variants make different numbers of updates from the same environment steps, and would end
at different points of a decay.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Final, NamedTuple

from benchmarks.command import BenchmarkCommand
from benchmarks.record import Row, record

ROOT: Final = Path(__file__).parents[1]
_ROOM: Final = (
    "rollout.limits.max_response_tokens=80", "rollout.limits.max_context_tokens=2000", "inference.max_model_len=2048",
)  # fmt: skip
"""Limits that fit the longest of the formats, so that all have the same."""
_MAZE: Final = (
    "environments.babyai.name=maze", "environments.maze.level=tiny", "rollout.limits.max_turns=8",
    "stages.demonstrations.num_tasks=250", "stages.sft.epochs=10",
)  # fmt: skip
"""Maze: its observations do not list the possible actions, unlike BabyAI's, and it needs more demonstrations."""
_FORKS: Final = (
    "rollout.strategy.use=forks", "rollout.strategy.continuations=2", "rollout.strategy.every=2",
    "rollout.evaluator.goal.success=1.0", "rollout.evaluator.goal.failure=0.0", "rollout.evaluator.format.weight=0.2",
)  # fmt: skip
"""Forks, valued by the reward of the recipe."""
_TUNED: Final = ("stages.reinforce.optimizer.learning_rate=5e-5",)
"""As in `recipes/methods/dpo.toml`: at the quickstart's rate, the likelihood of chosen sides falls too."""
_FADE: Final = "steps=8"
FAMILIES: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "formats": {
        name: (*_ROOM, f"rollout.format.use={name}")
        for name in ("react", "think_act", "plain", "tags", "agentgym", "openmanus", "outcome", "tool_call")
    },
    "actions": {
        "off": (*_ROOM, *_MAZE),
        "shown": (*_ROOM, *_MAZE, "rollout.actions.shown=true"),
        "masked, answered": (*_ROOM, *_MAZE, "rollout.strategy.use=masked"),
        "masked, discarded": (
            *_ROOM, *_MAZE, "rollout.strategy.use=masked", "rollout.strategy.rejected=discarded",
        ),
    },
    "exploration": {
        "off": (),
        "temperature": tuple(
            f"stages.reinforce.exploration.temperature.{part}" for part in ("start=1.3", "end=0.8", _FADE)
        ),
        "entropy": tuple(f"stages.reinforce.entropy_coefficient.{part}" for part in ("start=0.02", "end=0.0", _FADE)),
        "novelty": ("stages.reinforce.exploration.novelty.weight=0.1",),
        "hints": tuple(f"stages.reinforce.exploration.hints.{part}" for part in ("start=0.5", "end=0.0", _FADE)),
        "diversity": ("reward.group_diversity.weight=0.1",),
        "spread": ("rollout.sampling.spread=0.3",),
    },
    "credit": {
        # The default of the others, which is not GRPO's: only credit may differ.
        "grpo": (*_ROOM, *_MAZE, "stages.reinforce.aggregation=token_mean"),
        "gigpo": (*_ROOM, *_MAZE, "stages.reinforce.algorithm=gigpo"),
        "monte_carlo": (
            *_ROOM, *_MAZE, *_FORKS, "stages.reinforce.algorithm=monte_carlo", "stages.reinforce.group_size=2",
        ),
    },
    "preferences": {
        "dpo, groups": (
            *_ROOM, *_MAZE, *_TUNED, "stages.reinforce.algorithm=dpo", "stages.reinforce.pairs.max_pairs_per_task=4",
        ),
        "dpo, forks": (
            *_ROOM, *_MAZE, *_TUNED, *_FORKS, "rollout.strategy.train_continuations=true",
            "stages.reinforce.algorithm=dpo", "stages.reinforce.group_size=2", "stages.reinforce.pairs.level=steps",
            "stages.reinforce.pairs.min_chosen_reward=0.5", "stages.reinforce.pairs.max_pairs_per_task=8",
        ),
    },
}  # fmt: skip
_OF_SEVERAL_ALGORITHMS: Final = ("credit", "preferences")
_LEFT_OUT: Final = ("clip_low", "clip_high", "aggregation", "schedule", "min_lr_ratio", "max_wall_s")
"""Keys of the `reinforce` stage; left out, since `--set` can change a key but not remove it."""
SMOKE: Final[dict[str, Any]] = {
    "seeds": [0], "family": "exploration", "only": ["novelty"], "env_steps": 10_000, "every": 1, "eval_tasks": 16,
    "set": [
        "model.scratch.corpus_episodes=40", "stages.demonstrations.num_tasks=24", "stages.sft.epochs=3",
        "stages.reinforce.steps=2", "stages.reinforce.groups_per_step=4", "stages.reinforce.group_size=4",
        "stages.before.num_tasks=16", "stages.after.num_tasks=16",
    ],
}  # fmt: skip


class Measured(NamedTuple):
    """An intermediate measurement."""

    env_steps: int
    """Environment steps taken before it."""
    success: float


def main() -> None:
    """Run the grid, read the metrics, record."""
    parser = BenchmarkCommand(__doc__, smoke=SMOKE)
    parser.add_argument("--family", choices=sorted(FAMILIES), default="formats")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these variants of the family alone")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--env-steps", type=int, default=15_000, help="environment steps, after which all are compared")
    parser.add_argument("--every", type=int, default=5, help="training steps between two measurements")
    parser.add_argument("--eval-tasks", type=int, default=200, help="held-out tasks of each measurement")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="changes of every variant")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="directory of the run directories")
    parser.add_argument("--keep", action="store_true", help="use runs that are already finished")
    arguments = parser.options()
    family = FAMILIES[arguments.family]
    if unknown := sorted(set(arguments.only) - set(family)):
        parser.error(f"--only {', '.join(unknown)}: the family {arguments.family} has {', '.join(family)}")
    rows = [
        row
        for name, changes in family.items()
        if not arguments.only or name in arguments.only
        for row in _rows(name, {seed: _run(name, changes, seed, arguments) for seed in arguments.seeds})
    ]
    record("variants" if arguments.smoke else f"variants-{arguments.family}", rows, arguments)


def recipe_of(family: str, directory: Path) -> Path:
    """Return the recipe of a family's variants; unless it is the quickstart itself, write it to `directory`."""
    quickstart = ROOT / "recipes" / "quickstart.toml"
    if family not in _OF_SEVERAL_ALGORITHMS:
        return quickstart
    before, kind, stage = quickstart.read_text(encoding="utf-8").partition('kind = "reinforce"\n')
    kept = [line for line in stage.splitlines(keepends=True) if line.partition(" = ")[0] not in _LEFT_OUT]
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "variants.toml"
    path.write_text("".join([before, kind, *kept]), encoding="utf-8")
    return path


def _run(name: str, changes: Sequence[str], seed: int, arguments: argparse.Namespace) -> list[Measured]:
    """Train one variant from one seed, and return its measurements, from before the first step on."""
    run_dir = arguments.runs / f"variant-{arguments.family}-{name.replace(', ', '-')}-{seed}"
    gymfleet = str(Path(sys.executable).with_name("gymfleet"))
    recipe = str(recipe_of(arguments.family, arguments.runs))
    command = [gymfleet, "train", recipe, "--run-dir", str(run_dir), "--seed", str(seed)]
    if not (arguments.keep and (run_dir / "summary.json").is_file()):
        command.append("--fresh")
    on_the_way: tuple[str, ...] = (
        f"stages.reinforce.max_env_steps={arguments.env_steps}",
        f"stages.reinforce.measure.every_steps={arguments.every}",
        f"stages.reinforce.measure.num_tasks={arguments.eval_tasks}",
    )
    if arguments.family in _OF_SEVERAL_ALGORITHMS:  # environment steps alone end them
        on_the_way = ("stages.reinforce.steps=1000", *on_the_way)
    for change in (*changes, *on_the_way, *arguments.set):
        command += ["--set", change]
    subprocess.run(command, check=True, cwd=ROOT)
    return curve((run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines())


def curve(lines: Sequence[str]) -> list[Measured]:
    """Return the measurements of a run's `metrics.jsonl`, in order."""
    found: list[Measured] = []
    taken = 0
    for line in lines:
        entry = json.loads(line)
        if entry["kind"] in ("rl_step", "step_skipped"):
            taken = entry["env_steps"]
        elif entry["kind"] == "eval":
            found.append(Measured(taken, entry["success"]))
    return found


def _rows(name: str, runs: Mapping[int, Sequence[Measured]]) -> list[Row]:
    ends = [measured[-1] for measured in runs.values()]
    return [
        Row.of(f"{name}: success before reinforcement", mean(measured[0].success for measured in runs.values()), ""),
        Row.of(f"{name}: success at equal steps, mean of {len(ends)} seeds", mean(one.success for one in ends), ""),
        Row.of(f"{name}: the worst of the seeds", min(one.success for one in ends), ""),
        Row.of(f"{name}: the best of the seeds", max(one.success for one in ends), ""),
        Row.of(f"{name}: environment steps by then", mean(one.env_steps for one in ends), "steps"),
    ]


if __name__ == "__main__":
    main()
