"""`gymfleet data augment`: make more demonstrations from existing ones, and play each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from gymfleet_contracts.conversation import Conversation
from gymfleet_contracts.reply_format import FormatSection
from gymfleet_contracts.trajectory import ScoredTrajectory, Trajectory
from gymfleet_kit.data.augmenting import CheckedAugmenter, augmenter_of, proposed
from gymfleet_kit.data.chunks import DataError
from gymfleet_kit.data.converting import ConverterFailed, converter_of
from gymfleet_kit.data.outputs import Output
from gymfleet_kit.data.reading import records
from gymfleet_kit.formats import CheckedFormat, format_of
from gymfleet_kit.plugins import PluginError

from gymfleet_cli.commands.envs import Url
from gymfleet_cli.commands.fleet import StateDir
from gymfleet_cli.console import CliError, UsageProblem, out
from gymfleet_cli.gateway import session_api
from gymfleet_cli.options import options_of
from gymfleet_cli.replay_state import ReplayState
from gymfleet_cli.replaying import replayed


def augment(
    episodes: Annotated[Path, typer.Argument(metavar="EPISODES", help="A file of our episodes.")],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The conversations that are written: .jsonl.")],
    augmenter: Annotated[
        list[str], typer.Option("--augmenter", help="A name, package.module:Class or a .py file. Repeat.")
    ],
    option: Annotated[
        list[str] | None, typer.Option("--option", help="Set an option: AUGMENTER.KEY=VALUE. Repeat.")
    ] = None,
    reply_format: Annotated[str, typer.Option("--format", help="The format that replies are written in.")] = "react",
    max_replays: Annotated[int, typer.Option(min=1, help="Of what is proposed the first so many are played.")] = 2000,
    url: Url = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what exists.")] = False,
    state_dir: StateDir = Path(".gymfleet"),
) -> None:
    """Change episodes, play each change in its environment, and keep those that still solve the task.

    Give a killed command again to go on where it was.
    """
    if output.exists() and not force:
        raise CliError(f"{output} exists; give another name, or --force to replace it")
    if output.suffix != ".jsonl":
        raise UsageProblem(f"{output}: what is written is a .jsonl file; `gymfleet data convert` makes a table of it")
    augmenters, written_in = _plugins(augmenter, option or (), reply_format)
    try:
        given = _read(episodes)
        changes = list(proposed(augmenters, given))[:max_replays]
    except (DataError, PluginError) as error:
        raise CliError(str(error)) from None
    state = ReplayState(Output(output), changes, reply_format)
    try:
        state.begin(anew=force)
    except DataError as error:
        raise CliError(str(error)) from None
    if state.played:
        out.print(f"going on behind the {state.played} changes that were played")
    try:
        with session_api(url, state_dir, tuple(sorted({one.task.env for one in given}))) as client:
            instructions = {
                env: client.environment(env).instructions for env in {one.task.env for _, one, _ in changes}
            }
            for name, episode, moves in changes[state.played :]:
                made = replayed(client, episode.task, moves, written_in, instructions[episode.task.env])
                state.note(name, _line(made, f"{episode.trajectory_id}, {name}"))
    except BaseException:
        state.stop()
        raise
    try:
        state.finish()
    except DataError as error:
        raise CliError(str(error)) from None
    for what, number in state.counts.items():
        out.print(f"{number:8}  {what}", highlight=False)


def _line(made: Conversation | None, source: str) -> bytes | None:
    """Return the line to keep of a change that was played: None unless it solved the task."""
    if made is None or not made.success:
        return None
    return made.model_copy(update={"source": source}).model_dump_json().encode() + b"\n"


def _plugins(
    names: Sequence[str], option: Sequence[str], reply_format: str
) -> tuple[dict[str, CheckedAugmenter], CheckedFormat]:
    options = options_of(option, example="paraphrase.copies=3")
    if unknown := sorted(set(options) - {Path(name).stem for name in names}):
        raise UsageProblem(f"options are given for {', '.join(unknown)}, and the augmenters are {', '.join(names)}")
    try:
        made = [
            augmenter_of({"use": name, **options.get(Path(name).stem, {})}, table=f"--augmenter {name}")
            for name in names
        ]
        return {one.name: one for one in made}, format_of(FormatSection(use=reply_format))
    except PluginError as error:
        raise UsageProblem(str(error)) from None


def _read(path: Path) -> list[Trajectory]:
    """Return the episodes of a file. Raises `DataError` for any other record, and for damage."""
    converter = converter_of("gymfleet", table="EPISODES")
    found: list[Trajectory] = []
    for place, record in records(path):
        try:
            (one,) = converter.convert(record)
        except ConverterFailed:
            raise
        except ValueError as error:
            raise DataError(f"{place}: no record of ours: {' '.join(str(error).split())}") from None
        if not isinstance(one, ScoredTrajectory):
            raise DataError(f"{place}: it is no episode; augmenters change what was done in an environment")
        found.append(one.trajectory)
    if not found:
        raise DataError(f"{path} holds no episode")
    return found
