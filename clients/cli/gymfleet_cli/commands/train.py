"""`gymfleet train`: everything a run needs, in one command."""

import shlex
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from gymfleet_contracts.recipe import Recipe, RecipeError, load_recipe
from gymfleet_contracts.recipe_sections import PlacementSection, ScaleSection, TrainerSection

from gymfleet_cli.commands.plan import require_model
from gymfleet_cli.composing import composed
from gymfleet_cli.console import CliError, UsageProblem, err, out, plain
from gymfleet_cli.gateway import describe
from gymfleet_cli.outcome import print_outcome
from gymfleet_cli.progress import RunDisplay, read_progress
from gymfleet_cli.recipes import checked, load_checked, to_toml
from gymfleet_cli.report import write_report
from gymfleet_cli.run_directory import RUN_STATE, RunDataError
from gymfleet_cli.running import Work, lock_run, recipe_file, run_plan, work_with_services
from gymfleet_cli.supervisor.errors import Interrupted
from gymfleet_cli.supervisor.sweep import sweep

RunDirOption = Annotated[Path | None, typer.Option(help="Where the run lives. Default: runs/<name of the recipe>.")]
EnvOption = Annotated[
    str | None,
    typer.Option(help="Source of the only environment, if not gymfleet's own: package.module:Class or a .py file."),
]
TrainEnvOption = Annotated[
    str | None,
    typer.Option(
        help="The environment to write a recipe for: a name, package.module:Class or a .py file. Beside a recipe, the "
        "source of its only environment, if not gymfleet's own."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Override a key: --set stages.reinforce.steps=20, --set environments.babyai.level=easy. Repeat for "
        "several.",
    ),
]
PortsOption = Annotated[int | None, typer.Option(help="First of a row of ports. Default: any free ones.")]


def train(
    recipe: Annotated[Path | None, typer.Argument(help="Recipe, a TOML file; without it one is written.")] = None,
    run_dir: RunDirOption = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Override the recipe's seed.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete what an earlier run left in the directory.")] = False,
    overrides: SetOption = None,
    env: TrainEnvOption = None,
    algorithm: Annotated[
        str | None,
        typer.Option(help="Without a recipe: how to learn, by the name of an algorithm, or sft. Default: grpo."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Without a recipe: a Hugging Face id or directory. Default: a small model from scratch."),
    ] = None,
    level: Annotated[str | None, typer.Option(help="Without a recipe: a level of the environment.")] = None,
    ports_from: PortsOption = None,
) -> None:
    """Train with a recipe: start all services, build the model, train, measure, report. Run again to resume.

    Without a recipe, --env writes a complete one, shows it, keeps it in the run directory and trains with it.
    """
    changes = [*(overrides or ()), *(() if seed is None else (f"seed={seed}",))]
    asked = {"algorithm": algorithm, "model": model, "level": level}
    given = [part for name, value in asked.items() if value is not None for part in (f"--{name}", value)]
    if recipe is None:
        loaded = _composed(env, algorithm or "grpo", model, level, changes)
    elif given:
        raise UsageProblem(f"{given[0]} is for a recipe that is written, and {recipe} is one: use --set to change it")
    else:
        loaded = load_checked(recipe, changes)
    directory = run_dir or Path("runs") / loaded.name
    state_dir = directory / RUN_STATE
    with lock_run(directory, state_dir):
        sweep(state_dir)
        if fresh:
            clear_run(directory)
        if is_finished(directory, loaded):
            out.print(plain(f"{directory}: this run is finished; --fresh starts it anew"), soft_wrap=True)
            _print_outcome(directory)
            return
        file = str(recipe) if recipe is not None and not changes else recipe_file(loaded, state_dir)
        if recipe is None:
            out.print(plain(to_toml(loaded)), soft_wrap=True)
        command = ("run", file, "--run-dir", str(directory))
        work = Work(recipe=loaded, recipe_file=file, run_dir=directory, command=command)
        try:
            _work(work, env, state_dir, ports_from)
        except Interrupted:
            again = [
                "gymfleet",
                "train",
                *([] if recipe is None else [str(recipe)]),
                "--run-dir",
                str(directory),
                *given,
            ]
            again += [part for change in changes for part in ("--set", change)] + (["--env", env] if env else [])
            err.print(plain(f"stopped; resume with: {shlex.join(again)}"), soft_wrap=True)
            raise
    _report(directory)
    _print_outcome(directory)


def _composed(env: str | None, algorithm: str, model: str | None, level: str | None, changes: Sequence[str]) -> Recipe:
    """Return a recipe for an environment, with changes. Raises `UsageProblem`, `CliError`, `RecipeError`."""
    if env is None:
        raise UsageProblem("give a recipe, or --env with an environment to write one for")
    if model is not None and Path(model).is_dir() and not (Path(model) / "config.json").is_file():
        raise UsageProblem(f"--model {model}: there is no model in this directory: config.json is missing")
    specs, missing = describe((env,), {})
    if not specs:
        raise CliError("; ".join(missing) or f"{env} cannot be served here")
    return checked(composed(specs[0], algorithm, model, level=level), changes, where="the recipe")


def _work(work: Work, env: str | None, state_dir: Path, ports_from: int | None) -> None:
    plan = run_plan(work.recipe, env, work.run_dir, state_dir, ports_from)
    require_model(work.recipe)
    err.print(plain(f"run directory {work.run_dir} · logs {state_dir / 'logs'}"), soft_wrap=True)
    work_with_services(plan, work, RunDisplay(err, partial(read_progress, work.run_dir)))


def is_finished(directory: Path, recipe: Recipe) -> bool:
    """Return whether the run has its summary. Raises `UsageProblem` if the run belongs to another recipe."""
    if not (directory / "summary.json").is_file():
        return False
    try:
        known: Recipe | None = load_recipe(directory / "recipe.toml")
    except RecipeError:  # removed, or written by another version
        known = None
    if known is None or _alike(known) != _alike(recipe):
        raise UsageProblem(
            f"{directory} holds a finished run of another recipe; choose another --run-dir, or delete it with --fresh"
        )
    return True


def _alike(recipe: Recipe) -> Recipe:
    """Return the recipe without its scale and placement, which may change between commands of the same run."""
    return recipe.model_copy(
        update={"scale": ScaleSection(), "trainer": TrainerSection(), "placement": PlacementSection()}
    )


def clear_run(directory: Path) -> None:
    """Delete everything in a run's directory except the lock held on it."""
    lock = directory / RUN_STATE / "lock"
    for entry in [*directory.iterdir(), *lock.parent.iterdir()]:
        if entry in (lock, lock.parent):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _report(directory: Path) -> None:
    try:
        write_report(directory)
    except (RunDataError, OSError) as error:
        raise CliError(f"the run is finished, but its report could not be written: {error}") from None


def _print_outcome(directory: Path) -> None:
    try:
        print_outcome(directory)
    except RunDataError as error:
        raise CliError(str(error)) from None
