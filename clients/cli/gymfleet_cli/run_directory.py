"""The reader of a run directory: summary, metrics and episodes as written by the trainer.

A run in progress has fewer files, and its last lines may be incomplete.
"""

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from gymfleet_contracts.conversation import RECORDS
from gymfleet_contracts.search import SearchTree
from gymfleet_contracts.trajectory import ScoredTrajectory
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

RUN_STATE: Final = ".fleet"
"""The directory inside the run directory where a run keeps the state of its services."""
_MARKS: Final = ("run.json", "summary.json", "metrics.jsonl", "progress.json", "trajectories")


class RunDataError(Exception):
    """The directory holds no run, or a damaged one; the message names the file and the line."""


class LeftByStage(BaseModel):
    """The trainer's record of a finished stage's results; fields of newer versions are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    kind: str = ""
    seconds: float = 0.0
    episodes: str | None = None
    """A file of the run directory."""
    num_episodes: int | None = None
    model: str | None = None
    """A directory of the run directory."""
    success: float | None = None


RecordT = TypeVar("RecordT")
_LEFT: Final = TypeAdapter(list[LeftByStage])
_TREE: Final = TypeAdapter(SearchTree)


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of one run."""

    path: Path

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a run directory. Raises `RunDataError` for any other directory."""
        if not path.is_dir():
            raise RunDataError(f"there is no run directory {path}")
        if not any((path / mark).exists() for mark in _MARKS):
            raise RunDataError(f"{path} is not a run directory: it has none of {', '.join(_MARKS)}")
        return cls(path)

    def summary(self) -> dict[str, Any]:
        """Return the summary, which is empty before the end of the run."""
        path = self.path / "summary.json"
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise RunDataError(f"{path} cannot be read: {error}") from None
        if not isinstance(document, dict):
            raise RunDataError(f"{path} holds no JSON object")
        return document

    def recipe_text(self) -> str:
        """Return the recipe as given; empty if the run has not got that far."""
        path = self.path / "recipe.toml"
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def recipe(self) -> dict[str, Any]:
        """Return the recipe's table, which is empty if there is no readable recipe."""
        try:
            return tomllib.loads(self.recipe_text())
        except tomllib.TOMLDecodeError:
            return {}

    def metrics(self, kind: str) -> list[dict[str, Any]]:
        """Return all lines of `metrics.jsonl` of one kind, in order."""
        path = self.path / "metrics.jsonl"
        records = []
        for number, line in enumerate(_whole_lines(path), start=1):
            try:
                record = json.loads(line)
            except ValueError as error:
                raise RunDataError(f"{path}, line {number}: {error}") from None
            if isinstance(record, dict) and record.get("kind") == kind:
                records.append(record)
        return records

    def left(self) -> list[LeftByStage]:
        """Return the results of the finished stages, in the order of the run."""
        path = self.path / "stages.json"
        try:
            return _LEFT.validate_json(path.read_bytes())
        except FileNotFoundError:
            return []
        except (OSError, ValidationError) as error:
            reason = error.errors(include_input=False)[0]["msg"] if isinstance(error, ValidationError) else error
            raise RunDataError(f"{path} cannot be read: {reason}") from None

    def recorded(self) -> list[str]:
        """Return the names of the stages with episodes, in the order of the run; unfinished ones come last."""
        names = {path.stem for path in (self.path / "trajectories").glob("*.jsonl")}
        finished = [one.name for one in self.left() if one.name in names]
        return [*finished, *sorted(names.difference(finished))]

    def trajectories(self, stage: str) -> Iterator[ScoredTrajectory]:
        """Yield the episodes of one stage, in the order in which they were recorded; skip conversations."""
        for record in _records(self.path / "trajectories" / f"{stage}.jsonl", RECORDS):
            if isinstance(record, ScoredTrajectory):
                yield record

    def searched(self) -> list[str]:
        """Return the names of the stages whose strategy played groups together, in alphabetical order."""
        return sorted(path.stem for path in (self.path / "trees").glob("*.jsonl"))

    def trees(self, stage: str) -> Iterator[SearchTree]:
        """Yield the searches of one stage, in the order in which they were recorded."""
        return _records(self.path / "trees" / f"{stage}.jsonl", _TREE)


def _records(path: Path, kind: TypeAdapter[RecordT]) -> Iterator[RecordT]:
    for number, line in enumerate(_whole_lines(path), start=1):
        try:
            yield kind.validate_json(line)
        except ValidationError as error:
            reason = error.errors(include_input=False)[0]["msg"]
            raise RunDataError(f"{path}, line {number}: {reason}") from None


def _whole_lines(path: Path) -> Iterator[str]:
    """Yield the lines that end with a newline, because the last line may still be being written."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.endswith("\n") and not line.isspace():
                yield line
