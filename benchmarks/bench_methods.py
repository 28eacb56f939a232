"""Every method, on equal terms: `python -m benchmarks.bench_methods [--setting intro|maze|textcraft] [--only NAME]`.

A method is a recipe in recipes/methods. All begin with the model of one warm start per seed, play the same tasks, and
stop after equally many environment steps, including those of redrawn groups, replays and branches. Success is measured
on 400 held-out tasks; `--tune` measures on the validation split, by which alone settings are chosen.

A finished run is not run again, and an interrupted run is resumed. With `--publish`, a run already published with
exactly the same recipe is not run again either, and an incomplete set of runs is kept in `results/begun` until it is
complete, so the work can be spread over several days. The recipes must be committed first: each run carries the commit
of its recipe. docs/methods.md explains how to read the figures.

With `--at-once 2` two runs share the machine, each with half of its processors and twice the time; their output goes to
a `.log` file next to their directories. Compare their seconds with each other, not with those of runs that had the
whole machine.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from statistics import mean
from threading import Lock
from typing import Any, Final, TypeVar

from gymfleet_contracts.recipe import Recipe, load_recipe
from gymfleet_contracts.stages import StageSection
from gymfleet_kit.plugins import included

from benchmarks.bench_variants import curve
from benchmarks.command import BenchmarkCommand
from benchmarks.record import RESULTS, Row, record

T = TypeVar("T")

ROOT: Final = Path(__file__).parents[1]
RECIPES: Final = ROOT / "recipes" / "methods"
WARM_START: Final = "warm_start"
SETTINGS: Final[Mapping[str, Sequence[str]]] = {
    "intro": (),
    "maze": ("environments.babyai.name=maze", "environments.maze.level=tiny", "rollout.limits.max_turns=8"),
    "textcraft": (
        "environments.babyai.name=textcraft", "environments.textcraft.level=depth_1", "rollout.limits.max_turns=8",
        "rollout.limits.max_context_tokens=2000", "inference.max_model_len=2048",
    ),
}  # fmt: skip
WARM_STARTS: Final[Mapping[str, Sequence[str]]] = {
    "intro": (),
    "maze": ("stages.demonstrations.num_tasks=250", "stages.sft.epochs=10"),
    # The model learns to copy an item's name from the list of commands late and all at once, after some 1,500 updates.
    # Fewer demonstrations for more epochs reach as much, but a loss so small that all replies of a group are equal.
    "textcraft": (
        "stages.demonstrations.num_tasks=8000", "stages.sft.epochs=5", "stages.sft.tokens_per_batch=4096",
        "stages.sft.optimizer.learning_rate=2e-3",
    ),
}  # fmt: skip
"""Further changes of the warm start, by setting."""
SHARES: Final[Mapping[str, float]] = {"intro": 1.0, "maze": 2.4, "textcraft": 2.4}
"""Environment steps of each setting, as a multiple of those in the recipes."""
CHOSEN: Final = ("grpo", "dapo", "rloo", "ppo", "gspo", "monte_carlo", "iterative_dpo", "agent_evol")
"""The methods of the settings after the first; they were named before any was run."""
SEEDS: Final = (0, 1, 2)
SHORT: Final = ("grpo", "rloo", "ppo", "raft")
SMOKE: Final[dict[str, Any]] = {
    "seeds": [0], "only": ["grpo"], "share": 0.002, "eval_tasks": 16, "every": 0,
    "set_warm_start": [
        "model.scratch.corpus_episodes=40", "stages.demonstrations.num_tasks=24", "stages.sft.epochs=3",
        "rollout.format=plain",  # in which so untrained a model acts at all
    ],
    "set": ["rollout.format=plain", "stages.reinforce.groups_per_step=4", "stages.reinforce.group_size=4"],
}  # fmt: skip


_TRAINING: Final = frozenset({"sft", "preference", "bradley_terry", "process_reward", "generative_judge"})
"""Stages that train but play nothing."""
Processors = tuple[int, ...]
"""The numbers of the processors that a run has for itself."""
_running: Final[set[subprocess.Popen[bytes]]] = set()
"""The processes of `gymfleet train`; they end with this one and can be resumed."""


@dataclass(frozen=True, slots=True)
class Run:
    """The results of one run of a method."""

    setting: str
    method: str
    seed: int
    commit: str
    """The last commit that changed its recipe."""
    recipe: str
    """The first digits of the SHA-256 of its recipe's file; they identify the recipe even if commits are rewritten."""
    success_before: float
    success: float
    interval: tuple[float, float]
    env_steps: int
    """All environment steps taken to learn, of every stage that plays; without demonstrations and measurements."""
    tokens_trained: int
    """Tokens trained on, over all passes."""
    collecting_s: float
    training_s: float
    total_s: float
    """Seconds of all its stages, including measurements."""
    memory_mib: float
    """Peak memory of its largest process."""
    processors: int
    """The number of processors it ran on: seconds compare between runs with equally many."""
    curve: tuple[tuple[int, float], ...]
    """Environment steps and success of the intermediate measurements."""


