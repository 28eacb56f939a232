"""Every method, on equal terms: `python -m benchmarks.bench_methods [--setting intro|maze|textcraft] [--only NAME]`.

A method is a recipe in recipes/methods. All begin with the model of one warm start per seed, play the same tasks, and
stop after as many environment steps: those of groups that were redrawn, of replays and of branches count. Success is
that of 400 held-out tasks; `--tune` measures on the validation split, by which alone settings are chosen.

A run that is finished is not run again, and one that was interrupted is resumed. With `--publish`, what is published
already, by the same commit of its recipe, is not run again either: several days may do a part each. The recipes must be
committed before: each run carries the commit of its recipe. docs/methods.md says how to read the figures.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Final

from gymfleet_contracts.recipe import Recipe, load_recipe
from gymfleet_contracts.stages import StageSection
from gymfleet_kit.plugins import included

from benchmarks.bench_variants import curve
from benchmarks.command import BenchmarkCommand
from benchmarks.record import RESULTS, Row, record

ROOT: Final = Path(__file__).parents[1]
RECIPES: Final = ROOT / "recipes" / "methods"
WARM_START: Final = "warm_start"
SETTINGS: Final[Mapping[str, Sequence[str]]] = {
    "intro": (),
    "maze": ("environments.babyai.name=maze", "environments.maze.level=small", "rollout.limits.max_turns=12"),
    "textcraft": (
        "environments.babyai.name=textcraft", "environments.textcraft.level=depth_1", "rollout.limits.max_turns=8",
        "rollout.limits.max_context_tokens=2000", "inference.max_model_len=2048",
    ),
}  # fmt: skip
CHOSEN: Final = ("grpo", "dapo", "rloo", "ppo", "gspo", "monte_carlo", "iterative_dpo", "agent_evol")
"""Named before any was run: those of the settings behind the first."""
SHORT: Final = ("grpo", "rloo", "ppo", "raft")
SMOKE: Final[dict[str, Any]] = {
    "seeds": [0], "only": ["grpo"], "share": 0.002, "eval_tasks": 16, "every": 0,
    "set_warm_start": [
        "model.scratch.corpus_episodes=40", "stages.demonstrations.num_tasks=24", "stages.sft.epochs=3",
    ],
    "set": ["stages.reinforce.groups_per_step=4", "stages.reinforce.group_size=4"],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of a method came to."""

    setting: str
    method: str
    seed: int
    commit: str
    """The last commit that changed its recipe."""
    success_before: float
    success: float
    interval: tuple[float, float]
    env_steps: int
    """All that were taken to learn: of every stage that plays, demonstrations and measurements not among them."""
    tokens_trained: int
    """Over all passes."""
    collecting_s: float
    training_s: float
    total_s: float
    """Of its stages, measurements included."""
    memory_mib: float
    """Of its largest process, at most."""
    curve: tuple[tuple[int, float], ...]
    """Environment steps and success of the measurements on the way."""


def main() -> None:
    """Run what is left, read the summaries, record."""
    parser = BenchmarkCommand(__doc__, smoke=SMOKE)
    parser.add_argument("--setting", choices=list(SETTINGS), default="intro")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these methods alone")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--short", action="store_true", help=f"under ten minutes: {', '.join(SHORT)}, a seed, a third")
    parser.add_argument("--share", type=float, default=1.0, help="of the environment steps that the recipes have")
    parser.add_argument("--eval-tasks", type=int, default=400, help="held-out tasks of the last measurement")
    parser.add_argument("--every", type=int, default=2, help="training steps between two measurements; 0 for none")
    parser.add_argument("--tune", action="store_true", help="measure on the validation split")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="changes of every method")
    parser.add_argument(
        "--set-warm-start", nargs="+", default=[], metavar="KEY=VALUE", help="changes of the warm start"
    )
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "methods", help="directory of the run directories")
    arguments = parser.options()
    if arguments.short:
        arguments.only, arguments.seeds = arguments.only or list(SHORT), [0]
        arguments.share, arguments.eval_tasks, arguments.every = 0.3, 100, 0
    known = methods()
    if unknown := sorted(set(arguments.only) - set(known)):
        parser.error(f"--only {', '.join(unknown)}: there are {', '.join(known)}")
    if arguments.publish and (changed := uncommitted()):
        parser.error(f"{changed} is not committed: settings are fixed before anything is run")
    chosen = arguments.only or [name for name in known if arguments.setting == "intro" or name in CHOSEN]
    title = "methods" if arguments.setting == "intro" else f"methods-{arguments.setting}"
    runs = published(RESULTS / f"{title}.json") if arguments.publish else []
    done = {(run.method, run.seed) for run in runs}
    failed: list[str] = []
    try:
        for seed in arguments.seeds:
            for name in chosen:
                if (name, seed) in done:
                    continue
                try:
                    runs.append(run_of(name, seed, warm_start(seed, arguments), arguments))
                except subprocess.CalledProcessError as error:
                    failed.append(f"{name}-{seed}")
                    print(f"{name}, seed {seed}: ended with exit code {error.returncode}, and is left out", flush=True)
    finally:  # Ctrl-C leaves what was finished
        figures = [*rows(runs), Row.of("runs that failed", len(failed), "runs")]
        record(title, figures, arguments, [asdict(run) for run in runs])


