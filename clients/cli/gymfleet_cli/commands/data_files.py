"""`gymfleet data convert`, `export`, `filter`, `split` and `inspect`: files of records, streamed."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer
from gymfleet_contracts.data_records import Form
from gymfleet_contracts.session import Split
from gymfleet_kit.data.chunks import TABLE, DataError
from gymfleet_kit.data.conversion import OUT, Conversion, Export
from gymfleet_kit.data.converting import CheckedConverter, converter_of, first_form
from gymfleet_kit.data.filtering import filter_of
from gymfleet_kit.data.inspecting import Inspection
from gymfleet_kit.data.jobs import Job
from gymfleet_kit.data.looking import looked
from gymfleet_kit.data.selecting import Selection
from gymfleet_kit.data.splitting import By, Splitting
from gymfleet_kit.plugins import PluginError
from pydantic import JsonValue

from gymfleet_cli.console import CliError, UsageProblem, out
from gymfleet_cli.data_display import DataDisplay, account, facts_table
from gymfleet_cli.options import one_option, options_of

InputsArgument = Annotated[list[Path], typer.Argument(metavar="IN...", help="Files: .jsonl, .json or .parquet.")]
OutputArgument = Annotated[Path, typer.Argument(metavar="OUT", help="What is written: .jsonl or .parquet.")]
FromOption = Annotated[
    str, typer.Option("--from", help="The converter that reads: a name, package.module:Class or a .py file.")
]
ReadOptions = Annotated[
    list[str] | None, typer.Option("--option", help="Set an option of the converter that reads: KEY=VALUE. Repeat.")
]
FormOption = Annotated[
    str | None, typer.Option("--to", help=f"The form that is written: {', '.join(get_args(Form))}. Episodes can become "
                             "conversations.")
]  # fmt: skip
WorkersOption = Annotated[int, typer.Option(min=1, help="Processes, for files of more than 32 MiB.")]
StrictOption = Annotated[bool, typer.Option("--strict", help="Stop at the first record that cannot be used.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace what exists, and begin again.")]
KeepGoingOption = Annotated[
    bool, typer.Option("--keep-going", help="End with code 0 although records were rejected, as long as some were not.")
]
WORKERS: Final = min(2, os.cpu_count() or 1)
_SHARES: Final = ("train=0.9", "validation=0.1")


def convert(
    inputs: InputsArgument,
    output: OutputArgument,
    source: FromOption = "gymfleet",
    option: ReadOptions = None,
    to: FormOption = None,
    workers: WorkersOption = WORKERS,
    strict: StrictOption = False,
    force: ForceOption = False,
    keep_going: KeepGoingOption = False,
) -> None:
    """Convert files of another form to our records."""
    given, converter = _reader(source, option)
    form = _form(to, inputs, output, converter)
    told = {**_told("convert", source, given), "to": form}
    work = Conversion(given, form, output.suffix == TABLE)
    _run(Job(inputs, {OUT: output}, work, told, form, workers, strict, force), keep_going=keep_going)


def export(
    inputs: InputsArgument,
    output: OutputArgument,
    to: Annotated[str, typer.Option(help="The converter whose form is written.")],
    to_option: Annotated[
        list[str] | None, typer.Option("--to-option", help="Set an option of that converter: KEY=VALUE. Repeat.")
    ] = None,
    source: FromOption = "gymfleet",
    option: ReadOptions = None,
    workers: WorkersOption = WORKERS,
    strict: StrictOption = False,
    force: ForceOption = False,
    keep_going: KeepGoingOption = False,
) -> None:
    """Convert our records to another form; fields that the form has no place for are counted by name."""
    given, _ = _reader(source, option)
    target = {"use": to, **dict(map(one_option, to_option or ()))}
    if not _made(target, "--to").writes:
        raise UsageProblem(f"the converter {to} only reads; it has no way back")
    told = {**_told("export", source, given), "to": target, "to_source": _source(to)}
    work = Export(given, target, output.suffix == TABLE)
    _run(Job(inputs, {OUT: output}, work, told, None, workers, strict, force), keep_going=keep_going)


def split(
    inputs: InputsArgument,
    output: OutputArgument,
    share: Annotated[
        list[str] | None, typer.Option("--share", help="SPLIT=PART, such as train=0.9; they add up to 1. Repeat.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed splits otherwise.")] = 0,
    by: Annotated[
        str, typer.Option(help="What is not to be on two sides: the same `task`, or only the same `dialogue`.")
    ] = "task",
    source: FromOption = "gymfleet",
    option: ReadOptions = None,
    workers: WorkersOption = WORKERS,
    strict: StrictOption = False,
    force: ForceOption = False,
    keep_going: KeepGoingOption = False,
) -> None:
    """Split records by a hash of their task or dialogue: OUT.train.jsonl, OUT.validation.jsonl and so on."""
    given, converter = _reader(source, option)
    shares = _shares(share or list(_SHARES))
    if by not in get_args(By):
        raise UsageProblem(f"--by {by}: it is {' or '.join(get_args(By))}")
    form = _form(None, inputs, output, converter)
    outputs: dict[str, Path] = {side: output.with_name(f"{output.stem}.{side}{output.suffix}") for side in shares}
    told: dict[str, JsonValue] = {
        **_told("split", source, given),
        "shares": {str(side): part for side, part in shares.items()},
        "seed": seed,
        "by": by,
    }
    work = Splitting(given, shares, seed, by, form, output.suffix == TABLE)  # type: ignore[arg-type]
    _run(Job(inputs, outputs, work, told, form, workers, strict, force), keep_going=keep_going)


def filter_files(
    inputs: InputsArgument,
    output: OutputArgument,
    names: Annotated[
        list[str], typer.Option("--filter", help="A filter: a name, package.module:Class or a .py file. Repeat.")
    ],
    option: Annotated[
        list[str] | None, typer.Option("--option", help="Set an option of a filter: FILTER.KEY=VALUE. Repeat.")
    ] = None,
    source: FromOption = "gymfleet",
    from_option: Annotated[
        list[str] | None, typer.Option("--from-option", help="Set an option of the converter: KEY=VALUE. Repeat.")
    ] = None,
    to: FormOption = None,
    strict: StrictOption = False,
    force: ForceOption = False,
    keep_going: KeepGoingOption = False,
) -> None:
    """Keep the records that all filters keep; each filter sees only those kept by the filters before it."""
    _, converter = _reader(source, from_option)
    options = options_of(option or (), example="length.max_replies=8")
    short = {name: Path(name).stem if name.endswith(".py") else name for name in names}
    if unknown := sorted(set(options) - set(short.values())):
        raise UsageProblem(
            f"options are given for {', '.join(unknown)}, and the filters are {', '.join(short.values())}"
        )
    try:
        filters = [filter_of({"use": name, **options.get(short[name], {})}, table=f"--filter {name}") for name in names]
    except PluginError as error:
        raise UsageProblem(str(error)) from None
    form = _form(to, inputs, output, converter)
    selection = Selection(inputs, output, converter, filters, form, strict, force)
    with DataDisplay("filter") as display:
        selection.on_progress, selection.on_rejected = display.progress, display.rejected
        counts = _carried_out(selection.run)
    account(counts, display.seconds, sum(path.stat().st_size for path in inputs))
    _judge(counts, selection.rejected_path, keep_going=keep_going)


def inspect(
    inputs: InputsArgument,
    source: FromOption = "gymfleet",
    option: ReadOptions = None,
    workers: WorkersOption = WORKERS,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Count the contents of files: forms, environments, success, turns, lengths, and unusable records."""
    given, _ = _reader(source, option)
    with DataDisplay("inspect") as display:
        counts = _carried_out(
            lambda: looked(
                inputs, Inspection(given), workers, on_progress=display.progress, on_rejected=display.rejected
            )
        )
    if as_json:
        out.print_json(json.dumps(dict(sorted(counts.items()))))
    else:
        out.print(facts_table(counts))
    if counts["rejected"]:
        raise CliError(f"{counts['rejected']} of {counts['read']} records cannot be used")


