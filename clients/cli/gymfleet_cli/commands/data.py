"""`gymfleet data import` and `list`: benchmark files supplied by the user."""

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from gymfleet_cli.benchmark_data import chosen, data_home
from gymfleet_cli.console import CliError, UsageProblem, err, out, plain
from gymfleet_cli.options import one_option
from gymfleet_cli.supervisor.service import console_script, reason_of

app = typer.Typer(
    help="Benchmark data: import, list. Files of records: convert, export, filter, augment, split, inspect.",
    no_args_is_help=True,
)

DataOption = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        help="Play the benchmark's tasks instead of generated ones: ENV for imported data, or ENV=DIRECTORY. Repeat.",
    ),
]


@app.command("import")
def import_data(
    env: Annotated[str, typer.Argument(help="Environment: a name, package.module:Class or a .py file.")],
    path: Annotated[Path, typer.Argument(help="Directory with the benchmark's files, as they were published.")],
    option: Annotated[
        list[str] | None, typer.Option("--option", help="Set an option of the environment: KEY=VALUE. Repeat.")
    ] = None,
) -> None:
    """Check a benchmark's files, convert or index them where needed, and keep them for `--data ENV`."""
    options = json.dumps(dict(map(one_option, option or ())))
    if not path.is_dir():
        raise UsageProblem(f"{path} is not a directory; give the one that holds the benchmark's files")
    argv = [console_script("gymfleet-env-import"), env, str(path), str(data_home()), "--options", options]
    with err.status(f"checking {env}'s files"):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CliError(reason_of("gymfleet-env-import", done))
    err.print(plain(done.stderr.rstrip(), "dim"), soft_wrap=True)  # the environment's messages about its files
    found = json.loads(done.stdout)
    table = Table(title=f"{found['name']}: {found['task_source']}", title_justify="left")
    for column in ("level", "train", "validation", "test"):
        table.add_column(column, overflow="fold", justify="left" if column == "level" else "right")
    for level, counts in found["tasks"].items():
        table.add_row(plain(level), *(str(counts[split]) for split in ("train", "validation", "test")))
    out.print(table)
    for reason in found["left_out"]:
        out.print(plain(f"left out: {reason}"), soft_wrap=True)
    name = found["name"]
    out.print(plain(f"kept in {found['path']}"), soft_wrap=True)
    out.print(plain(f'use it with `gymfleet up --env {env} --data {name}`, or `tasks = "benchmark"` in a recipe'))


@app.command("list")
def list_data() -> None:
    """List the imported benchmark data."""
    home = data_home()
    names = sorted(path.name for path in home.glob("[a-z]*") if path.is_dir()) if home.is_dir() else []
    for name in names:
        out.print(plain(f"{name}  {home / name}"), soft_wrap=True)
    if not names:
        out.print("no benchmark data was imported; `gymfleet data import ENV DIRECTORY` does it")


def data_of(values: Iterable[str] | None) -> dict[str, Path]:
    """Return the directories named by `--data`, by environment. Raises `UsageProblem`."""
    try:
        return chosen(values or ())
    except FileNotFoundError as error:
        raise UsageProblem(f"--data {error}") from None
