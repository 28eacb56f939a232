"""The common part of `train` and `eval`: one command of the trainer, and the services of its run around it."""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gymfleet_contracts.recipe import Recipe

from gymfleet_cli.commands.data import data_of
from gymfleet_cli.commands.fleet import start_waves
from gymfleet_cli.console import CliError, UsageProblem, err
from gymfleet_cli.display import StartDisplay
from gymfleet_cli.interpreters import prepare_interpreters
from gymfleet_cli.options import served_options
from gymfleet_cli.progress import RunDisplay
from gymfleet_cli.recipes import to_toml
from gymfleet_cli.run_directory import RUN_STATE
from gymfleet_cli.supervisor.interrupts import Interrupts
from gymfleet_cli.supervisor.placement import placement_of
from gymfleet_cli.supervisor.plan import Plan, choose_ports, inherited_models
from gymfleet_cli.supervisor.supervisor import Supervisor
from gymfleet_cli.trained_models import trained_models


@dataclass(frozen=True, slots=True)
class Work:
    """A command of the trainer, and what must exist before it starts."""

    recipe: Recipe
    recipe_file: str
    """The file from which the model's builder and the engine read the recipe."""
    run_dir: Path
    command: tuple[str, ...]
    """`run` or `eval`, with its arguments."""
    build: bool = True
    """Whether the model may have to be built first; an existing model is kept."""
    model: str | None = None
    """The model that the engine loads at its start, if not the recipe's initial one."""


def run_plan(recipe: Recipe, env: str | None, run_dir: Path, state_dir: Path, ports_from: int | None) -> Plan:
    """Return the services of a run; `env` is the source of its only environment, if not gymfleet's own.

    Raises:
        UsageProblem: a source is given for several environments; the recipe's benchmark files are missing; or GPUs are
            missing, or in use.
        RecipeError: a reward names a model that the operator has not set and no earlier stage trains.
    """
    served = {section.name: section for section in recipe.environments}
    if env is not None and len(served) > 1:
        raise UsageProblem(
            f"--env {env}: it stands for the only environment, and the recipe has {', '.join(served)}; install yours "
            "as a package that declares its name"
        )
    sources = tuple(served) if env is None else (env,)
    prepare_interpreters(sources)
    components = {used for reward in recipe.rewards().values() for used in reward.used.values()}
    return Plan(
        directory=state_dir,
        ports=choose_ports(sources, ports_from, recipe.scale),
        envs=sources,
        gateway_secret=_gateway_secret(state_dir),
        data=data_of(name for name, section in served.items() if section.tasks == "benchmark"),
        options=served_options(sources, {name: section.options for name, section in served.items()}),
        components=tuple(sorted(used for used in components if not used.isidentifier())),
        scale=recipe.scale,
        placement=placement_of(recipe),
        reward_models=trained_models(recipe, run_dir, set(inherited_models())),
    )


@contextmanager
def lock_run(run_dir: Path, state_dir: Path) -> Iterator[None]:
    """Make and lock the run's directories; the lock ends with the block, or with the process.

    Raises `UsageProblem` for a directory that holds other things, `CliError` when another command works in it.
    """
    if run_dir.is_dir() and any(run_dir.iterdir()) and not is_run(run_dir):
        raise UsageProblem(f"{run_dir} is not empty and holds no run; choose another --run-dir")
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise CliError(f"cannot write to {state_dir}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CliError(
                f"another gymfleet command works in {run_dir}; stop it or choose another --run-dir"
            ) from None
        yield
    finally:
        os.close(descriptor)


def is_run(directory: Path) -> bool:
    """Return whether a run is in progress, or was begun, in `directory`."""
    return (directory / "run.json").is_file() or (directory / RUN_STATE).is_dir()


def recipe_file(recipe: Recipe, state_dir: Path) -> str:
    """Write a recipe that is not in a file in this form, for the trainer; return the path."""
    written = state_dir / "recipe.toml"
    written.write_text(to_toml(recipe), encoding="utf-8")
    return str(written)


def _gateway_secret(state_dir: Path) -> str:
    """Return one secret for the whole run, so that sessions survive a restart of the gateway."""
    path = state_dir / "secret"
    if not path.is_file():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32), encoding="ascii")
    return path.read_text(encoding="ascii")


def work_with_services(plan: Plan, work: Work, display: RunDisplay) -> None:
    """Start the services, build a model from scratch, start the engine, carry out the command, stop everything.

    Raises `ServiceFailed` or `Interrupted`; every process has ended when this returns or raises.
    """
    with (
        Interrupts() as interrupts,
        Supervisor(
            plan.directory,
            interrupts=interrupts,
            tethered=True,
            gateway_secret=plan.gateway_secret,
            keys=plan.keys,
            run_dir=work.run_dir,
        ) as supervisor,
    ):
        start_waves(supervisor, [[plan.redis(), *plan.env_servers()], [*plan.gateways(), *plan.rewards()]])
        run_dir = ("--run-dir", str(work.run_dir))
        if work.build and work.recipe.model.scratch is not None:
            with StartDisplay(err, lambda: supervisor.waiting, quiet=True) as building:
                supervisor.run(plan.trainer("build", work.recipe_file, *run_dir), building.refresh)
        start_waves(supervisor, [plan.rollouts(work.model, "--recipe", work.recipe_file, *run_dir)])
        with display:
            supervisor.run(plan.trainer(*work.command), display.refresh)
