"""One measurement of the current policy on held-out tasks."""

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import structlog
from gymfleet_contracts.run import TaskCost
from gymfleet_contracts.trajectory import ReplyEnd, ScoredTrajectory
from gymfleet_kit.conduct import mistakes, num_useful
from gymfleet_kit.intervals import task_interval

from gymfleet_trainer.run.allocated import best_of_each
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.run.state import EnvironmentResult, EvalResult
from gymfleet_trainer.run.statistics import pass_hat

log = structlog.get_logger()

_COUNTED: Final = ("env_steps", "replies", "tokens", "values", "forks")
"""The costs in the records of searches, as counted in the state."""


async def measure(run: RunContext, label: str = "") -> tuple[EvalResult, list[ScoredTrajectory]]:
    """Play the current stage's episodes under `label` with the live version, and count successes.

    Where tasks share a budget, the best episode of each counts, and all of them are returned.

    Raises:
        TooManyFailures: one task's episodes failed more often than `max_replacements`, and so did all others.
    """
    started, before = time.monotonic(), dict(run.state.counts)
    playing = await run.played(label)
    episodes = playing.counted
    seconds = time.monotonic() - started
    spent = await _spent(run, label, episodes, before)
    handed_in = episodes
    if run.stage.plays()[label].allocation is not None:
        handed_in = best_of_each(episodes, [run.planner.number_of(one.trajectory.group_id) for one in episodes])
    result = _result(run, label, handed_in, playing.num_failed, seconds, spent)
    run.directory.metric(
        "eval", step=run.state.step, age=run.state.age, **result.model_dump(exclude={"failed_episodes"})
    )
    log.info("eval.measured", **result.model_dump())
    return result, episodes


async def _spent(
    run: RunContext, label: str, episodes: list[ScoredTrajectory], before: Mapping[str, int]
) -> TaskCost | None:
    """Return the average cost of a task: from the turns of independent episodes, or from the records of searches."""
    plays = run.stage.plays()[label]
    if plays.strategy.use == "independent":
        turns = [turn for scored in episodes for turn in scored.trajectory.turns]
        steps = sum(turn.action is not None for turn in turns)
        values = 0 if plays.allocation is None else len(episodes)
        used = sum(len(turn.response_token_ids) + turn.num_prefilled_tokens for turn in turns)
        of_all = [steps, len(turns), used, values, 0]
    else:
        counted = (f"searched_{name}" for name in _COUNTED)
        of_all = [run.state.counts.get(name, 0) - before.get(name, 0) for name in counted]
    if not any(of_all):
        return None
    tasks = len({run.planner.number_of(scored.trajectory.group_id) for scored in episodes})
    env_steps, replies, tokens, valued, forks = (count / tasks for count in of_all)
    return TaskCost(env_steps=env_steps, model_calls=replies, tokens=tokens, evaluations=valued, forks=forks)


def _result(
    run: RunContext,
    label: str,
    episodes: list[ScoredTrajectory],
    num_failed: int,
    seconds: float,
    spent: TaskCost | None,
) -> EvalResult:
    trajectories = [scored.trajectory for scored in episodes]
    ends = [turn.reply_end for trajectory in trajectories for turn in trajectory.turns]
    by_environment: dict[str, EnvironmentResult] = {}
    if len(run.recipe.environments) > 1:
        plays = run.stage.plays()[label]
        titles = [run.planner.title_of(plays, trajectory.group_id) for trajectory in trajectories]
        for env in run.recipe.environments:
            own = [one for one, title in zip(trajectories, titles, strict=True) if title == env.title]
            num_solved = sum(one.success for one in own)
            by_environment[env.title] = EnvironmentResult(
                num_episodes=len(own),
                num_successes=num_solved,
                success=num_solved / max(len(own), 1),
                interval=task_interval(_by_task(run, [(one.group_id, one.success) for one in own])),
            )
    successes = _by_task(run, [(one.group_id, one.success) for one in trajectories])
    scores = _by_task(run, [(one.group_id, one.score) for one in trajectories])
    num_successes = sum(trajectory.success for trajectory in trajectories)
    total_score = sum(trajectory.score for trajectory in trajectories)
    num_turns = sum(len(trajectory.turns) for trajectory in trajectories)
    num_turns_solved = sum(len(trajectory.turns) for trajectory in trajectories if trajectory.success)
    made, mended = map(sum, zip(*(mistakes(trajectory.turns) for trajectory in trajectories), strict=True))
    return EvalResult(
        name=run.stage.prefix(label),
        num_episodes=len(trajectories),
        num_successes=num_successes,
        success=num_successes / len(trajectories),
        interval=task_interval(successes),
        mean_score=total_score / len(trajectories),
        score_interval=task_interval(scores),
        mean_turns=num_turns / len(trajectories),
        mean_turns_solved=num_turns_solved / num_successes if num_successes else None,
        useful_actions=sum(num_useful(trajectory.turns) for trajectory in trajectories) / max(num_turns, 1),
        mistakes=made / max(num_turns, 1),
        mended_mistakes=mended / made if made else None,
        cut_replies=ends.count(ReplyEnd.LENGTH) / max(len(ends), 1),
        policy_version=run.state.version,
        failed_episodes=num_failed,
        seconds=seconds,
        spent=spent,
        pass_hat=pass_hat([(round(solved), number) for solved, number in successes]),
        environments=by_environment,
    )


def _by_task(run: RunContext, episodes: Iterable[tuple[str, float]]) -> list[tuple[float, int]]:
    """Return each task's total and number of episodes; a replacement counts with the group that it replaces."""
    found: defaultdict[int, list[float]] = defaultdict(list)
    for group_id, value in episodes:
        found[run.planner.number_of(group_id)].append(value)
    return [(math.fsum(values), len(values)) for values in found.values()]
