"""`gymfleet report`: write the page of a run."""

from pathlib import Path
from typing import Annotated

import typer

from gymfleet_cli.console import UsageProblem, out
from gymfleet_cli.report import write_report
from gymfleet_cli.run_directory import RunDataError


def report(run_dir: Annotated[Path, typer.Argument(help="Run directory.")]) -> None:
    """Write report.html, one self-contained page, into the run directory."""
    try:
        path = write_report(run_dir)
    except RunDataError as error:
        raise UsageProblem(str(error)) from None
    out.print(f"wrote {path}", soft_wrap=True)
