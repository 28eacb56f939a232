"""One measurement of the current policy on held-out tasks."""

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import structlog
from gymfleet_contracts.run import TaskCost
from gymfleet_contracts.trajectory import ReplyEnd, ScoredTrajectory
from gymfleet_kit.conduct import mistakes, num_useful
from gymfleet_kit.intervals import wilson_interval

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
            own = [one.success for one, title in zip(trajectories, titles, strict=True) if title == env.title]
            by_environment[env.title] = EnvironmentResult(
                num_episodes=len(own),
                num_successes=sum(own),
                success=sum(own) / max(len(own), 1),
                interval=wilson_interval(sum(own), len(own)),
            )
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
        interval=wilson_interval(num_successes, len(trajectories)),
        mean_score=total_score / len(trajectories),
        score_interval=wilson_interval(total_score, len(trajectories)),
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
        pass_hat=_pass_hat(run, [(one.group_id, one.success) for one in trajectories]),
        environments=by_environment,
    )


def _pass_hat(run: RunContext, episodes: list[tuple[str, bool]]) -> tuple[float, ...]:
    """Return `pass^k` from each task's successes and episodes; a replacement counts with the group that it replaces."""
    counts: defaultdict[int, list[bool]] = defaultdict(list)
    for group_id, success in episodes:
        counts[run.planner.number_of(group_id)].append(success)
    return pass_hat([(sum(one), len(one)) for one in counts.values()])
