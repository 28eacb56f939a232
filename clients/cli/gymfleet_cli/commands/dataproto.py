"""`gymfleet data dataproto`: convert episodes to a verl batch, and back."""

from pathlib import Path
from typing import Annotated

import typer
from gymfleet_contracts.trajectory import ScoredTrajectory

from gymfleet_cli.annotating.groups import episodes_in
from gymfleet_cli.console import CliError, UsageProblem, out, plain


def dataproto(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Episodes in a file, or the directory of a batch.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="A new directory, or a new .jsonl file of episodes.")],
    pad_token_id: Annotated[int, typer.Option(min=0, help="The token that fills up rows.")] = 0,
) -> None:
    """Write episodes as a batch for verl's DataProto, without pickle; read a directory back into a file."""
    try:
        from gymfleet_kit.data import dataproto as kit  # noqa: PLC0415 - numpy is heavy, and not everybody has it
        from gymfleet_kit.data.reading import DataError  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise CliError(f"this needs {error.name}: install gymfleet[trainer]") from None
    if target.exists():
        raise UsageProblem(f"{target} is there already; choose another name")
    try:
        if source.is_dir():
            found = kit.episodes_of(kit.read(source))
            _write(found, target)
        else:
            found = list(episodes_in(source))
            kit.write(kit.batch_of(found, pad_token_id=pad_token_id), target)
    except DataError as error:
        raise CliError(f"{source}: {error}" if str(source) not in str(error) else str(error)) from None
    out.print(plain(f"{target}: {len(found)} episodes"), soft_wrap=True)


def _write(episodes: list[ScoredTrajectory], target: Path) -> None:
    if target.suffix != ".jsonl":
        raise UsageProblem(f"{target}: episodes are written to a .jsonl file")
    partial = target.with_name(f"{target.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.writelines(f"{one.model_dump_json()}\n" for one in episodes)
    partial.rename(target)
