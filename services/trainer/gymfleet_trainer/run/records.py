"""What a stage's `data` names: episodes and conversations, of earlier stages and of files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gymfleet_contracts.conversation import Conversation, Record
from gymfleet_contracts.recipe import Recipe, RecipeError
from gymfleet_contracts.stages import is_path
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.data.converting import CheckedConverter, ConverterFailed, converter_of, learnable
from gymfleet_kit.data.reading import DataError

from gymfleet_trainer.errors import PluginFailed, RunDirectoryError
from gymfleet_trainer.run.run_directory import RunDirectory
from gymfleet_trainer.stage import Stage


def read(directory: RunDirectory, data: Sequence[str], converter: CheckedConverter | None) -> list[Record]:
    """Return the records that `data` names: files are read by the converter, if there is one.

    Raises:
        RunDirectoryError: a file is missing or damaged, or not in the form that is expected.
        PluginFailed: the converter is at fault.
    """
    found: list[Record] = []
    for reference in data:
        if not is_path(reference):
            found += directory.read_records(directory.episodes(reference))
        elif converter is None and not reference.endswith(".parquet"):
            found += directory.read_records(Path(reference))
        else:
            found += _converted(Path(reference), converter or converter_of("gymfleet", table="converter"))
    return found


def _converted(path: Path, converter: CheckedConverter) -> list[Record]:
    try:
        return list(learnable(path, converter))
    except DataError as error:
        raise RunDirectoryError(str(error)) from None
    except ConverterFailed as error:
        raise PluginFailed(f"{error}; its traceback is in the log") from error


def require_no_held_out(records: Sequence[Record], recipe: Recipe, named: str) -> None:
    """Raise RunDirectoryError for records of tasks that are measured: what is measured is not learned from."""
    held_out = {(env.name, env.eval_split) for env in recipe.environments}
    for record in records:
        if isinstance(record, Conversation):
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
    """Raise RunDirectoryError for episodes with tokens that the model does not have, and for those without any."""
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
    """Return the converter that a stage's options name, if they do.

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
