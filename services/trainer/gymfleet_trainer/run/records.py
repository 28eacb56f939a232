"""The records that a stage's `data` names: episodes and conversations, from earlier stages and from files."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gymfleet_contracts.conversation import Conversation, Record
from gymfleet_contracts.data_records import DataRecord, Preference
from gymfleet_contracts.recipe import Recipe, RecipeError
from gymfleet_contracts.stages import is_path
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.data.converting import CheckedConverter, ConverterFailed, converter_of, data_records, learnable
from gymfleet_kit.data.reading import DataError

from gymfleet_trainer.errors import PluginFailed, RunDirectoryError
from gymfleet_trainer.run.run_directory import RunDirectory
from gymfleet_trainer.stage import Stage

RecordT = TypeVar("RecordT", bound=DataRecord)


def read(directory: RunDirectory, data: Sequence[str], converter: CheckedConverter | None) -> list[list[Record]]:
    """Return the records of each source that `data` names; files are read by the converter, if there is one.

    Raises:
        RunDirectoryError: a file is missing or damaged, or not in the expected form.
        PluginFailed: the converter is at fault.
    """
    return [_read(directory, reference, converter) for reference in data]


def _read(directory: RunDirectory, reference: str, converter: CheckedConverter | None) -> list[Record]:
    if not is_path(reference):
        return directory.read_records(directory.episodes(reference))
    if converter is None and not reference.endswith(".parquet"):
        return directory.read_records(Path(reference))
    return _converted(Path(reference), converter or converter_of("gymfleet", table="converter"))


def read_all(directory: RunDirectory, data: Sequence[str], converter: CheckedConverter | None) -> list[DataRecord]:
    """Return the records that `data` names, in any form, including preferences. Raises as `read` does."""
    ours = converter_of("gymfleet", table="converter")
    found: list[DataRecord] = []
    for reference in data:
        if is_path(reference):
            found += _made(data_records(Path(reference), converter or ours))
        else:
            found += directory.read_records(directory.episodes(reference))
    return found


def _converted(path: Path, converter: CheckedConverter) -> list[Record]:
    return _made(learnable(path, converter))


def _made(records: Iterator[RecordT]) -> list[RecordT]:
    try:
        return list(records)
    except DataError as error:
        raise RunDirectoryError(str(error)) from None
    except ConverterFailed as error:
        raise PluginFailed(f"{error}; its traceback is in the log") from error


def require_no_held_out(records: Iterable[Record | Preference], recipe: Recipe, named: str) -> None:
    """Raise RunDirectoryError for records of measured tasks, which must not be learned from."""
    held_out = {(env.name, env.eval_split) for env in recipe.environments}
    for record in records:
        if isinstance(record, Conversation | Preference):
            task = record.task
            if task is not None and (task.env, task.split) in held_out:
                raise RunDirectoryError(
                    f"{named} holds a held-out task ({record.source}: {task.task_id}, of {task.env}'s {task.split} "
                    "split): what is measured is not learned from"
                )
        elif record.trajectory.purpose == "eval":
            raise RunDirectoryError(
                f"{named} holds held-out episodes ({record.trajectory.trajectory_id}): what is measured is not "
                "learned from"
            )


def require_tokens_of(vocab_size: int, episodes: Sequence[ScoredTrajectory], named: str) -> None:
    """Raise RunDirectoryError for episodes with tokens that the model does not have, or without any tokens."""
    for scored in episodes:
        trajectory = scored.trajectory
        if trajectory.turns and not any(turn.prompt_token_ids for turn in trajectory.turns):
            raise RunDirectoryError(
                f"{named} has an episode without tokens ({trajectory.trajectory_id}), which {trajectory.policy.model} "
                "played: `gymfleet collect --form conversations` writes what can be learned from"
            )
    turns = [turn for scored in episodes for turn in scored.trajectory.turns]
    ids = (*(turn.prompt_token_ids for turn in turns), *(turn.response_token_ids for turn in turns))
    highest = max((max(part) for part in ids if part), default=0)
    if highest >= vocab_size:
        raise RunDirectoryError(
            f"{named} has token {highest}, which is beyond the model's {vocab_size}: its episodes were played by "
            "another model"
        )


def converter_in(given: str | Mapping[str, Any] | None, stage: Stage[Any]) -> CheckedConverter | None:
    """Return the converter that a stage's options name, if any.

    Raises:
        PluginError: there is no such converter, or it does not take its options.
        RecipeError: the stage reads no file.
    """
    if given is None:
        return None
    table = f"{stage.table}.converter"
    if not any(is_path(reference) for reference in stage.data):
        raise RecipeError(f"{table}: it reads files, and data = {', '.join(stage.data)} names none")
    return converter_of(given, table=table)
