"""Play the samples of groups: attempts, deadlines, and the status given to a failure."""

import asyncio
import contextlib
import inspect
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import structlog
from gymfleet_client.errors import (
    BadRequest,
    ClientError,
    DeadlinePassed,
    ExpertUnavailable,
    ForkUnsupported,
    StepTimeout,
    TransportError,
    Unavailable,
    UnknownEnvironment,
    UnknownTask,
    UpstreamTimeout,
    ValidationFailed,
)
from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.search import SearchTree
from gymfleet_contracts.session import Tool
from gymfleet_contracts.trajectory import Status, Trajectory
from gymfleet_kit.chat.image_reader import ImageReader
from gymfleet_kit.chat.template import UnusableTemplate
from gymfleet_kit.chat.tokens import ChatTokens
from gymfleet_kit.formats import FormatFailed
from gymfleet_kit.plugins import PluginError
from gymfleet_kit.problems import ServiceError
from gymfleet_kit.retries import Retries
from pydantic import ValidationError

from gymfleet_rollout import metrics
from gymfleet_rollout.budget import BudgetSpent, NoRoom, Spending
from gymfleet_rollout.contexts import PromptTooLong
from gymfleet_rollout.environments import Environments
from gymfleet_rollout.errors import (
    EvaluationFailed,
    GatewayFailed,
    RefusedTemplate,
    StrategyError,
    UnknownFormat,
    UnknownStrategy,
    Unsuited,
)
from gymfleet_rollout.evaluator import Evaluator
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.inference.base import EngineDied, InferenceError
from gymfleet_rollout.parts import Parts, Sampler
from gymfleet_rollout.play import Play
from gymfleet_rollout.recording import Attempt, failed, recorded
from gymfleet_rollout.sessions import Sessions
from gymfleet_rollout.strategy import STRATEGIES, Strategy, strategy_of
from gymfleet_rollout.suited import require_suited

log = structlog.get_logger()

Deliver: TypeAlias = Callable[[list[Trajectory]], Awaitable[None]]
"""Takes trajectories that belong together; a single one if each sample is played by itself."""
DeliverTree: TypeAlias = Callable[[SearchTree], Awaitable[None]]
"""Takes the record of the search that the trajectories delivered next come from."""
_HOPELESS: Final = (
    UnknownTask, UnknownEnvironment, UnknownFormat, FormatFailed, ValidationFailed, BadRequest, ExpertUnavailable,
    ForkUnsupported, PromptTooLong, StrategyError,
)  # fmt: skip
"""Errors for which another attempt would end the same way."""
_EXPECTED: Final = (
    ClientError, InferenceError, EvaluationFailed, UnknownFormat, FormatFailed, ValidationError, TimeoutError,
    StrategyError,
)  # fmt: skip
"""Failures that their class identifies. A ValidationError means that a turn is invalid."""
NOT_BEGUN: Final = "the budget was spent before an episode began"
"""The beginning of the error of an attempt in which no episode has a turn."""
_RETRY_PAUSE_S: Final = 0.2
_GRACE_S: Final = 1.0
"""Time for a strategy to clean up when it is cancelled from outside."""


class _AttemptFailed(Exception):
    """An attempt failed, and another may succeed."""

    def __init__(self, trajectories: list[Trajectory]) -> None:
        super().__init__(trajectories[0].error)
        self.trajectories = trajectories


@dataclass(slots=True)
class _Unit:
    """Samples of a group that are played together."""

    group: GroupRequest
    samples: tuple[int, ...]
    kind: type[Strategy[Any]]
    spending: Spending
    tree: SearchTree | None = None
    """The record of the attempt that succeeded."""


