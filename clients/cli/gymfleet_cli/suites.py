"""`gymfleet eval --suite`: one run's models on many environments in turn, each with services of its own.

Figures are kept in the run directory, and not measured again.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gymfleet_contracts.faults import faults
from gymfleet_contracts.recipe import Recipe, RecipeError, initial_model
from gymfleet_contracts.suite import Suite, SuiteEnvironment
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from rich.table import Table

from gymfleet_cli.console import CliError, out, plain
from gymfleet_cli.report.data import Measurement
from gymfleet_cli.run_directory import RunFiles

BASE: Final = "base"
_WEIGHTS: Final = "*.safetensors"


@dataclass(frozen=True, slots=True)
class Stage:
    """A model of a run, and its title in the table."""

    title: str
    model: Path


class Figure(BaseModel):
    """One model's result in one environment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    """A digest of the environment's table, the recipe, and the measured weights."""
    environment: str
    stage: str
    metric: str
    value: float
    interval: tuple[float, float]
    num_episodes: int


_FIGURES: Final = TypeAdapter(list[Figure])


class Results:
    """The figures of a suite kept in a run directory, as `suites/NAME.json`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[tuple[str, str], Figure] = {}
        try:
            self._known = {(one.key, one.metric): one for one in _FIGURES.validate_json(path.read_bytes())}
        except FileNotFoundError:
            pass
        except (OSError, ValidationError) as error:
            raise CliError(f"{path} cannot be read; remove it to measure anew: {error}") from None

    def get(self, key: str, metric: str) -> Figure | None:
        """Return a figure measured earlier, if there is one by this metric."""
        return self._known.get((key, metric))

    def keep(self, figure: Figure) -> None:
        """Keep a figure, even if the command is killed right after."""
        self._known[figure.key, figure.metric] = figure
        self._path.parent.mkdir(exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        temporary.write_bytes(_FIGURES.dump_json(list(self._known.values()), indent=2) + b"\n")
        temporary.replace(self._path)


def stages_of(recipe: Recipe, run_dir: Path, last: Path | None, *, every: bool) -> list[Stage]:
    """Return the model to measure, or with `every` the run's initial model and those that its stages left.

    Args:
        recipe: that of the run.
        run_dir: its directory.
        last: the run's last model; None to measure its initial one.
        every: whether the table has a column for each stage that trained.

    Raises:
        CliError: a model no longer exists.
    """
    initial = Path(initial_model(recipe, run_dir))
    found = [Stage(BASE, initial) if last is None else Stage(last.name, last)]
    if every:
        left = [(one.name, run_dir / one.model) for one in RunFiles.open(run_dir).left() if one.model is not None]
        found = [Stage(BASE, initial), *(Stage(f"+ {name}", model) for name, model in left)]
    if gone := [one.model for one in found if one.model.is_absolute() and not one.model.is_dir()]:
        raise CliError(f"there is no model at {gone[0]} any more, which the run began with or left")
    return found


def recipe_for(recipe: Recipe, env: SuiteEnvironment, *, where: str) -> Recipe:
    """Return the recipe for measuring a run's model in another environment, with the run's engine and formats.

    Raises `RecipeError` if the environment's limits do not fit that engine.
    """
    document = recipe.model_dump(mode="json", exclude_unset=True, exclude={"environments", "stages", "reward"})
    only = {"episodes", "metric", "reference"}
    table = env.model_dump(mode="json", exclude_unset=True, exclude=only)
    measured = {"kind": "measure", "num_tasks": env.episodes}
    try:
        return Recipe.model_validate({**document, "environments": [table], "stages": [measured]})
    except ValidationError as error:
        raise RecipeError(f"suite {where}, {env.title}: {faults(error, whole='recipe')}") from None


def key_of(recipe: Recipe, model: Path) -> str:
    """Return a digest of the recipe and the model; weights count by their files' names, sizes and times."""
    weights = [
        (path.name, path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted((*model.glob(_WEIGHTS), *(model / "model").glob(_WEIGHTS)))
    ]
    text = json.dumps([recipe.model_dump(mode="json", exclude={"name", "description"}), str(model), weights])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def figure_of(key: str, stage: Stage, env: SuiteEnvironment, measured: Measurement) -> Figure:
    """Return the figure of a measurement by the environment's metric."""
    by_score = env.metric == "score"
    return Figure(
        key=key,
        environment=env.title,
        stage=stage.title,
        metric=env.metric,
        value=measured.mean_score if by_score else measured.success,
        interval=measured.score_interval if by_score else measured.interval,
        num_episodes=measured.num_episodes,
    )


def print_table(
    suite: Suite, stages: Sequence[Stage], figures: Mapping[tuple[str, str], Figure], failed: Mapping[str, str]
) -> None:
    """Print a row per environment and a column per model; with several models, also the last's gain on the first."""
    titles = [stage.title for stage in stages]
    table = Table()
    for column in ("environment", "metric", "episodes", *titles, *(["improvement"] if len(titles) > 1 else [])):
        table.add_column(column, overflow="fold")
    for env in suite.environments:
        own = [figures.get((env.title, title)) for title in titles]
        first, last = own[0], own[-1]
        gained = [] if len(titles) == 1 else [_points(last.value - first.value) if first and last else ""]
        table.add_row(*map(plain, (env.title, env.metric, str(env.episodes), *map(_cell, own), *gained)))
    overall = [score for title in titles if (score := _overall(suite, title, figures)) is not None]
    if len(overall) == len(titles):
        gained = [] if len(titles) == 1 else [f"{overall[-1] - overall[0]:+.2f}"]
        cells = (f"{score:.2f}" for score in overall)
        table.add_row(*map(plain, ("overall", "of the references", "", *cells, *gained)))
    out.print(table)
    for title, reason in failed.items():
        out.print(plain(f"{title}: not measured: {reason}"), soft_wrap=True)


def _overall(suite: Suite, stage: str, figures: Mapping[tuple[str, str], Figure]) -> float | None:
    own: list[Any] = [figures.get((env.title, stage)) for env in suite.environments]
    return None if None in own else suite.overall([one.value for one in own])


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    low, high = figure.interval
    return f"{100 * figure.value:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def _points(gain: float) -> str:
    return f"{100 * gain:+.1f} points"