def main() -> None:
    """Run the unfinished runs, read the summaries, record."""
    parser = BenchmarkCommand(__doc__, smoke=SMOKE)
    parser.add_argument("--setting", choices=list(SETTINGS), default="intro")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these methods alone")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--short", action="store_true", help=f"under ten minutes: {', '.join(SHORT)}, a seed, a third")
    parser.add_argument("--share", type=float, default=1.0, help="of the setting's environment steps")
    parser.add_argument("--eval-tasks", type=int, default=400, help="held-out tasks of the last measurement")
    parser.add_argument("--every", type=int, default=64, help="groups between two measurements; 0 for none")
    parser.add_argument("--tune", action="store_true", help="measure on the validation split")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="changes of every method")
    parser.add_argument(
        "--set-warm-start", nargs="+", default=[], metavar="KEY=VALUE", help="changes of the warm start"
    )
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="runs at once, each with its processors")
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
    of_setting = [name for name in known if arguments.setting == "intro" or name in CHOSEN]
    chosen = arguments.only or of_setting
    title = "methods" if arguments.setting == "intro" else f"methods-{arguments.setting}"
    begun = RESULTS / "begun" / f"{title}.json"
    runs = published(RESULTS / f"{title}.json", begun) if arguments.publish else []
    done = {(run.method, run.seed) for run in runs}
    left = [(seed, name) for seed in arguments.seeds for name in chosen if (name, seed) not in done]
    failed: list[str] = []
    keeping = Lock()

    def run_one(job: tuple[int, str], processors: Processors) -> None:
        seed, name = job
        try:
            run = run_of(name, seed, _directory(WARM_START, seed, arguments) / "model", arguments, processors)
        except subprocess.CalledProcessError as error:
            failed.append(f"{name}-{seed}")
            log = f", see {_directory(name, seed, arguments)}.log" if arguments.at_once > 1 else ""
            print(f"{name}, seed {seed}: ended with exit code {error.returncode}, and is left out{log}", flush=True)
            return
        with keeping:
            runs.append(run)
            if arguments.publish:
                keep(runs, begun)
        print(f"{name}, seed {seed}: {run.success:.1%} · {len(runs)} of {len(done) + len(left)} runs", flush=True)

    try:
        seeds = sorted({seed for seed, _ in left})
        on_processors(lambda seed, own: warm_start(seed, arguments, own), seeds, arguments.at_once)
        on_processors(run_one, left, arguments.at_once)
    finally:  # Ctrl-C leaves what was finished
        missing = {(name, seed) for name in of_setting for seed in SEEDS} - {(run.method, run.seed) for run in runs}
        if arguments.publish and missing:
            print(f"{len(runs)} runs are kept in {begun}; with the other {len(missing)} all are published")
        else:
            figures = [*rows(runs), Row.of("runs that failed", len(failed), "runs")]
            record(title, figures, arguments, [asdict(run) for run in runs])
            if arguments.publish:
                begun.unlink(missing_ok=True)


def published(*paths: Path) -> list[Run]:
    """Return the runs in result files whose recipes have not changed since; the first file with a run counts."""
    found: dict[tuple[str, int], Run] = {}
    for path in paths:
        if path.is_file():
            for fields in json.loads(path.read_text(encoding="utf-8")).get("runs", []):
                run = _run(fields)
                if run.recipe == _recipe_of(run.method):
                    found.setdefault((run.method, run.seed), run)
    return [*found.values()]


def keep(runs: Sequence[Run], path: Path) -> None:
    """Write runs that are not yet published."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")  # a kill leaves the old file or the new one
    partial.write_text(json.dumps({"runs": [asdict(run) for run in runs]}, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def _run(fields: Mapping[str, Any]) -> Run:
    curve_of_lists = tuple((int(env_steps), float(success)) for env_steps, success in fields["curve"])
    return Run(**{**fields, "interval": tuple(fields["interval"]), "curve": curve_of_lists})


def _commit_of(method: str) -> str:
    """Return the last commit that changed a method's recipe."""
    return _git("log", "-1", "--format=%h", "--", str(RECIPES / f"{method}.toml")) or "unknown"