def published(path: Path) -> list[Run]:
    """Return the runs of a file of results whose recipes have not changed since."""
    if not path.is_file():
        return []
    runs = [_run(fields) for fields in json.loads(path.read_text(encoding="utf-8"))["runs"]]
    return [run for run in runs if run.commit == _commit_of(run.method)]


def _run(fields: Mapping[str, Any]) -> Run:
    curve_of_lists = tuple((int(env_steps), float(success)) for env_steps, success in fields["curve"])
    return Run(**{**fields, "interval": tuple(fields["interval"]), "curve": curve_of_lists})


def _commit_of(method: str) -> str:
    """Return the last commit that changed its recipe."""
    return _git("log", "-1", "--format=%h", "--", str(RECIPES / f"{method}.toml")) or "unknown"


def methods() -> dict[str, Recipe]:
    """Return the recipes of the methods that are installed here, by name.

    Raises SystemExit where an algorithm that is installed has no recipe.
    """
    algorithms = set(included("gymfleet_trainer.algorithms"))
    kinds = set(included("gymfleet_trainer.stages"))
    recipes = {path.stem: load_recipe(path) for path in sorted(RECIPES.glob("*.toml")) if path.stem != WARM_START}
    found = {
        name: recipe
        for name, recipe in recipes.items()
        if _algorithms(recipe) <= algorithms and {stage.kind for stage in recipe.plan()} <= kinds
    }
    if missing := algorithms - {name for recipe in found.values() for name in _algorithms(recipe)}:
        raise SystemExit(f"recipes/methods has no recipe of {', '.join(sorted(missing))}: write one, and commit it")
    return found


def _algorithms(recipe: Recipe) -> set[str]:
    return {str(stage.options["algorithm"]) for stage in recipe.plan() if stage.kind == "reinforce"}


def uncommitted() -> str:
    """Return the first recipe that differs from what is committed, or an empty string."""
    return _git("status", "--porcelain", "--", str(RECIPES)).partition("\n")[0][3:]


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    ).stdout.rstrip()  # fmt: skip


def warm_start(seed: int, arguments: argparse.Namespace) -> Path:
    """Return the model that all methods of a seed begin with, trained if it is not there."""
    changes = (
        *SETTINGS[arguments.setting],
        f"stages.after.num_tasks={arguments.eval_tasks}",
        *arguments.set_warm_start,
    )
    directory = _directory(WARM_START, seed, arguments)
    _train(
        WARM_START,
        seed,
        directory,
        [_of_the_environment(change, arguments) for change in changes],
        fresh=arguments.smoke,
    )
    return directory / "model"


def run_of(name: str, seed: int, model: Path, arguments: argparse.Namespace) -> Run:
    """Return what a method came to from one seed; a run that is there is read, or resumed."""
    recipe = load_recipe(RECIPES / f"{name}.toml")
    changes = [*SETTINGS[arguments.setting], f"model.path={model}", *scaled(recipe, arguments), *arguments.set]
    if arguments.tune:
        changes.append("environments.babyai.eval_split=validation")
    directory = _directory(name, seed, arguments)
    memory = _train(
        name, seed, directory, [_of_the_environment(change, arguments) for change in changes], fresh=arguments.smoke
    )
    summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    seconds = summary["seconds"]["stages"]
    steps = summary["seconds"]["steps"]
    after = summary["evals"]["after"]
    return Run(
        setting=arguments.setting,
        method=name,
        seed=seed,
        commit=_commit_of(name),
        success_before=summary["evals"]["before"]["success"],
        success=after["success"],
        interval=tuple(after["interval"]),
        env_steps=sum(count for key, count in summary["counts"].items() if key.startswith("env_steps.")),
        tokens_trained=summary["tokens_trained"],
        collecting_s=round(
            steps["wait"] + sum(spent for stage, spent in seconds.items() if stage.endswith(".collect")), 1
        ),
        training_s=round(
            steps["update"]
            + sum(spent for stage, spent in seconds.items() if stage.rpartition(".")[2] in ("sft", "bradley_terry")),
            1,
        ),
        total_s=round(summary["seconds"]["total"], 1),
        memory_mib=memory,
        curve=tuple((one.env_steps, one.success) for one in curve(lines)),
    )


