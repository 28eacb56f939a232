"""`gymfleet eval`: success on held-out tasks, of a run's model or of a checkpoint."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from gymfleet_contracts.recipe import Recipe, initial_model
from gymfleet_contracts.run import RunProgress

from gymfleet_cli.commands.train import EnvOption, PortsOption, RunDirOption
from gymfleet_cli.console import CliError, UsageProblem, err, out, plain
from gymfleet_cli.outcome import success_lines
from gymfleet_cli.progress import RunDisplay, read_progress
from gymfleet_cli.recipes import load_checked, load_with_overrides
from gymfleet_cli.report.data import Measurement
from gymfleet_cli.run_directory import RUN_STATE
from gymfleet_cli.running import Work, lock_run, run_plan, work_with_services
from gymfleet_cli.supervisor.sweep import sweep

_MODELS: Final = ("config.json", "adapter_config.json")
"""One of them is in a model's directory, or in an adapter's."""


@dataclass(frozen=True, slots=True)
class Target:
    """What to measure, by which recipe and for which run."""

    recipe: Path
    run_dir: Path
    checkpoint: Path | None
    """The checkpoint to measure; None for the model that the recipe begins with."""


def evaluate(
    target: Annotated[Path, typer.Argument(help="Recipe, run directory, checkpoint or model directory.")],
    episodes: Annotated[
        int | None, typer.Option(min=1, help="Held-out tasks of each environment to play, once each.")
    ] = None,
    run_dir: RunDirOption = None,
    env: EnvOption = None,
    ports_from: PortsOption = None,
) -> None:
    """Measure success on held-out tasks, with a 95 % interval. A recipe stands for its run's last model.

    Without --episodes it is measured as the recipe's last measurement is.
    """
    found = resolve(target, run_dir)
    recipe = load_checked(found.recipe, ())
    state_dir = found.run_dir / RUN_STATE / "eval"
    with lock_run(found.run_dir, state_dir):
        sweep(state_dir)
        result_file = state_dir / "result.json"
        result_file.unlink(missing_ok=True)
        plan = run_plan(recipe, env, found.run_dir, state_dir, ports_from)
        err.print(plain(f"measuring {found.checkpoint or 'the initial model'} · logs {state_dir / 'logs'}"))
        work = measurement(found, recipe, episodes, result_file)
        work_with_services(plan, work, RunDisplay(err, lambda: _newest(found.run_dir)))
        measured = Measurement.model_validate_json(result_file.read_bytes())
        for title, line in success_lines(measured).items():
            out.print(plain(f"{title}: {line}" if title else line), soft_wrap=True)


def measurement(found: Target, recipe: Recipe, episodes: int | None, result_file: Path) -> Work:
    """Return the trainer's command that measures, on so many tasks or else as the recipe says."""
    initial = initial_model(recipe, found.run_dir)
    checkpoint = found.checkpoint or Path(initial)
    command = (
        "eval",
        str(found.recipe),
        "--run-dir",
        str(found.run_dir),
        "--checkpoint",
        str(checkpoint),
        "--out",
        str(result_file),
        *(() if episodes is None else ("--num-tasks", str(episodes))),
    )
    # An adapter is put beside the model that the run began with, which engines then load.
    is_engines = found.checkpoint is not None and recipe.model.lora is None
    has_tokenizer = (checkpoint / "tokenizer.json").is_file()
    return Work(
        recipe=recipe,
        recipe_file=str(found.recipe),
        run_dir=found.run_dir,
        command=command,
        build=found.checkpoint is None,
        model=str(checkpoint.resolve()) if is_engines and has_tokenizer else None,
    )


def resolve(target: Path, run_dir: Path | None) -> Target:
    """Find the run that a recipe, directory or checkpoint belongs to. Raises `UsageProblem`."""
    if not target.exists():
        raise UsageProblem(f"there is no recipe and no checkpoint at {target}")
    if target.is_file():
        home = run_dir or Path("runs") / load_with_overrides(target, ()).name
        return Target(recipe=target, run_dir=home, checkpoint=last_model(home))
    home = run_dir or _home_of(target)
    recipe = home / "recipe.toml"
    if not recipe.is_file():
        raise UsageProblem(f"{home} has no recipe.toml; give the recipe, or the run with --run-dir")
    if home.resolve() == target.resolve():
        return Target(recipe=recipe, run_dir=home, checkpoint=last_model(home))
    if not any((path / name).is_file() for path in (target, target / "model") for name in _MODELS):
        raise UsageProblem(f"{target} is neither a run, nor a checkpoint, nor a model directory")
    return Target(recipe=recipe, run_dir=home, checkpoint=target)


def last_model(run_dir: Path) -> Path | None:
    """Return the model of a finished run, else the last checkpoint of an unfinished one."""
    if (run_dir / "model" / "config.json").is_file():
        return run_dir / "model"
    pointer = run_dir / "checkpoints" / "latest"
    if not pointer.is_file():
        return None
    checkpoint = pointer.parent / Path(pointer.read_text(encoding="utf-8").strip()).name
    if not checkpoint.is_dir():
        raise CliError(f"{pointer} names {checkpoint.name}, which is not there")
    return checkpoint


def _home_of(target: Path) -> Path:
    for directory in (target, *target.resolve().parents):
        if (directory / "run.json").is_file():
            return directory
    raise UsageProblem(f"{target} is not inside a run directory; name the run with --run-dir")


def _newest(run_dir: Path) -> RunProgress | None:
    """Read the latest progress, because the trainer measures in a scratch directory of its own."""
    found = [one for path in run_dir.glob(".eval-*") if (one := read_progress(path)) is not None]
    return max(found, key=lambda progress: progress.updated_at, default=None)
