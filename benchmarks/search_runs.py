"""Results of the runs of bench_search: success and its cost, pooled over seeds, against independent episodes."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Final, TypeAlias

from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.search import SearchTree
from gymfleet_contracts.trajectory import ScoredTrajectory, Trajectory
from gymfleet_kit.intervals import wilson_interval

from benchmarks.record import Row
from benchmarks.search_settings import ALLOCATED, INDEPENDENT

ONE: Final = "one episode"
"""The name of independent episodes where nothing shows which is solved: a task counts by the share of its episodes that
solve it."""
KNOWS_THE_SCORE: Final = "goal"
Tasks: TypeAlias = Sequence[Sequence[Trajectory]]
"""The episodes of each task."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One strategy with one budget, on the held-out tasks, with the model of one seed."""

    env: str
    seed: int
    strategy: str
    currency: str
    """What the budget limits; empty without a budget."""
    episodes: int
    """The budget of a task, in whole episodes."""
    num_tasks: int
    num_solved: float
    """For `ONE`, the sum of the tasks' shares."""
    interval: tuple[float, float]
    env_steps: float
    """The mean per task, like the figures that follow."""
    replies: float
    tokens: float
    forks: float
    seconds: float | None
    """Seconds of the whole measurement; None if it is part of a longer one."""
    valued_by: tuple[str, ...] = ()
    """The reward components by which it chose."""

    @property
    def cell(self) -> tuple[str, ...]:
        """The key it shares with the measurements of other seeds."""
        return self.env, self.strategy, ",".join(self.valued_by), self.currency, str(self.episodes)

    @property
    def title(self) -> str:
        """Its name in a table."""
        by = f" by {', '.join(self.valued_by)}" if self.valued_by else ""
        forked = ", with forks" if self.forks else ""
        budget = f", {self.episodes} episodes' {UNITS[self.currency]}" if self.currency else ""
        return f"{self.env}: {self.strategy}{by}{forked}{budget}"


UNITS: Final = {"model_calls": "replies", "env_steps": "steps"}


def searched(directory: Path, env: str, seed: int) -> list[Measured]:
    """Return a run's measurements by strategies, from its `metrics.jsonl` and the records of its searches."""
    found = []
    for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry["kind"] != "eval" or entry["name"] == INDEPENDENT:
            continue
        strategy, currency, episodes = entry["name"].split("-")
        spent = entry["spent"]
        valued_by = {name for tree in _trees(directory / "trees" / f"{entry['name']}.jsonl") for name in tree.valued_by}
        if strategy == ALLOCATED:  # by what the others' evaluator says too
            valued_by = {KNOWS_THE_SCORE}
        found.append(
            Measured(
                env, seed, strategy, currency, int(episodes), entry["num_episodes"], entry["num_successes"],
                tuple(entry["interval"]), spent["env_steps"], spent["model_calls"], spent["tokens"], spent["forks"],
                entry["seconds"], tuple(sorted(valued_by)),
            )
        )  # fmt: skip
    return found


def independent(directory: Path, recipe: Recipe, env: str, seed: int, budgets: Sequence[int]) -> list[Measured]:
    """Return the success of the run's independent episodes: of one, and of as many as fit into each budget."""
    tasks = _tasks(directory / "trajectories" / f"{INDEPENDENT}.jsonl")
    longest = recipe.rollout.limits.max_turns
    shares = sum(sum(one.success for one in own) / len(own) for own in tasks)
    found = [_measured(env, seed, ONE, "", 1, [[one] for own in tasks for one in own], shares, len(tasks))]
    for currency, cost in COSTS.items():
        for n in budgets:
            within = [*_within(tasks, n * longest, cost)]
            solved = sum(any(one.success for one in own) for own in within)
            found.append(_measured(env, seed, INDEPENDENT, currency, n, within, solved, len(tasks)))
    return found


def num_replies(trajectory: Trajectory) -> int:
    """Return an episode's cost in replies."""
    return len(trajectory.turns)


def num_steps(trajectory: Trajectory) -> int:
    """Return an episode's cost in environment steps: replies without an action take none."""
    return sum(turn.action is not None for turn in trajectory.turns)