def _recipe_of(method: str) -> str:
    """Return the first digits of the SHA-256 of a method's recipe file, or an empty string if it no longer exists."""
    path = RECIPES / f"{method}.toml"
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def methods() -> dict[str, Recipe]:
    """Return the recipes of the methods installed here, by name.

    Raises SystemExit if an installed algorithm has no recipe.
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
    """Return the first recipe that differs from its committed form, or an empty string."""
    return _git("status", "--porcelain", "--", str(RECIPES)).partition("\n")[0][3:]


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    ).stdout.rstrip()  # fmt: skip


def on_processors(work: Callable[[T, Processors], None], jobs: Iterable[T], at_once: int) -> None:
    """Run all jobs, `at_once` at a time, each on an equal share of this machine's processors.

    If a job fails, stop the others and raise its exception.
    """
    own = sorted(os.sched_getaffinity(0))
    if not 1 <= at_once <= len(own):
        raise SystemExit(f"--at-once {at_once}: there are {len(own)} processors, and every run needs one of its own")
    free: SimpleQueue[Processors] = SimpleQueue()
    for part in range(at_once):
        free.put(tuple(own[part::at_once]))

    def do(job: T) -> None:
        processors = free.get()
        try:
            work(job, processors)
        finally:
            free.put(processors)

    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(do, job) for job in jobs]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in tuple(_running):
                process.terminate()
            raise


def warm_start(seed: int, arguments: argparse.Namespace, processors: Processors) -> None:
    """Train the model that all methods of a seed begin with, if it does not exist yet."""
    changes = (
        *SETTINGS[arguments.setting],
        *WARM_STARTS[arguments.setting],
        f"stages.after.num_tasks={arguments.eval_tasks}",
        *arguments.set_warm_start,
    )
    _train(WARM_START, seed, changes, arguments, processors)


def run_of(name: str, seed: int, model: Path, arguments: argparse.Namespace, processors: Processors) -> Run:
    """Return the results of a method from one seed; an existing run is read, or resumed."""
    recipe = load_recipe(RECIPES / f"{name}.toml")
    changes = [*SETTINGS[arguments.setting], f"model.path={model}", *scaled(recipe, arguments), *arguments.set]
    if arguments.tune:
        changes.append("environments.babyai.eval_split=validation")
    noted = _train(name, seed, changes, arguments, processors)
    directory = _directory(name, seed, arguments)
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
        recipe=_recipe_of(name),
        success_before=summary["evals"]["before"]["success"],
        success=after["success"],
        interval=tuple(after["interval"]),
        env_steps=sum(count for key, count in summary["counts"].items() if key.startswith("env_steps.")),
        tokens_trained=summary["tokens_trained"],
        collecting_s=round(steps["wait"] + spent_by(recipe, seconds, {"collect"}), 1),
        training_s=round(steps["update"] + spent_by(recipe, seconds, _TRAINING), 1),
        total_s=round(summary["seconds"]["total"], 1),
        memory_mib=noted["memory_mib"],
        processors=noted["processors"],
        curve=tuple((one.env_steps, one.success) for one in curve(lines)),
    )


def spent_by(recipe: Recipe, seconds: Mapping[str, float], kinds: Collection[str]) -> float:
    """Return the seconds of the stages of some kinds, without the expert's demonstrations."""
    names = {stage.name for stage in recipe.plan() if stage.kind in kinds and stage.name != "demonstrations"}
    return sum(spent for name, spent in seconds.items() if name in names)


