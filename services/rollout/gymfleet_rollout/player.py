"""Play the samples of groups: attempts, deadlines, and the status given to a failure."""

import asyncio
import itertools
import time
from typing import Final

import structlog
from gymfleet_client.errors import (
    BadRequest,
    ClientError,
    DeadlinePassed,
    ExpertUnavailable,
    StepTimeout,
    UnknownEnvironment,
    UnknownTask,
    UpstreamTimeout,
    ValidationFailed,
)
from gymfleet_contracts.grammar import get_grammar
from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.session import TaskRef
from gymfleet_contracts.trajectory import FinishReason, PolicyRef, Status, Trajectory, trajectory_id
from gymfleet_kit.retries import Retries
from pydantic import ValidationError

from gymfleet_rollout import metrics
from gymfleet_rollout.environments import Environments
from gymfleet_rollout.episode import Episode, EpisodeContext, PromptTooLong, Sampler, Sessions
from gymfleet_rollout.errors import UnknownGrammar
from gymfleet_rollout.inference.base import EngineDied, InferenceError
from gymfleet_rollout.tokens import ChatTokens

log = structlog.get_logger()

_HOPELESS: Final = (
    UnknownTask, UnknownEnvironment, UnknownGrammar, ValidationFailed, BadRequest, ExpertUnavailable, PromptTooLong
)  # fmt: skip
"""Errors for which another attempt would end the same way."""
_RETRY_PAUSE_S: Final = 0.2
_MAX_ERROR_CHARS: Final = 2_000


class _AttemptFailed(Exception):
    """An attempt that another may better."""

    def __init__(self, trajectory: Trajectory) -> None:
        super().__init__(trajectory.error)
        self.trajectory = trajectory


class Player:
    """Turn the samples of a group into trajectories.

    Args:
        max_episodes: how many episodes are in flight at once; further ones wait here.
    """

    def __init__(
        self, policy: Sampler, chat: ChatTokens, sessions: Sessions, environments: Environments, *, max_episodes: int
    ) -> None:
        self._policy = policy
        self._chat = chat
        self._sessions = sessions
        self._environments = environments
        self._slots = asyncio.Semaphore(max_episodes)

    async def play(self, group: GroupRequest, sample: int) -> Trajectory:
        """Play one sample, with up to `limits.max_attempts` attempts.

        An infrastructure failure becomes a trajectory with the matching status. Raises
        EngineDied or PolicyUnavailable, and only when no episode can be played at all.
        """
        async with self._slots:
            with metrics.EPISODES_IN_FLIGHT.track_inprogress():
                trajectory = await self._attempts(group, sample)
        metrics.EPISODES.labels(group.task.env, trajectory.status.value).inc()
        return trajectory

    async def _attempts(self, group: GroupRequest, sample: int) -> Trajectory:
        numbers = itertools.count(1)

        async def once() -> Trajectory:
            attempt = next(numbers)
            trajectory, hopeless = await self._attempt(group, sample, attempt)
            if trajectory.status.trainable:
                return trajectory
            log.warning(
                "episode.failed",
                trajectory_id=trajectory.trajectory_id,
                status=trajectory.status.value,
                attempt=attempt,
                error=trajectory.error,
            )
            if hopeless:
                return trajectory
            raise _AttemptFailed(trajectory)

        try:
            return await Retries(None, on=_AttemptFailed, first_pause_s=_RETRY_PAUSE_S).call(
                once, attempts=group.limits.max_attempts
            )
        except _AttemptFailed as failed:
            return failed.trajectory

    async def _attempt(self, group: GroupRequest, sample: int, attempt: int) -> tuple[Trajectory, bool]:
        started_at, began = time.time(), time.perf_counter()
        episode: Episode | None = None
        failure: BaseException | None = None
        try:
            async with self._policy.timeout(group.limits.episode_timeout_s) as deadline:
                episode = Episode(await self._table(group), group, sample)
                await episode.play()
        except EngineDied:
            raise
        except TimeoutError as error:
            limit = group.limits.episode_timeout_s
            failure = TimeoutError(f"not over within episode_timeout_s = {limit:g}") if deadline.expired() else error
        except (ClientError, InferenceError, UnknownGrammar, ValidationError) as error:  # the last: a turn that is none
            failure = error
        status = _status(failure) if failure is not None or episode is None else episode.status
        trajectory = self._trajectory(group, sample, attempt, episode, status, failure).model_copy(
            update={"started_at": started_at, "duration_s": time.perf_counter() - began}
        )
        return trajectory, isinstance(failure, _HOPELESS)

    async def _table(self, group: GroupRequest) -> EpisodeContext:
        try:
            grammar = get_grammar(group.grammar)
        except KeyError as error:
            raise UnknownGrammar(str(error.args[0])) from None
        spec = await self._environments.spec(group.task.env)
        return EpisodeContext(self._policy, self._chat, self._sessions, spec, grammar)

    def _trajectory(
        self,
        group: GroupRequest,
        sample: int,
        attempt: int,
        episode: Episode | None,
        status: Status,
        failure: BaseException | None,
    ) -> Trajectory:
        turns = () if episode is None else tuple(episode.turns)
        session = None if episode is None else episode.session
        is_expert = group.strategy == "expert"
        live = 0 if is_expert else self._policy.live_version
        return Trajectory(
            trajectory_id=trajectory_id(group.run_id, group.group_id, sample),
            run_id=group.run_id,
            group_id=group.group_id,
            sample=sample,
            attempt=attempt,
            replay=group.replay,
            task=_requested_task(group) if session is None else session.task,
            policy=PolicyRef(
                model="expert" if is_expert else self._policy.model,
                version_min=min((turn.policy_version_min for turn in turns), default=live),
                version_max=max((turn.policy_version_max for turn in turns), default=live),
            ),
            strategy=group.strategy,
            purpose=group.purpose,
            grammar=group.grammar,
            grammar_version=_grammar_version(group.grammar),
            turns=turns,
            final_observation="" if episode is None else episode.observation,
            final_prompt_token_ids=() if episode is None else episode.final_prompt,
            status=status,
            score=0.0 if episode is None or not status.trainable else episode.score,
            success=episode is not None and status.trainable and episode.score >= 1.0,
            finish_reason=FinishReason.ERROR if episode is None or not status.trainable else episode.finish_reason,
            error=None if failure is None else f"{type(failure).__name__}: {failure}"[:_MAX_ERROR_CHARS],
        )


def _status(failure: BaseException | None) -> Status:
    if isinstance(failure, DeadlinePassed | StepTimeout | UpstreamTimeout | TimeoutError):
        return Status.TIMEOUT
    if isinstance(failure, InferenceError | UnknownGrammar):
        return Status.POLICY_ERROR
    return Status.ENV_ERROR


def _requested_task(group: GroupRequest) -> TaskRef:
    """Return the task as it was requested, for an attempt that has no session to describe it."""
    task = group.task
    return TaskRef(
        env=task.env,
        split=task.split,
        level=task.level or "",
        task_id=task.task_id or f"#{task.task_index}",
        seed=task.seed,
    )


def _grammar_version(name: str) -> int:
    try:
        return get_grammar(name).version
    except KeyError:
        return 0