class Player:
    """Turn the samples of a group into trajectories.

    Args:
        formats: the reply formats that requests may name.
        max_episodes: how many episodes are in flight at once; further ones wait here.
        plugins: strategies that requests may name in addition to the installed ones.
        evaluator: values the nodes of strategies that request it.
        reader: reads images for the model; a string is the reason why the model sees none.
    """

    def __init__(
        self,
        policy: Sampler,
        chat: ChatTokens,
        sessions: Sessions,
        environments: Environments,
        formats: Formats,
        *,
        max_episodes: int,
        plugins: Sequence[str] = (),
        evaluator: Evaluator | None = None,
        reader: ImageReader | str = "this service reads no images",
    ) -> None:
        self._policy = policy
        self._chat = chat
        self._sessions = sessions
        self._environments = environments
        self._formats = formats
        self._slots = asyncio.Semaphore(max_episodes)
        self._max_episodes = max_episodes
        self._entrance = asyncio.Lock()
        self._plugins = plugins
        self._evaluator = evaluator
        self._reader = reader
        self._kinds: dict[str, type[Strategy[Any]]] = {}

    def require_playable(self, group: GroupRequest) -> type[Strategy[Any]]:
        """Return the class of a group's strategy, which is looked up only once.

        Raises UnknownStrategy, UnknownFormat and RefusedTemplate.
        """
        self._chat_of(group, self._formats.get(group.format).tools)
        reference = group.strategy.use
        try:
            if reference not in self._kinds:
                self._kinds[reference] = STRATEGIES.offered(reference, self._plugins)
            strategy_of(self._kinds[reference], group.strategy)
        except PluginError as error:
            raise UnknownStrategy(str(error)) from None
        if group.rejected and self._kinds[reference].facts.by_sample:
            raise UnknownStrategy(f"{reference} plays each episode by itself and rejects none: leave out `rejected`")
        if self._kinds[reference].facts.evaluates:
            if self._evaluator is None:
                raise UnknownStrategy(
                    f"{reference} has nodes valued by the reward service: set GYMFLEET_ROLLOUT_REWARD_URL"
                )
            if group.evaluator is None:
                raise UnknownStrategy(
                    f"{reference} has nodes valued by the reward service: say how in `evaluator`, in a recipe "
                    "[rollout.evaluator]"
                )
        return self._kinds[reference]

    async def require_suited(self, group: GroupRequest) -> None:
        """Check a group against the description of its environment, too, without playing anything.

        Raises Unsuited, GatewayFailed when nobody describes the environment, and the errors of `require_playable`.
        """
        kind = self.require_playable(group)
        try:
            parts = await self._parts(group)
            require_suited(group, kind.facts, parts.spec)
        except (TransportError, Unavailable) as error:
            raise GatewayFailed(f"{group.task.env}: {error}") from None
        except (StrategyError, FormatFailed, ClientError) as error:
            raise Unsuited(str(error)) from None

    def _chat_of(self, group: GroupRequest, tools: tuple[Tool, ...]) -> ChatTokens:
        """Return the chat template with the options of a group. Raises RefusedTemplate."""
        try:
            chat = self._chat.under(group.roles, group.template, tools)
            if (reader := self._reader_for(group)) is not None:
                chat.require_images(reader.token)
        except UnusableTemplate as error:
            raise RefusedTemplate(str(error)) from None
        return chat

    def _reader_for(self, group: GroupRequest) -> ImageReader | None:
        """Return the reader of a group's images; None if the policy is shown text alone. Raises RefusedTemplate."""
        if group.images == "text":
            return None
        if isinstance(self._reader, str):
            raise RefusedTemplate(f'rollout.images = "seen": {self._reader}')
        return self._reader

    async def play(
        self, group: GroupRequest, samples: Sequence[int], deliver: Deliver, deliver_tree: DeliverTree | None = None
    ) -> None:
        """Play samples of a group, each with up to `limits.max_attempts` attempts, and deliver them as they end.

        For a group that is played together, the record of the search comes first.

        An infrastructure failure becomes a trajectory with the matching status, as does a strategy that cannot be
        used. Raises what `deliver` raises, and EngineDied or PolicyUnavailable when no episode can be played at all.
        """
        try:
            kind = self.require_playable(group)
        except (UnknownStrategy, UnknownFormat, RefusedTemplate) as error:
            log.error("group.refused", run_id=group.run_id, group_id=group.group_id, error=str(error))
            attempt = Attempt(self._policy)
            await deliver([failed(group, sample, attempt, error, Status.POLICY_ERROR) for sample in samples])
            return
        spending = Spending(group.budget, self._policy.timeout)
        together = [(sample,) for sample in samples] if kind.facts.by_sample else [tuple(samples)] if samples else []
        try:
            async with asyncio.TaskGroup() as tasks:
                for some in together:
                    tasks.create_task(self._unit(_Unit(group, some, kind, spending), deliver, deliver_tree))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _unit(self, unit: _Unit, deliver: Deliver, deliver_tree: DeliverTree | None) -> None:
        async with self._room(len(unit.samples)):
            unit.spending.begin()
            trajectories = await self._attempts(unit)
        if deliver_tree is not None and unit.tree is not None:
            await deliver_tree(unit.tree)
        for trajectory in trajectories:
            metrics.EPISODES.labels(unit.group.task.env, trajectory.status.value).inc()
        await deliver(trajectories)

    @contextlib.asynccontextmanager
    async def _room(self, num_episodes: int) -> AsyncIterator[None]:
        """Wait for room for `num_episodes` episodes."""
        wanted = min(num_episodes, self._max_episodes)
        taken = 0
        try:
            if wanted == 1:
                await self._slots.acquire()
                taken = 1
            else:
                async with self._entrance:  # two that each hold half of what they need would wait for ever
                    while taken < wanted:
                        await self._slots.acquire()
                        taken += 1
            metrics.EPISODES_IN_FLIGHT.inc(taken)
            try:
                yield
            finally:
                metrics.EPISODES_IN_FLIGHT.dec(taken)
        finally:
            for _ in range(taken):
                self._slots.release()

    async def _attempts(self, unit: _Unit) -> list[Trajectory]:
        numbers = itertools.count(1)

        async def once() -> list[Trajectory]:
            attempt = next(numbers)
            trajectories, hopeless = await self._attempt(unit, attempt)
            first = trajectories[0]
            if first.status.trainable:
                return trajectories
            log.warning(
                "episode.failed",
                trajectory_id=first.trajectory_id,
                status=first.status.value,
                attempt=attempt,
                error=first.error,
            )
            if hopeless:
                return trajectories
            raise _AttemptFailed(trajectories)

        try:
            return await Retries(None, on=_AttemptFailed, first_pause_s=_RETRY_PAUSE_S).call(
                once, attempts=unit.group.limits.max_attempts
            )
        except _AttemptFailed as last:
            return last.trajectories

    async def _attempt(self, unit: _Unit, number: int) -> tuple[list[Trajectory], bool]:
        group, facts = unit.group, unit.kind.facts
        attempt = Attempt(self._policy, facts.expert, number, self._formats.version(group.format))
        play: Play | None = None
        deadline: asyncio.Timeout | None = None
        try:
            async with self._policy.timeout(group.limits.episode_timeout_s) as deadline:
                sample = unit.samples[0] if facts.by_sample else None
                play = Play(await self._parts(group), group, sample, unit.spending, facts)
                try:
                    await _played(unit, play)
                finally:
                    await asyncio.shield(play.close())
            if group.rejected and group.samples is None:  # else the first episodes become the samples that are wanted
                play.export_rejected()
            trajectories = _records(unit, attempt, play)
            if not facts.by_sample:
                unit.tree = play.search_tree(number, [trajectory.sample for trajectory in trajectories])
            return trajectories, False
        except Exception as error:  # noqa: BLE001 - a strategy is a program from outside
            failure = _reason(error, unit, deadline)
        status = _status(failure)
        size = None if facts.by_sample else group.num_samples
        trajectories = [
            failed(group, sample, attempt, failure, status, play, group_size=size) for sample in unit.samples
        ]
        return trajectories, isinstance(failure, _HOPELESS)

    async def _parts(self, group: GroupRequest) -> Parts:
        spec = await self._environments.spec(group.task.env)
        reply_format = self._formats.get(group.format).with_tools(spec.tools)
        chat = self._chat_of(group, reply_format.tools)
        return Parts(self._policy, chat, self._sessions, spec, reply_format, self._evaluator, self._reader_for(group))


