"""`gymfleet up`, `down` and `status`: the services as local processes."""

import secrets
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from gymfleet_cli.commands.data import DataOption, data_of
from gymfleet_cli.console import CliError, UsageProblem, err, out, plain
from gymfleet_cli.display import StartDisplay
from gymfleet_cli.interpreters import prepare_interpreters
from gymfleet_cli.options import OptionsOption, options_of, served_options
from gymfleet_cli.progress import describe, read_progress
from gymfleet_cli.run_directory import RUN_STATE
from gymfleet_cli.supervisor.interrupts import Interrupts
from gymfleet_cli.supervisor.placement import Placement, placement_of_engine
from gymfleet_cli.supervisor.plan import GATEWAY, Plan, choose_ports
from gymfleet_cli.supervisor.service import Service, unready_reason
from gymfleet_cli.supervisor.state import FleetState, ServiceRecord, read_state
from gymfleet_cli.supervisor.supervisor import Supervisor
from gymfleet_cli.supervisor.sweep import sweep

DEFAULT_ENVIRONMENTS: Final = ("maze", "textcraft", "wordle", "babyai")
"""The environments that `up` serves without `--env`: those that need only Python."""

StateDir = Annotated[Path, typer.Option(help="Where the fleet's state and logs live.")]


def up(
    env: Annotated[
        list[str] | None,
        typer.Option(help="Environment to serve: a name, package.module:Class or a .py file. Repeat for several."),
    ] = None,
    data: DataOption = None,
    option: OptionsOption = None,
    model: Annotated[Path | None, typer.Option(help="Model directory; also starts the rollout service.")] = None,
    state_dir: StateDir = Path(".gymfleet"),
    ports_from: Annotated[int, typer.Option(help="First of a row of ports.")] = 8200,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, restart what dies, stop on Ctrl-C.")] = False,
) -> None:
    """Start the services on this machine and wait until each is ready."""
    if model is not None and not (model / "config.json").is_file():
        raise UsageProblem(f"--model {model}: there is no model (a directory with config.json)")
    state = read_state(state_dir)
    if state is not None and state.living:
        raise CliError(f"{len(state.living)} services run already in {state_dir}; `gymfleet down` stops them")
    sweep(state_dir)
    envs = tuple(dict.fromkeys(env or DEFAULT_ENVIRONMENTS))
    benchmarks = data_of(data)
    unserved = sorted(set(benchmarks) - set(envs))
    if unserved and len(envs) > 1:  # the name of a file's or class's environment is not known here
        raise UsageProblem(f"--data {unserved[0]}: this environment is not served; served are {', '.join(envs)}")
    prepare_interpreters(envs)
    plan = Plan(
        directory=state_dir,
        ports=choose_ports(envs, ports_from),
        envs=envs,
        gateway_secret=secrets.token_hex(32),
        data=benchmarks,
        options=served_options(envs, options_of(option or ())),
        placement=Placement() if model is None else placement_of_engine(),
    )
    waves = [[plan.redis(), *plan.env_servers()], [*plan.gateways(), *plan.rewards()]]
    if model is not None:
        waves.append(plan.rollouts(str(model.resolve())))
    with (
        Interrupts() as interrupts,
        Supervisor(
            state_dir,
            interrupts=interrupts,
            tethered=foreground,
            gateway_secret=plan.gateway_secret,
            keys=plan.keys,
        ) as supervisor,
    ):
        start_waves(supervisor, waves)
        out.print(f"gateway  {plan.ports.url(GATEWAY)}   logs  {state_dir / 'logs'}", soft_wrap=True)
        if foreground:
            out.print("Ctrl-C stops all services.")
            supervisor.watch_forever()
    out.print("`gymfleet status` shows the services, `gymfleet down` stops them.")


def start_waves(supervisor: Supervisor, waves: list[list[Service]]) -> None:
    """Start the waves one after another, each once the previous one is ready, with a display."""
    with StartDisplay(err, lambda: supervisor.waiting) as display:
        for wave in waves:
            for service in wave:
                supervisor.start(service)
            supervisor.wait_ready([service.name for service in wave], display.refresh)


def down(state_dir: StateDir = Path(".gymfleet")) -> None:
    """Stop all services; does nothing when none runs."""
    stopped = sweep(state_dir)
    out.print(f"stopped {stopped} service{'' if stopped == 1 else 's'}" if stopped else "no services run")


def status(
    state_dir: StateDir = Path(".gymfleet"),
    runs_dir: Annotated[Path, typer.Option(help="Where runs are looked for.")] = Path("runs"),
) -> None:
    """Show the services, and the runs in progress."""
    directories = [state_dir, *(path.parent for path in sorted(runs_dir.glob(f"*/{RUN_STATE}/fleet.json")))]
    states = [(directory, state) for directory in directories if (state := read_state(directory)) is not None]
    for directory, state in states:
        _show(directory, state)
    if not states:
        out.print("no services run")


def _show(directory: Path, state: FleetState) -> None:
    table = Table(title=str(directory), title_justify="left")
    for column in ("service", "pid", "address", "ready"):
        table.add_column(column, overflow="fold")
    for service in state.services:
        table.add_row(service.name, str(service.process.pid), service.url, _readiness(service))
    out.print(table)
    if state.run_dir is not None:
        progress = read_progress(Path(state.run_dir))
        out.print(plain(f"run {state.run_dir}: {describe(progress) if progress else 'starting'}"))


def _readiness(service: ServiceRecord) -> Text:
    if not service.process.alive:
        return Text(f"dead, see {service.log}", style="red")
    if service.probe == "none":
        return Text("running", style="green")
    reason = unready_reason(service.probe, service.url)
    return Text("ready", style="green") if reason is None else plain(reason, "yellow")
