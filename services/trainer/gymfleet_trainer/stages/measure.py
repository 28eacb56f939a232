"""Measurement: play held-out tasks with the current policy, and give an interval for its success rate."""

import time

import structlog
from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.trajectory import ReplyEnd, ScoredTrajectory

from gymfleet_trainer.errors import TooManyFailures
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.run.groups import Group
from gymfleet_trainer.run.state import EvalResult, RunState
from gymfleet_trainer.stages.statistics import wilson_interval

log = structlog.get_logger()

_WINDOW = 512


async def measure(run: RunContext, name: str) -> EvalResult:
    """Play every held-out task `samples_per_task` times with the live version.

    Episodes that failed for technical reasons, or were partly sampled from other
    weights, are played again: neither kind says anything about this policy.

    Raises:
        TooManyFailures: one task's episodes failed more often than `max_replacements`, and so did all others.
    """
    started = time.monotonic()
    plan = _Plan(run, name)
    run.reporter.begin(name, step=0, total=run.recipe.eval.num_episodes, unit="episodes")
    while len(plan.counted) < run.recipe.eval.num_episodes:
        await run.collector.ask(plan.due())
        plan.take(await run.collector.next_group(plan.asked))
        run.reporter.advance(
            len(plan.counted), f"{plan.num_successes} successes", metrics={"success_now": plan.success}
        )
    result = plan.result(time.monotonic() - started)
    run.directory.metric(
        "eval", step=run.state.step, age=run.state.age, **result.model_dump(exclude={"failed_episodes"})
    )
    if name in ("eval_before", "eval_after"):
        run.directory.trajectories(name, plan.counted)
    log.info("eval.measured", **result.model_dump())
    return result


class _Plan:
    """The episodes that are still wanted, and those that count."""

    def __init__(self, run: RunContext, name: str) -> None:
        self._run = run
        self._name = name
        self._next_task = 0
        self._again: list[GroupRequest] = []
        self._asked: dict[str, tuple[int, int]] = {}
        self._failed = 0
        self._failed_in_a_row = 0
        """Number of groups in a row in which no episode could be counted."""
        self.counted: list[ScoredTrajectory] = []

    @property
    def num_successes(self) -> int:
        return sum(scored.trajectory.success for scored in self.counted)

    @property
    def success(self) -> float:
        return self.num_successes / len(self.counted) if self.counted else 0.0

    def asked(self, group_id: str) -> bool:
        """Return whether the measurement waits for a group, because training groups may complete meanwhile."""
        return group_id in self._asked

    def due(self) -> list[GroupRequest]:
        """Return the groups to request now; a bounded number of groups is open at a time."""
        requests, self._again = self._again, []
        evaluation = self._run.recipe.eval
        while self._next_task < evaluation.num_tasks and self._run.collector.num_open + len(requests) < _WINDOW:
            requests.append(self._request(self._next_task, 0, evaluation.samples_per_task))
            self._next_task += 1
        return requests

    def take(self, group: Group) -> None:
        """Count the valid episodes of a group, and note that the rest must be requested again."""
        self._run.collector.settle(group.group_id)
        task, replacement = self._asked.pop(group.group_id)
        good = [s for s in group.trajectories if s.trajectory.status.trainable and is_current(s, self._run.state)]
        self.counted += good
        missing = group.request.num_samples - len(good)
        self._failed_in_a_row = 0 if good else self._failed_in_a_row + 1
        if not missing:
            return
        self._failed += missing
        log.warning("eval.retried", group_id=group.group_id, episodes=missing, reason=group.failure_reason() or "stale")
        allowed = self._run.settings.max_replacements
        if replacement >= allowed and self._failed_in_a_row > allowed:
            raise TooManyFailures(
                f"held-out task {task} failed {replacement + 1} times ({group.failure_reason() or 'stale weights'}); "
                "a technical failure is not counted as a failure of the policy, so there is nothing to measure: "
                "look into the rollout's and the environment's logs"
            )
        self._again.append(self._request(task, replacement + 1, missing))

    def result(self, seconds: float) -> EvalResult:
        """Return the result of the measurement."""
        episodes = [scored.trajectory for scored in self.counted]
        ends = [turn.reply_end for episode in episodes for turn in episode.turns]
        return EvalResult(
            name=self._name,
            num_episodes=len(episodes),
            num_successes=self.num_successes,
            success=self.success,
            interval=wilson_interval(self.num_successes, len(episodes)),
            mean_score=sum(episode.score for episode in episodes) / len(episodes),
            mean_turns=sum(len(episode.turns) for episode in episodes) / len(episodes),
            cut_replies=ends.count(ReplyEnd.LENGTH) / max(len(ends), 1),
            policy_version=self._run.state.version,
            failed_episodes=self._failed,
            seconds=seconds,
        )

    def _request(self, task: int, replacement: int, samples: int) -> GroupRequest:
        request = self._run.planner.evaluation(self._name, task, replacement, samples)
        self._asked[request.group_id] = (task, replacement)
        return request


def is_current(scored: ScoredTrajectory, state: RunState) -> bool:
    """Return whether the episode was sampled from exactly the current weights, whatever its version numbers."""
    policy = scored.trajectory.policy
    return state.staleness(policy.version_min) == 0 and state.staleness(policy.version_max) == 0