def _records(unit: _Unit, attempt: Attempt, play: Play) -> list[Trajectory]:
    """Return the exported episodes. A strategy that plays a group together decides how many there are.

    If some of the group's samples are requested again, the first episodes become those; a sample without an episode
    has failed, and can be requested separately.
    """
    group, num_exported = unit.group, len(play.handed_in.leaves)
    if unit.kind.facts.by_sample:
        return recorded(group, unit.samples, attempt, play, None)
    if group.samples is None:
        return recorded(group, range(num_exported), attempt, play, num_exported)
    error = StrategyError(f"{group.strategy.use} exported {num_exported} episodes, {len(unit.samples)} were wanted")
    return recorded(group, unit.samples, attempt, play, group.num_samples) + [
        failed(group, sample, attempt, error, Status.POLICY_ERROR, group_size=group.num_samples)
        for sample in unit.samples[num_exported:]
    ]


async def _played(unit: _Unit, play: Play) -> None:
    """Let the strategy play. Raises StrategyError if it exports nothing."""
    strategy = strategy_of(unit.kind, unit.group.strategy)
    playing = strategy.play(play)
    if not inspect.iscoroutine(playing):
        raise StrategyError(f"{unit.group.strategy.use}: play must be `async def`, without `yield`")
    try:
        await _by_itself(playing)
    except Exception as error:
        spent = _cause(error)
        if not isinstance(spent, BudgetSpent):
            raise
        log.info("budget.spent", group_id=unit.group.group_id, samples=unit.samples, reason=str(spent))
        play.export_open(spent)
        if not play.handed_in.leaves:
            raise _not_begun(spent) from None
        return
    if play.failure is not None:
        raise play.failure
    if not play.handed_in.leaves:
        if play.handed_in.not_begun is not None:
            raise _not_begun(play.handed_in.not_begun)
        raise StrategyError(f"{unit.group.strategy.use} exported no episode of the group")


