"""`gymfleet envs list` and `show`: the environments that can be played."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer
from gymfleet_client.sync import SyncGatewayClient
from gymfleet_contracts.session import Capabilities, EnvironmentSpec, ForkSupport
from gymfleet_kit.plugins import included
from rich.table import Table

from gymfleet_cli.commands.data import DataOption, data_of
from gymfleet_cli.commands.fleet import StateDir
from gymfleet_cli.console import CliError, err, out, plain
from gymfleet_cli.gateway import describe, running_gateway, session_api

app = typer.Typer(help="The environments: list, describe, play by hand.", no_args_is_help=True)

ENVIRONMENTS: Final = tuple(included("gymfleet_envs", "environment"))
"""The environments that come with gymfleet."""
Url = Annotated[str | None, typer.Option("--url", help="A gateway or env server. Default: the running fleet's.")]


@app.command("list")
def list_environments(url: Url = None, data: DataOption = None, state_dir: StateDir = Path(".gymfleet")) -> None:
    """List the served environments, or gymfleet's own when nothing runs."""
    table = Table()
    for column in ("name", "version", "tasks from", "levels", "tasks", "can", "summary"):
        table.add_column(column, overflow="fold")
    directories = data_of(data)
    address = url or (None if directories else running_gateway(state_dir))
    if address is None:
        specs, missing = describe(ENVIRONMENTS, directories)
    else:
        with session_api(address, state_dir, ()) as client:
            specs, missing = client.environments(), []
    for spec in specs:
        table.add_row(
            spec.name,
            plain(spec.version),
            plain(spec.task_source),
            plain(", ".join(spec.levels)),
            plain(_tasks(spec)),
            plain(_capabilities(spec.capabilities)),
            plain(spec.summary),
        )
    out.print(table)
    for reason in missing:
        err.print(plain(f"not here: {reason}", "yellow"), soft_wrap=True)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Environment: a name, package.module:Class or a .py file.")],
    url: Url = None,
    data: DataOption = None,
    state_dir: StateDir = Path(".gymfleet"),
) -> None:
    """Show an environment's own description."""
    with environment_api(name, url, data, state_dir) as (_, spec):
        out.print(_description(spec))
        out.print()
        out.print(plain(spec.instructions))


@contextmanager
def environment_api(
    name: str, url: str | None, data: list[str] | None, state_dir: Path
) -> Iterator[tuple[SyncGatewayClient, EnvironmentSpec]]:
    """Yield a client of the service that serves the environment `name`, and the environment's description."""
    with session_api(url, state_dir, (name,), data_of(data)) as client:
        yield client, find_spec(client, name)


def find_spec(client: SyncGatewayClient, name: str) -> EnvironmentSpec:
    """Return the environment called `name`; for a class or a file, return the only served one."""
    if ":" not in name and "/" not in name and not name.endswith(".py"):
        return client.environment(name)
    served = client.environments()
    if len(served) != 1:
        raise CliError(f"name one of the environments that are served: {', '.join(spec.name for spec in served)}")
    return served[0]


def _description(spec: EnvironmentSpec) -> Table:
    table = Table.grid(padding=(0, 2))
    capabilities = spec.capabilities
    for label, value in {
        "name": f"{spec.name} {spec.version}",
        "summary": spec.summary,
        "levels": ", ".join(f"{level} (default)" if level == spec.default_level else level for level in spec.levels),
        "tasks": f"{_tasks(spec)} ({spec.task_source})",
        "turns": f"at most {spec.max_turns}",
        "reply format": spec.format,
        "fork": capabilities.fork.value,
        "deterministic": "yes" if capabilities.deterministic else "no",
        "expert": "yes, on the train split" if capabilities.expert else "no",
        "asks models": ", ".join(f"{role.name} ({role.purpose})" for role in spec.models) or "none",
        "players": ", ".join(spec.seats) or "one",
        "licence": spec.licence or "-",
    }.items():
        table.add_row(plain(label, "bold"), plain(value))
    return table


def _capabilities(capabilities: Capabilities) -> str:
    flags = {
        "deterministic": capabilities.deterministic,
        "stable observations": capabilities.stable_observations,
        f"fork ({capabilities.fork.value})": capabilities.fork is not ForkSupport.NONE,
        "expert": capabilities.expert,
    }
    return ", ".join(name for name, has in flags.items() if has)


def _tasks(spec: EnvironmentSpec) -> str:
    return ", ".join(f"{split} {count}" for split, count in spec.splits.items() if count)
