"""The data of the page, gathered from the run directory."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Self

from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.recipe_sections import EnvironmentSection
from gymfleet_contracts.run import TaskCost
from gymfleet_contracts.trajectory import ScoredTrajectory
from pydantic import BaseModel, ConfigDict, ValidationError

from gymfleet_cli.report.searches import Drawing, drawings
from gymfleet_cli.run_directory import LeftByStage, RunDataError, RunFiles

_EPISODES_READ: Final = 500
_PAIRS_SHOWN: Final = 3


class _Line(BaseModel):
    """A line of `metrics.jsonl` with the fields that the page needs; other fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    step: int = 0


class Success(_Line):
    """Success on held-out tasks, with its interval."""

    num_episodes: int
    success: float
    interval: tuple[float, float]
    pass_hat: tuple[float, ...] = ()
    """`pass^k` for k = 1, 2, ...: the chance that k episodes of a task all succeed."""


class Measurement(Success):
    """One measurement: a stage of its own, or an intermediate one of a stage that trains."""

    name: str
    mean_score: float
    score_interval: tuple[float, float]
    seconds: float = 0.0
    spent: TaskCost | None = None
    environments: dict[str, Success] = {}
    """Success by environment title, if there are several."""


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
    """One publish of weights, with the parity of engine and trainer."""

    version: int
    parity_mean_abs: float
    seconds: float = 0.0
    pause_s: float = 0.0


class Calibrated(_Line):
    """The parity tolerance set by the first batch."""

    tolerance: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Episodes of the same held-out task, before and after."""

    before: ScoredTrajectory
    after: ScoredTrajectory


@dataclass(frozen=True, slots=True)
class RunData:
    """Everything on the page."""

    title: str
    description: str
    environments: tuple[str, ...]
    summary: dict[str, Any]
    recipe_text: str
    tolerance: float | None
    stages: tuple[LeftByStage, ...]
    measurements: tuple[Measurement, ...]
    before: Measurement | None
    """The first measurement made by a stage, unless it is the only one."""
    after: Measurement | None
    """The last measurement made by a stage."""
    steps: tuple[RlStep, ...]
    publishes: tuple[Publish, ...]
    pairs: tuple[Pair, ...]
    searches: tuple[Drawing, ...]

    @classmethod
    def load(cls, files: RunFiles) -> Self:
        """Read a run, finished or not. Raises `RunDataError`, which names the file and the fault."""
        document, stages = files.recipe(), files.left()
        recipe = _recipe(document)
        measurements = tuple(_lines(files, "eval", Measurement))
        before, after = _first_and_last(stages, measurements)
        return cls(
            title=str(document.get("name") or files.path.resolve().name),
            description=str(document.get("description", "")),
            environments=tuple(map(_described, recipe.environments)) if recipe else (),
            summary=files.summary(),
            recipe_text=files.recipe_text(),
            tolerance=_tolerance(files, recipe),
            stages=tuple(stages),
            measurements=measurements,
            before=before,
            after=after,
            steps=tuple(_lines(files, "rl_step", RlStep)),
            publishes=tuple(_lines(files, "publish", Publish)),
            pairs=_pairs(files, before.name, after.name) if before and after else (),
            searches=drawings(files),
        )

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


def _tolerance(files: RunFiles, recipe: Recipe | None) -> float | None:
    """Return the recipe's tolerance, or the one the run calibrated; before its first batch, the ceiling."""
    if recipe is None:
        return None
    if (given := recipe.publish.parity_tolerance) != "auto":
        return given
    found: list[Calibrated] = list(_lines(files, "parity_tolerance", Calibrated))
    return found[-1].tolerance if found else recipe.parity_limits.ceiling


def _lines(files: RunFiles, kind: str, model: type[Any]) -> Iterable[Any]:
    for number, record in enumerate(files.metrics(kind), start=1):
        try:
            yield model.model_validate(record)
        except ValidationError as error:
            first = error.errors(include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise RunDataError(f"{files.path}/metrics.jsonl, {kind} line {number}: {where}: {first['msg']}") from None


def _recipe(document: dict[str, Any]) -> Recipe | None:
    try:
        return Recipe.model_validate(document)
    except ValidationError:  # written by another version; the page is still worth writing
        return None


def _described(env: EnvironmentSection) -> str:
    tasks = f"{env.name} {env.level}" if env.level else env.name
    return tasks if env.title == env.name else f"{env.title} ({tasks})"


def _first_and_last(
    stages: Sequence[LeftByStage], measurements: Sequence[Measurement]
) -> tuple[Measurement | None, Measurement | None]:
    """Return the first and the last measurement that is a stage of its own; a single one counts as the last."""
    by_name = {one.name: one for one in measurements}
    made = [by_name[stage.name] for stage in stages if stage.name in by_name]
    return made[0] if len(made) > 1 else None, made[-1] if made else None


def _pairs(files: RunFiles, before: str, after: str) -> tuple[Pair, ...]:
    """Return tasks played before and after, the learned ones first."""
    earlier, later = _first_by_task(files, before), _first_by_task(files, after)
    pairs = [Pair(earlier[task], later[task]) for task in earlier if task in later]

    def learned_first(pair: Pair) -> tuple[bool, bool]:
        return (not pair.after.trajectory.success, pair.before.trajectory.success)

    return tuple(sorted(pairs, key=learned_first)[:_PAIRS_SHOWN])


def _first_by_task(files: RunFiles, stage: str) -> dict[tuple[str, str, int], ScoredTrajectory]:
    found: dict[tuple[str, str, int], ScoredTrajectory] = {}
    for scored in islice(files.trajectories(stage), _EPISODES_READ):
        task = scored.trajectory.task
        found.setdefault((task.env, task.task_id, task.seed), scored)
    return found