COSTS: Final = {"model_calls": num_replies, "env_steps": num_steps}


def _within(tasks: Tasks, budget: int, cost: Callable[[Trajectory], int]) -> Iterator[list[Trajectory]]:
    """Yield, for each task, the episodes that end within its budget when played one after another."""
    for episodes in tasks:
        left, own = budget, []
        for episode in episodes:
            if (left := left - cost(episode)) < 0:
                break
            own.append(episode)
        yield own


def _measured(
    env: str, seed: int, strategy: str, currency: str, episodes: int, tries: Tasks, num_solved: float, num_tasks: int
) -> Measured:
    """Return a measurement of independent episodes; its costs are means over `tries`."""
    played = [one for own in tries for one in own]
    return Measured(
        env=env, seed=seed, strategy=strategy, currency=currency, episodes=episodes, num_tasks=num_tasks,
        num_solved=num_solved, interval=wilson_interval(num_solved, num_tasks),
        env_steps=sum(map(num_steps, played)) / len(tries), replies=sum(map(num_replies, played)) / len(tries),
        tokens=sum(one.num_response_tokens for one in played) / len(tries), forks=0.0, seconds=None,
        valued_by=(KNOWS_THE_SCORE,) if currency else (),
    )  # fmt: skip


def _tasks(path: Path) -> list[list[Trajectory]]:
    """Return the episodes of a file by task, each task's in the order of their samples."""
    found: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        trajectory = ScoredTrajectory.model_validate_json(line).trajectory
        found[trajectory.group_id.partition("-r")[0]].append(trajectory)  # a replacement is of the same task
    return [sorted(own, key=lambda one: one.sample) for own in found.values()]


def _trees(path: Path) -> Iterator[SearchTree]:
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            yield SearchTree.model_validate_json(line)


def rows(found: Sequence[Measured]) -> list[Row]:
    """Return the figures of each cell over its seeds, with success compared with that of independent episodes.

    A strategy that knows the score is compared with the best of the independent episodes that fit into its budget,
    since that choice knows it too; a strategy that does not is compared with one episode.
    """
    cells = by_cell(found)
    made = []
    for own in cells.values():
        first = own[0]
        success, (low, high) = pooled(own)
        made += [
            Row.of(f"{first.title}: success", success, "", baseline=baseline(first, cells)),
            Row.of(f"{first.title}: lower end of the interval", low, ""),
            Row.of(f"{first.title}: upper end of the interval", high, ""),
            Row.of(f"{first.title}: steps of a task", mean(one.env_steps for one in own), "steps"),
            Row.of(f"{first.title}: replies to a task", mean(one.replies for one in own), "replies"),
            Row.of(f"{first.title}: tokens of a task", mean(one.tokens for one in own), "tokens"),
            Row.of(f"{first.title}: forks of a task", mean(one.forks for one in own), "forks"),
        ]
        if seconds := [one.seconds for one in own if one.seconds is not None]:
            made.append(Row.of(f"{first.title}: the measurement", mean(seconds), "s"))
    return made


def by_cell(found: Sequence[Measured]) -> dict[tuple[str, ...], list[Measured]]:
    """Return the measurements grouped by cell, the seeds of each together."""
    cells: defaultdict[tuple[str, ...], list[Measured]] = defaultdict(list)
    for one in found:
        cells[one.cell].append(one)
    return dict(cells)


def pooled(own: Sequence[Measured]) -> tuple[float, tuple[float, float]]:
    """Return the share of solved tasks of all seeds together, and Wilson's interval for it."""
    solved, tasks = sum(one.num_solved for one in own), sum(one.num_tasks for one in own)
    return solved / tasks, wilson_interval(solved, tasks)


def baseline(one: Measured, cells: Mapping[tuple[str, ...], Sequence[Measured]]) -> float | None:
    """Return the success of the independent episodes that a cell is compared with; None for independent episodes."""
    if one.strategy in (INDEPENDENT, ONE):
        return None
    if KNOWS_THE_SCORE in one.valued_by:
        key = (one.env, INDEPENDENT, KNOWS_THE_SCORE, one.currency, str(one.episodes))
    else:
        key = (one.env, ONE, "", "", "1")
    return pooled(cells[key])[0] if key in cells else None
