"""`gymfleet events`: print the events of a run, in order."""

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import typer
from gymfleet_contracts.run import RunEvent
from gymfleet_kit.run_events import EventsDamaged, read_events

from gymfleet_cli.console import CliError, UsageProblem, out, plain
from gymfleet_cli.run_directory import RunDataError, RunFiles

_AT_ONCE: Final = 256
_PAUSE_S: Final = 0.5
_ENDS: Final = frozenset({"done", "failed", "interrupted"})


def events(
    run_dir: Annotated[Path, typer.Argument(help="Run directory.")],
    after: Annotated[int, typer.Option(min=0, help="Begin behind the event of this number.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON for each, as in events.jsonl.")] = False,
) -> None:
    """Print the events of a run, in order."""
    try:
        path = RunFiles.open(run_dir).path
        while True:
            found = read_events(path, after, _AT_ONCE)
            for event in found:
                out.print(plain(_line(event, as_json=as_json)), soft_wrap=True)
            if found:
                after = found[-1].number
            ended = bool(found) and found[-1].kind in _ENDS
            if not found or ended:
                if not follow or ended:
                    return
                time.sleep(_PAUSE_S)
    except RunDataError as error:
        raise UsageProblem(str(error)) from None
    except EventsDamaged as error:
        raise CliError(str(error)) from None


def _line(event: RunEvent, *, as_json: bool) -> str:
    if as_json:
        return event.model_dump_json(exclude_defaults=True)
    at = datetime.fromtimestamp(event.time).astimezone().strftime("%H:%M:%S")
    told = [f"{name}={_shown(value)}" for name, value in event.data.items()]
    if event.places:
        told.append(f"{len(event.places)} in {next(iter(event.places.values())).file}")
    return " ".join([f"{event.number:>6} {at} {event.kind}", *([event.stage] if event.stage else []), *told])


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