def _not_begun(spent: BudgetSpent) -> StrategyError:
    return StrategyError(str(spent) if isinstance(spent, NoRoom) else f"{NOT_BEGUN} ({spent})")


async def _by_itself(playing: Coroutine[Any, Any, None]) -> None:
    """Run a strategy in its own task, so that cancellation from outside takes effect even if the strategy resists."""
    task = asyncio.create_task(playing)
    try:
        await asyncio.wait({task})
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_GRACE_S)
            if task.done() and not task.cancelled():
                task.exception()  # which nobody will ask for
    if task.cancelled():
        raise StrategyError("it cancelled itself")
    task.result()


def _cause(error: Exception) -> Exception:
    """Return the cause inside a strategy's exception groups: a failure of the machinery first, a spent budget last."""
    if not isinstance(error, ExceptionGroup):
        return error
    inside = [_cause(inner) for inner in error.exceptions]
    return min(inside, key=lambda one: (isinstance(one, BudgetSpent), not isinstance(one, (*_EXPECTED, ServiceError))))


def _reason(error: Exception, unit: _Unit, deadline: asyncio.Timeout | None) -> Exception:
    """Return the failure of an attempt. Raises EngineDied, and errors after which the service cannot serve at all."""
    error = _cause(error)
    if isinstance(error, EngineDied) or (isinstance(error, ServiceError) and not isinstance(error, UnknownFormat)):
        raise error
    if isinstance(error, TimeoutError) and deadline is not None and deadline.expired():
        return TimeoutError(f"not over within episode_timeout_s = {unit.group.limits.episode_timeout_s:g}")
    if isinstance(error, _EXPECTED):
        return error
    log.error("strategy.failed", strategy=unit.group.strategy.use, exc_info=error)
    told = " ".join(str(error).split()) or "no reason given"
    return StrategyError(f"{unit.group.strategy.use} failed: {type(error).__name__}: {told}")


def _status(failure: Exception) -> Status:
    if isinstance(failure, DeadlinePassed | StepTimeout | UpstreamTimeout | TimeoutError):
        return Status.TIMEOUT
    if isinstance(failure, InferenceError | EvaluationFailed | UnknownFormat | FormatFailed | StrategyError):
        return Status.POLICY_ERROR
    return Status.ENV_ERROR