def _run(job: Job, *, keep_going: bool) -> None:
    with DataDisplay(str(job.told["command"])) as display:
        job.on_progress, job.on_rejected = display.progress, display.rejected
        counts = _carried_out(job.run)
    account(counts, display.seconds, sum(path.stat().st_size for path in job.inputs), resumed=job.resumed)
    _judge(counts, job.rejected_path, keep_going=keep_going)


def _carried_out(run: Any) -> Any:
    try:
        return run()
    except (DataError, PluginError) as error:
        raise CliError(str(error)) from None


def _judge(counts: Mapping[str, int], rejected: Path, *, keep_going: bool) -> None:
    if counts["rejected"] and not (keep_going and counts["written"]):
        raise CliError(
            f"{counts['rejected']} of {counts['read']} records were rejected; they and the reasons: {rejected}"
        )


def _reader(source: str, option: Sequence[str] | None) -> tuple[dict[str, JsonValue], CheckedConverter]:
    given: dict[str, JsonValue] = {"use": source, **dict(map(one_option, option or ()))}
    return given, _made(given, "--from")


def _made(given: Mapping[str, JsonValue], table: str) -> CheckedConverter:
    try:
        return converter_of(given, table=table)
    except PluginError as error:
        raise UsageProblem(str(error)) from None


def _form(to: str | None, inputs: Sequence[Path], output: Path, converter: CheckedConverter) -> Form | None:
    """Return the one form to write; by default a table has that of the first record."""
    if to is not None:
        if to not in get_args(Form):
            raise UsageProblem(f"--to {to}: the forms are {', '.join(get_args(Form))}")
        return to  # type: ignore[return-value]
    if output.suffix != TABLE:
        return None
    found: Form | None = _carried_out(lambda: first_form(inputs, converter))
    return found


def _shares(given: Sequence[str]) -> dict[Split, float]:
    found: dict[Split, float] = {}
    for one in given:
        side, value = one_option(one, name="--share", example="SPLIT=PART")
        if side not in get_args(Split) or isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise UsageProblem(f"--share {one}: give {', '.join(get_args(Split))} and a part of 1, as in train=0.9")
        found[side] = float(value)  # type: ignore[index]
    if abs(sum(found.values()) - 1) > 1e-9:
        raise UsageProblem(f"--share: the parts add up to {sum(found.values()):g}, and not to 1")
    return found


def _told(command: str, source: str, given: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {"command": command, "from": dict(given), "source": _source(source)}


def _source(reference: str) -> str:
    """Return a digest of a plug-in's file, or an empty string: a changed plug-in makes other records."""
    path = Path(reference)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