def scaled(recipe: Recipe, arguments: argparse.Namespace) -> list[str]:
    """Return the changes that give a recipe its share of the environment steps, and its measurements."""
    changes = [f"stages.{name}.num_tasks={arguments.eval_tasks}" for name in ("before", "after")]
    for stage in recipe.stages:
        if stage.kind == "reinforce":
            changes += _limits_of(stage, f"stages.{stage.title}", arguments)
            if arguments.every:
                every_steps = max(1, arguments.every // int(str((stage.model_extra or {})["groups_per_step"])))
                changes.append(f"stages.{stage.title}.measure.every_steps={every_steps}")
                changes.append(f"stages.{stage.title}.measure.num_tasks={min(100, arguments.eval_tasks)}")
        for inner in stage.stages:
            place = f"stages.{stage.title}.stages.{inner.title}"
            if inner.kind == "reinforce":
                changes += _limits_of(inner, place, arguments)
            if inner.kind == "collect":
                changes += [_times(_share(arguments), inner, key, place) for key in ("num_tasks", "max_env_steps")]
    return changes


def _limits_of(stage: StageSection, place: str, arguments: argparse.Namespace) -> list[str]:
    """Return the changes that give a stage its share of environment steps, and the time for them."""
    limits = [_times(_share(arguments), stage, "max_env_steps", place)]
    longer = arguments.at_once * max(_share(arguments), 1.0)
    if longer > 1:
        limits.append(_times(longer, stage, "max_wall_s", place))
    return limits


def _share(arguments: argparse.Namespace) -> float:
    """Return the factor on the environment steps of the recipes."""
    return float(arguments.share * SHARES[arguments.setting])


def _times(factor: float, stage: StageSection, key: str, place: str) -> str:
    """Return the change that multiplies the number under a key of a stage."""
    whole = int(str((stage.model_extra or {})[key]))
    return f"{place}.{key}={max(1, round(factor * whole))}"


def _of_the_environment(change: str, arguments: argparse.Namespace) -> str:
    """Return a change with the environment's table under the name that the setting gives it."""
    name = next((one.partition("=")[2] for one in SETTINGS[arguments.setting] if ".name=" in one), "babyai")
    is_rename = change.startswith("environments.babyai.name=")
    return change if is_rename else change.replace("environments.babyai.", f"environments.{name}.")


def _directory(name: str, seed: int, arguments: argparse.Namespace) -> Path:
    kind = "smoke" if arguments.smoke else "short" if arguments.short else "tune" if arguments.tune else "full"
    # A changed recipe begins again in a directory of its own; the results of its earlier form stay.
    directory: Path = arguments.runs / f"{arguments.setting}-{kind}" / f"{name}-{seed}-{_recipe_of(name)[:6]}"
    return directory


def _train(
    name: str, seed: int, changes: Sequence[str], arguments: argparse.Namespace, processors: Processors
) -> dict[str, Any]:
    """Run or resume `gymfleet train`; return `memory_mib` of its largest process, and its number of `processors`.

    A finished run stays as it was. Raises CalledProcessError, also if the directory has a run of another recipe.
    """
    directory = _directory(name, seed, arguments)
    noted = directory / "noted.json"
    finished = not arguments.smoke and (directory / "summary.json").is_file() and noted.is_file()
    gymfleet = str(Path(sys.executable).with_name("gymfleet"))
    command = [
        "taskset", "--cpu-list", ",".join(map(str, processors)),
        gymfleet, "train", str(RECIPES / f"{name}.toml"), "--run-dir", str(directory), "--seed", str(seed),
    ]  # fmt: skip
    for change in changes:
        command += ["--set", _of_the_environment(change, arguments)]
    if arguments.smoke:
        command.append("--fresh")
    with ExitStack() as stack:
        output = None
        if arguments.at_once > 1:
            directory.parent.mkdir(parents=True, exist_ok=True)
            output = stack.enter_context(directory.with_suffix(".log").open("a", encoding="utf-8"))
        environment = {**os.environ, "GYMFLEET_TRAINER_TORCH_THREADS": str(len(processors))}
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, env=environment)
        _running.add(process)
        try:
            _, status, usage = os.wait4(process.pid, 0)
        finally:
            _running.discard(process)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    if not finished:
        told = {"memory_mib": round(usage.ru_maxrss / 1024, 1), "processors": len(processors)}
        noted.write_text(json.dumps(told), encoding="utf-8")
    found: dict[str, Any] = json.loads(noted.read_text(encoding="utf-8"))
    return found


def rows(runs: Sequence[Run]) -> list[Row]:
    """Return the figures of each method, over its seeds, ordered only by name."""
    found: list[Row] = []
    for name in sorted({run.method for run in runs}):
        own = [run for run in runs if run.method == name]
        found += [
            Row.of(f"{name}: success before", mean(run.success_before for run in own), ""),
            Row.of(f"{name}: success, mean of {len(own)} seeds", mean(run.success for run in own), ""),
            Row.of(f"{name}: lowest lower end of the intervals", min(run.interval[0] for run in own), ""),
            Row.of(f"{name}: highest upper end of the intervals", max(run.interval[1] for run in own), ""),
            Row.of(f"{name}: environment steps", mean(run.env_steps for run in own), "steps"),
            Row.of(f"{name}: tokens trained on", mean(run.tokens_trained for run in own), "tokens"),
            Row.of(f"{name}: collecting", mean(run.collecting_s for run in own), "s"),
            Row.of(f"{name}: training", mean(run.training_s for run in own), "s"),
            Row.of(f"{name}: memory of the largest process", max(run.memory_mib for run in own), "MiB"),
        ]
    return found


if __name__ == "__main__":
    main()
