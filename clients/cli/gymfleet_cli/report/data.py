"""The data of the page, gathered from the run directory."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Self

from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.trajectory import ScoredTrajectory
from pydantic import BaseModel, ConfigDict, ValidationError

from gymfleet_cli.run_directory import RunDataError, RunFiles

_EPISODES_READ: Final = 500
_PAIRS_SHOWN: Final = 3


class _Line(BaseModel):
    """A line of `metrics.jsonl` with the fields that the page needs; other fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    step: int = 0


class Measurement(_Line):
    """Success on held-out tasks."""

    name: str
    num_episodes: int
    success: float
    interval: tuple[float, float]


class RlStep(_Line):
    """One step of reinforcement learning."""

    success: float
    reward_mean: float = 0.0
    tokens: float = 0.0
    generation_s: float = 0.0
    environment_s: float = 0.0
    reward_s: float = 0.0
    update_s: float = 0.0


class Publish(_Line):
    """One publish of weights, and how closely engine and trainer agreed."""

    version: int
    parity_mean_abs: float
    seconds: float = 0.0
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pair:
    """The same held-out task, before and after."""

    before: ScoredTrajectory
    after: ScoredTrajectory


@dataclass(frozen=True, slots=True)
class RunData:
    """Everything on the page."""

    title: str
    description: str
    environment: str
    summary: dict[str, Any]
    recipe_text: str
    tolerance: float | None
    measurements: tuple[Measurement, ...]
    steps: tuple[RlStep, ...]
    publishes: tuple[Publish, ...]
    pairs: tuple[Pair, ...]

    @classmethod
    def load(cls, files: RunFiles) -> Self:
        """Read a run, finished or not. Raises `RunDataError`, which names the file and the fault."""
        document = files.recipe()
        env = document.get("env", {})
        parts = [str(env.get(key)) for key in ("name", "level") if env.get(key)]
        return cls(
            title=str(document.get("name") or files.path.resolve().name),
            description=str(document.get("description", "")),
            environment=" ".join(parts),
            summary=files.summary(),
            recipe_text=files.recipe_text(),
            tolerance=_tolerance(document),
            measurements=tuple(_lines(files, "eval", Measurement)),
            steps=tuple(_lines(files, "rl_step", RlStep)),
            publishes=tuple(_lines(files, "publish", Publish)),
            pairs=_pairs(files),
        )

    def measured(self, name: str) -> Measurement | None:
        """Return the measurement called `eval_before`, `eval_after` or `eval_step_N`."""
        return next((one for one in reversed(self.measurements) if one.name == name), None)

    def mean_step_seconds(self) -> dict[str, float]:
        """Return the average seconds of each part of a training step."""
        if not self.steps:
            return {}
        published = {one.step: one.seconds for one in self.publishes}
        totals = {
            "generation": sum(step.generation_s for step in self.steps),
            "environment": sum(step.environment_s for step in self.steps),
            "reward": sum(step.reward_s for step in self.steps),
            "update": sum(step.update_s for step in self.steps),
            "publish": sum(published.get(step.step, 0.0) for step in self.steps),
        }
        return {name: seconds / len(self.steps) for name, seconds in totals.items()}


def _lines(files: RunFiles, kind: str, model: type[Any]) -> Iterable[Any]:
    for number, record in enumerate(files.metrics(kind), start=1):
        try:
            yield model.model_validate(record)
        except ValidationError as error:
            first = error.errors(include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise RunDataError(f"{files.path}/metrics.jsonl, {kind} line {number}: {where}: {first['msg']}") from None


def _tolerance(document: dict[str, Any]) -> float | None:
    try:
        return Recipe.model_validate(document).publish.parity_tolerance
    except ValidationError:  # written by another version; the page is still worth writing
        return None


def _pairs(files: RunFiles) -> tuple[Pair, ...]:
    """Return tasks played before and after: first those that were learned, then those that were not."""
    before, after = _first_by_task(files, "eval_before"), _first_by_task(files, "eval_after")
    pairs = [Pair(before[task], after[task]) for task in before if task in after]

    def learned_first(pair: Pair) -> tuple[bool, bool]:
        return (not pair.after.trajectory.success, pair.before.trajectory.success)

    return tuple(sorted(pairs, key=learned_first)[:_PAIRS_SHOWN])


def _first_by_task(files: RunFiles, phase: str) -> dict[tuple[str, int], ScoredTrajectory]:
    found: dict[tuple[str, int], ScoredTrajectory] = {}
    for scored in islice(files.trajectories(phase), _EPISODES_READ):
        found.setdefault((scored.trajectory.task.task_id, scored.trajectory.task.seed), scored)
    return found
