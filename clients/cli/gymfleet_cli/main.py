"""Entry point: the table of commands, and the handling of every expected failure."""

import sys
from collections.abc import Sequence
from importlib.metadata import version as installed_version
from typing import Final

import httpx
import structlog
import typer
from gymfleet_client.errors import ClientError
from gymfleet_contracts.recipe import RecipeError

from gymfleet_cli.commands import (
    annotate,
    check,
    collect,
    conformance,
    data,
    data_augment,
    data_files,
    dataproto,
    envs,
    evaluate,
    events,
    fleet,
    hub,
    keys,
    new,
    plan,
    play,
    plugins,
    report,
    scale,
    train,
    trajectories,
)
from gymfleet_cli.console import CliError, one_line, out
from gymfleet_cli.supervisor.errors import FleetError, Interrupted

# `ClickException`: newer versions of typer carry click inside, older ones depend on it.
_UsageException: Final[type[Exception]] = typer.BadParameter.__mro__[2]
_INTERRUPTED: Final = 130

app: Final = typer.Typer(
    name="gymfleet",
    help="Agent environments as HTTP services, and reinforcement learning of LLM agents against them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(fleet.up)
app.command()(fleet.down)
app.command()(fleet.status)
app.command()(train.train)
app.command()(plan.plan)
app.command("eval")(evaluate.evaluate)
app.command()(collect.collect)
app.command()(events.events)
app.command()(report.report)
app.command()(scale.scale)
app.add_typer(envs.app, name="envs")
envs.app.command("play")(play.play)
app.add_typer(plugins.app, name="plugins")
app.command()(new.new)
app.command()(check.check)
app.add_typer(trajectories.app, name="trajectories")
app.command()(conformance.conformance)
app.add_typer(keys.app, name="keys")
app.add_typer(data.app, name="data")
data.app.command()(data_files.convert)
data.app.command()(data_files.export)
data.app.command("filter")(data_files.filter_files)
data.app.command()(data_files.split)
data.app.command()(data_files.inspect)
data.app.command("annotate")(annotate.annotate)
data.app.command("dataproto")(dataproto.dataproto)
data.app.command()(data_augment.augment)
data.app.command("push")(hub.push_data)
data.app.command("pull")(hub.pull_data)
app.add_typer(hub.app, name="models")


@app.command()
def version() -> None:
    """Print the installed version."""
    out.print(f"gymfleet {installed_version('gymfleet')}")


def run(arguments: Sequence[str]) -> int:
    """Carry out a command line and return the exit code: 1 failure, 2 usage, 3 a spent budget, 130 Ctrl-C."""
    try:
        code = typer.main.get_command(app).main(list(arguments), prog_name="gymfleet", standalone_mode=False)
    except (CliError, FleetError, RecipeError, ClientError, httpx.HTTPError, Interrupted, _UsageException) as error:
        return _explain(error)
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except BrokenPipeError:
        sys.stdout = None  # the reader of the pipe, perhaps `head`, has closed it, so nothing is flushed to it at exit
        return 1
    return code if isinstance(code, int) else 0


def _explain(error: Exception) -> int:
    if isinstance(error, Interrupted):
        return error.exit_code
    default = 2 if isinstance(error, RecipeError) else 1
    describe = getattr(error, "format_message", error.__str__)
    if message := one_line(str(describe())):
        sys.stderr.write(f"error: {message}\n")
    return int(getattr(error, "exit_code", default))


def main() -> None:
    """Run the console script."""
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))  # what the kit's modules log
    sys.exit(run(sys.argv[1:]))
