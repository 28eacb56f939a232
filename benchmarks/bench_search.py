"""The gain from searching at test time: `python -m benchmarks.bench_search [--env intro maze sums] [--seeds 0 1 2]`.

A small model is trained from scratch for each seed, on a few demonstrations, so that it solves some of the held-out
tasks; then each strategy plays the same tasks with an equal budget per task: as many replies, or environment steps, as
`--episodes` whole episodes would take at most. The result of independent episodes comes from `--samples` episodes
played for each task: the share of tasks solved by any of the episodes that fit into the same budget.

Strategies that choose by `goal` see the environment's score, as does the choice of a solved episode among several
independent ones: they are compared with that. Strategies that choose without it are compared with one episode.
`best_of_n` also chooses by a process reward model, which is trained on the policy's episodes. Strategies that ask a
model for plans, lessons, marks or votes are left out: a model of a million parameters writes none.

A finished run is not run again, and an interrupted run goes on.
"""

import argparse
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from gymfleet_cli.recipes import to_toml
from gymfleet_contracts.recipe import Recipe

from benchmarks.command import BenchmarkCommand
from benchmarks.record import record
from benchmarks.search_runs import Measured, independent, rows, searched
from benchmarks.search_settings import SETTINGS, STRATEGIES, measured_by_goal, measured_by_model, recipe_of
from benchmarks.training import ROOT, train

SMOKE: Final[dict[str, Any]] = {
    "env": ["intro"], "seeds": [0], "tasks": 2, "episodes": 1, "curve": [], "samples": 2, "played": 2,
    "strategies": ["best_of_n", "beam"],
    "small": ["model.scratch.corpus_episodes=40", "stages.demonstrations.num_tasks=24", "stages.sft.epochs=3"],
}  # fmt: skip
LEARNED: Final = "steps"
"""The name of the process reward model."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A run of one environment and seed, and the directory for it."""

    env: str
    seed: int
    recipe: Recipe
    directory: Path


def main() -> None:
    """Run the grid, read the results of the runs, record them."""
    parser = BenchmarkCommand(__doc__, smoke=SMOKE)
    parser.add_argument("--env", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--strategies", nargs="+", choices=list(STRATEGIES), default=list(STRATEGIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the trainings")
    parser.add_argument("--tasks", type=int, default=40, help="held-out tasks of each measurement")
    parser.add_argument("--episodes", type=int, default=8, help="the budget of a task, in whole episodes")
    parser.add_argument("--curve", type=int, nargs="*", default=[1, 4], help="other budgets, for best_of_n and mcts")
    parser.add_argument("--samples", type=int, default=64, help="independent episodes of each task")
    parser.add_argument("--played", type=int, default=60, help="tasks the reward model learns from, four episodes each")
    parser.add_argument("--small", nargs="+", default=[], metavar="KEY=VALUE", help="changes of every training")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "search", help="the run directories")
    arguments = parser.options()
    found = [one for env in arguments.env for seed in arguments.seeds for one in _of_seed(env, seed, arguments)]
    record("search", rows(found), arguments, [asdict(one) for one in found])


def _of_seed(env: str, seed: int, arguments: argparse.Namespace) -> list[Measured]:
    """Train a model, and measure it by every strategy: once by the environment's score, once by a reward model."""
    recipe = recipe_of(env, arguments)
    first = _place(env, seed, "goal", measured_by_goal(recipe, arguments), arguments)
    _train(first, arguments)
    by_model = measured_by_model(recipe, arguments, first.directory / "model", LEARNED)
    learned = _place(env, seed, "learned", by_model, arguments)
    table = {"kind": "embedded", "scores": "turns", "path": str(first.directory / "models" / "process_reward")}
    models = json.dumps({LEARNED: {**table, "max_tokens": first.recipe.inference.max_model_len}})
    _train(learned, arguments, GYMFLEET_REWARD_MODELS=models)
    # The largest budget takes all samples: more short episodes would fit.
    budgets = sorted({*arguments.curve, arguments.episodes, arguments.samples // 4, arguments.samples})
    return [
        *independent(first.directory, first.recipe, env, seed, budgets),
        *searched(first.directory, env, seed),
        *searched(learned.directory, env, seed),
    ]


def _place(env: str, seed: int, kind: str, recipe: Recipe, arguments: argparse.Namespace) -> _Place:
    """Return a run in a directory named by a hash of its recipe, so that a changed recipe gets another directory."""
    name = hashlib.sha256(to_toml(recipe).encode()).hexdigest()[:6]
    return _Place(env, seed, recipe, arguments.runs.resolve() / f"{env}-{seed}-{kind}-{name}")


def _train(place: _Place, arguments: argparse.Namespace, **settings: str) -> None:
    train(place.directory, place.recipe, place.seed, fresh=arguments.smoke, settings=settings)


if __name__ == "__main__":
    main()