def scaled(recipe: Recipe, arguments: argparse.Namespace) -> list[str]:
    """Return the changes that give a recipe its share of the environment steps, and its measurements."""
    share: float = arguments.share
    changes = [f"stages.{name}.num_tasks={arguments.eval_tasks}" for name in ("before", "after")]
    for stage in recipe.stages:
        if stage.kind == "reinforce":
            changes.append(_share_of(stage, "max_env_steps", f"stages.{stage.title}", share))
            if arguments.every:
                changes.append(f"stages.{stage.title}.measure.every_steps={arguments.every}")
                changes.append(f"stages.{stage.title}.measure.num_tasks={min(100, arguments.eval_tasks)}")
        for inner in stage.stages:
            place = f"stages.{stage.title}.stages.{inner.title}"
            if inner.kind == "reinforce":
                changes.append(_share_of(inner, "max_env_steps", place, share))
            if inner.kind == "collect":
                changes.append(_share_of(inner, "num_tasks", place, share))
    return changes


def _share_of(stage: StageSection, key: str, place: str, share: float) -> str:
    """Return the change that gives a stage its share of what a key counts."""
    whole = int(str((stage.model_extra or {})[key]))
    return f"{place}.{key}={max(1, round(share * whole))}"


def _of_the_environment(change: str, arguments: argparse.Namespace) -> str:
    """Return a change with the environment's table under the name that it has by then."""
    name = next((one.partition("=")[2] for one in SETTINGS[arguments.setting] if ".name=" in one), "babyai")
    is_rename = change.startswith("environments.babyai.name=")
    return change if is_rename else change.replace("environments.babyai.", f"environments.{name}.")


def _directory(name: str, seed: int, arguments: argparse.Namespace) -> Path:
    kind = "smoke" if arguments.smoke else "short" if arguments.short else "tune" if arguments.tune else "full"
    directory: Path = arguments.runs / f"{arguments.setting}-{kind}" / f"{name}-{seed}"
    return directory


def _train(name: str, seed: int, directory: Path, changes: Sequence[str], *, fresh: bool) -> float:
    """Run `gymfleet train`, or resume it, and return the MiB of its largest process. A finished run is as it was.

    Raises CalledProcessError, also where the directory has a run of another recipe.
    """
    noted = directory / "memory.json"
    finished = not fresh and (directory / "summary.json").is_file() and noted.is_file()
    gymfleet = str(Path(sys.executable).with_name("gymfleet"))
    command = [gymfleet, "train", str(RECIPES / f"{name}.toml"), "--run-dir", str(directory), "--seed", str(seed)]
    for change in changes:
        command += ["--set", change]
    if fresh:
        command.append("--fresh")
    process = subprocess.Popen(command, cwd=ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    if finished:
        return float(json.loads(noted.read_text(encoding="utf-8")))
    memory = round(usage.ru_maxrss / 1024, 1)
    noted.write_text(json.dumps(memory), encoding="utf-8")
    return memory


def rows(runs: Sequence[Run]) -> list[Row]:
    """Return the figures of each method, over its seeds. They are in no order but that of the names."""
    found: list[Row] = []
    for name in sorted({run.method for run in runs}):
        own = [run for run in runs if run.method == name]
        found += [
            Row.of(f"{name}: success before", mean(run.success_before for run in own), ""),
            Row.of(f"{name}: success, mean of {len(own)} seeds", mean(run.success for run in own), ""),
            Row.of(f"{name}: lower end of the widest interval", min(run.interval[0] for run in own), ""),
            Row.of(f"{name}: upper end of the widest interval", max(run.interval[1] for run in own), ""),
            Row.of(f"{name}: environment steps", mean(run.env_steps for run in own), "steps"),
            Row.of(f"{name}: tokens trained on", mean(run.tokens_trained for run in own), "tokens"),
            Row.of(f"{name}: collecting", mean(run.collecting_s for run in own), "s"),
            Row.of(f"{name}: training", mean(run.training_s for run in own), "s"),
            Row.of(f"{name}: memory of the largest process", max(run.memory_mib for run in own), "MiB"),
        ]
    return found


if __name__ == "__main__":
    main()
