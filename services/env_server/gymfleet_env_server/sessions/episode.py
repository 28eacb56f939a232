"""One session's episode: exactly-once steps, the turn limit, and copies in the same state."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import structlog
from gymfleet_contracts import problems
from gymfleet_contracts.observation import ImageContent
from gymfleet_contracts.session import (
    RECOVERED,
    AdmissibleActions,
    ExpertMove,
    ForkSupport,
    Session,
    ToolCall,
)
from gymfleet_envs.deadline import Overdue, within
from gymfleet_envs.environment import BadArguments, EngineLost, ModelFailed
from gymfleet_kit.problems import ServiceError
from gymfleet_kit.session_problems import (
    ActionsUnavailable,
    ActionTooLarge,
    EnvironmentFailed,
    EpisodeOver,
    ExpertUnavailable,
    ForkUnsupported,
    InvalidToolCall,
    Irreversible,
    SessionLost,
    StepOutOfOrder,
    UnknownImage,
)
from pydantic import JsonValue

from gymfleet_env_server.errors import ShardUnavailable
from gymfleet_env_server.models.replies import ReplayDiverged
from gymfleet_env_server.sessions.declared import bounded
from gymfleet_env_server.sessions.limits import Limits
from gymfleet_env_server.sessions.observation import NOTHING
from gymfleet_env_server.sessions.world import Said, World
from gymfleet_env_server.tools import check_call
from gymfleet_env_server.wire import decode, encode_result

T = TypeVar("T")
log = structlog.get_logger()


class Episode:
    """An environment instance and what the session API remembers about it."""

    __slots__ = (
        "_actions",
        "_blocking",
        "_committed",
        "_expert_overdue",
        "_last",
        "_last_action",
        "_limits",
        "_max_action_chars",
        "_may_commit",
        "_recoveries",
        "_said",
        "_world",
        "cpu_s",
        "entry",
        "index",
        "name",
        "owner",
        "session_id",
        "task",
    )

    def __init__(self, session_id: str, world: World, limits: Limits, *, owner: str = "", recoveries: int = 0) -> None:
        self.session_id = session_id
        self.entry = world.entry
        self.task = world.task
        self.owner = owner
        self.index = 0
        self.cpu_s = 0.0
        self._world = world
        self._limits = limits
        self._recoveries = recoveries
        # Read here once, because every step needs them.
        self.name = self.entry.spec.name
        self._max_action_chars = self.entry.spec.max_action_chars
        self._may_commit = self.entry.spec.capabilities.irreversible
        self._blocking = self.entry.kind.is_blocking()
        self._committed = False
        """Whether an action was taken that cannot be taken back."""
        self._said = Said(NOTHING, {})
        """The environment's last answer."""
        self._last = b""
        """The result of the last step, encoded."""
        self._last_action = ""
        self._expert_overdue = False
        self._actions: list[str] | None = [] if self.entry.kind.fork is ForkSupport.REPLAY else None

    @property
    def over(self) -> bool:
        """Whether the episode has ended, so that it takes no further step."""
        return self._said.terminated or self._said.truncated

    @property
    def state(self) -> str:
        """The digest of the state behind the last observation, where the environment reports one."""
        return self._said.state

    @property
    def told_replies(self) -> bytes:
        """The replies of models during the last `reset` or `step`, for an opener that keeps them for a replay."""
        return b"" if self._world.models is None else self._world.models.told

    def begin(self, replies: bytes = b"") -> None:
        """Make the instance and reset it; in a replay, models are not asked but `replies` are repeated.

        Raises `EnvironmentFailed`, `ShardUnavailable`, `InvalidRequest`.
        """
        try:
            self.guarded(self._world.make)
            try:
                self._said = self.guarded(partial(self._world.reset, replies))
            except ServiceError:
                self.close()
                raise
        except SessionLost as error:
            raise ShardUnavailable(f"{error.detail} while the episode began; try again") from None

    def repeated(self, index: int, action: str) -> bytes:
        """Return the stored result if this repeats the last step; empty for another index.

        Raises `StepOutOfOrder` for the last index with another action: its result would pass for that action's.
        """
        if index != self.index - 1:
            return b""
        if action != self._last_action:
            raise StepOutOfOrder(f"step {index} was taken with another action", expected=self.index)
        return self._last

    def step(self, index: int, action: str, replies: bytes = b"") -> bytes:
        """Apply the next action and return the encoded `StepResult`; `replies` as in `begin`.

        Raises the errors of the session API; only `EnvironmentFailed` and `SessionLost` end the session.
        """
        if index != self.index or self.over or len(action) > self._max_action_chars:
            self._check(index, action)
        if self._may_commit and not self._committed:
            self._committed = self.irreversible(index, action)
        limits = self._limits
        limits.beat(self.name, self._world.timeout_s)
        began = limits.cpu_clock()
        try:  # as `guarded` does, without the cost of a closure
            self._last = self._play(action, replies)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - logged, with its traceback, by `_failure`
            raise self._failure(error) from None
        finally:
            self.cpu_s += limits.cpu_clock() - began
        if self._actions is not None:
            self._actions.append(action)
        self._last_action = action
        self.index += 1
        return self._last

    def irreversible(self, index: int, action: str) -> bool:
        """Return whether this step could not be taken back. Raises the errors of `step`."""
        self._check(index, action)
        return self._may_commit and bool(self.guarded(partial(self._world.env.irreversible, action)))

    def action_of(self, call: ToolCall) -> str:
        """Return the action that a tool call spells.

        Raises `InvalidToolCall`, `ActionTooLarge`, `EnvironmentFailed`, `SessionLost`.
        """
        check_call(self.entry.kind, call.name, call.arguments)
        told = self.guarded(partial(self._world.spelled, call))
        if isinstance(told, BadArguments):
            raise InvalidToolCall(f"{call.name}: {told}")
        self._check_size(told)
        return told

    def fork(self, session_id: str) -> "Episode":
        """Return a child in exactly this state.

        Raises `ForkUnsupported`, `Irreversible`, `EnvironmentFailed`, `SessionLost`; and `ShardUnavailable` when
        the child's engine died, not the parent's.
        """
        child = Episode(session_id, self._world.fresh(), self._limits, owner=self.owner, recoveries=self._recoveries)
        if self.entry.kind.fork is ForkSupport.NATIVE:
            child._world = self.guarded(self._world.copy)
        elif self._committed:
            raise Irreversible("an action of the session cannot be taken back, and a replay would repeat it")
        elif self._actions is not None and self.entry.kind.deterministic:
            child._repeat(self._actions, self._history, self._said)
        else:
            raise ForkUnsupported(f"{self.entry.spec.name} can neither copy nor replay its state")
        child.index = self.index
        child._said = self._said
        child._committed = self._committed
        child._last = self._last
        child._last_action = self._last_action
        child._expert_overdue = self._expert_overdue
        return child

    @property
    def _history(self) -> list[bytes]:
        """The replies of models during `reset`, and during each action that a fork would replay."""
        models = self._world.models
        return [b""] * (self.index + 1) if models is None else models.history

    def _repeat(self, actions: list[str], history: list[bytes], expected: Said) -> None:
        """Play the parent's episode from the beginning, as its child.

        Raises `ForkUnsupported` when that does not lead to the observation and the state that are `expected`, and what
        `fork` raises.
        """
        name = self.entry.spec.name
        first, *later = history
        try:
            self.begin(first)
            try:
                said = self._said
                for index, (action, replies) in enumerate(zip(actions, later, strict=True)):
                    said = self.guarded(partial(self._world.step, action, replies, index, said.game))
                differs = self.entry.kind.stable_observations and said.shown != expected.shown
                if differs or said.state != expected.state:
                    log.error("environment.diverged", env=name, session_id=self.session_id)
                    raise ForkUnsupported(f"{name} showed something else when the episode was replayed")
            except ServiceError:
                self.close()
                raise
        except SessionLost as error:
            raise ShardUnavailable(f"{error.detail} while the episode was replayed; try again") from None
        except ReplayDiverged as error:
            log.error("environment.diverged", env=name, session_id=self.session_id)
            raise ForkUnsupported(error.detail) from None
        self._actions = list(actions)

    def expert(self) -> ExpertMove:
        """Return the expert's next move. Raises `ExpertUnavailable`, `EnvironmentFailed`, `SessionLost`."""
        if self.over:
            raise ExpertUnavailable("the episode is over")
        limit_s = self._limits.expert_s
        move = self.guarded(self._world.env.expert) if limit_s is None else self._expert_within(limit_s)
        if move is None:
            raise ExpertUnavailable(f"the expert of {self.entry.spec.name} knows no move here")
        return move

    def admissible_actions(self) -> AdmissibleActions:
        """Return the actions that are possible now. Raises `ActionsUnavailable`, `EnvironmentFailed`, `SessionLost`."""
        if not self.entry.spec.capabilities.admissible_actions:
            raise ActionsUnavailable(f"{self.entry.spec.name} does not say which actions are possible")
        told = () if self.over else self.guarded(self._world.possible)
        if told is None:
            raise ActionsUnavailable(f"{self.entry.spec.name} does not know which actions are possible here")
        return bounded(told, self.entry.spec.max_action_chars)

    def image(self, sha256: str) -> ImageContent:
        """Return an image of the last observation. Raises `UnknownImage`."""
        images = self._said.shown.images
        if (found := images.get(sha256)) is None:
            raise UnknownImage(f"the last observation shows {len(images)} images, and not {sha256}")
        return found

    def view(self, *, lease_s: float, expires_in_s: float) -> Session:
        """Return the session as callers see it."""
        said = self._said
        return Session(
            session_id=self.session_id,
            task=self._world.task_ref(),
            observation=said.shown.text,
            parts=said.shown.parts,
            index=self.index,
            lease_s=lease_s,
            expires_in_s=expires_in_s,
            terminated=said.terminated,
            truncated=said.truncated,
            score=said.score,
            info=decode(self._last)["info"] if self._last else self._first_info(),
            state_key=said.state_key,
            sealed=said.sealed,
            game=said.game,
        )

    def close(self) -> None:
        """Let the environment release its resources; a failure is logged and changes nothing."""
        try:
            if self._blocking:
                self._limits.beat(self.name, self._world.timeout_s)
                self._limits.apart(self._world.env.close)
            else:
                self._world.env.close()
        except (Exception, SystemExit):
            log.exception("environment.close_failed", env=self.entry.spec.name, session_id=self.session_id)

    def guarded(self, call: Callable[[], T]) -> T:
        """Run foreign code, turning `EngineLost` into `SessionLost` and other exceptions into `EnvironmentFailed`."""
        self._limits.beat(self.name, self._world.timeout_s)
        began = self._limits.cpu_clock()
        try:
            return self._limits.apart(call) if self._blocking else call()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - logged, with its traceback, by `_failure`
            raise self._failure(error) from None
        finally:
            self.cpu_s += self._limits.cpu_clock() - began

    def _expert_within(self, limit_s: float) -> ExpertMove | None:
        """Ask an expert that may never return: it delays the other sessions only once, as it is not asked again."""
        name = self.entry.spec.name
        if not self._expert_overdue:
            try:
                return self.guarded(partial(within, limit_s, self._world.env.expert))
            except Overdue:
                self._expert_overdue = True
                log.error("expert.overdue", env=name, session_id=self.session_id, limit_s=limit_s)
        raise ExpertUnavailable(f"the expert of {name} took longer than {limit_s:g} s in this session")

    def _check(self, index: int, action: str) -> None:
        """Raise the problem of a step that cannot be taken."""
        if self.over:
            raise EpisodeOver(f"the episode ended with step {self.index - 1}", last_index=self.index - 1)
        if index != self.index:
            raise StepOutOfOrder(f"expected step {self.index}, got {index}", expected=self.index)
        self._check_size(action)

    def _check_size(self, action: str) -> None:
        if len(action) > (limit := self._max_action_chars):
            raise ActionTooLarge(
                f"the action has {len(action)} characters; {self.entry.spec.name} takes {limit}",
                max_action_chars=limit,
            )

    def _first_info(self) -> dict[str, JsonValue]:
        """Return the `info` on the first observation."""
        info = dict(self._said.info)
        return {**info, RECOVERED: self._recoveries} if self._recoveries else info

    def _failure(self, error: BaseException) -> ServiceError:
        env, name = self.entry.spec.name, type(error).__name__
        trace = {"traceparent": self._limits.trace} if self._limits.trace else {}
        models = self._world.models
        if models is not None and models.failure is not None:
            error = models.failure  # whatever the environment made of it
        if isinstance(error, ServiceError):
            return error
        if isinstance(error, EngineLost):
            log.error("environment.engine_lost", env=env, session_id=self.session_id, reason=str(error), **trace)
            asked = isinstance(error, ModelFailed)
            detail = f"a model that {env} asked gave no answer" if asked else f"the engine of {env} died"
            own = {problems.IN_WORK: True}
            return SessionLost(detail, env=env, session_id=self.session_id, **own)
        log.error(
            "environment.failed",
            env=env, session_id=self.session_id, exception=name, exc_info=error, **trace,
        )  # fmt: skip
        return EnvironmentFailed(
            f"{env} raised {name}; the session is closed",
            env=env,
            session_id=self.session_id,
            exception=name,
        )

    def _play(self, action: str, replies: bytes) -> bytes:
        """Step the environment, encode its answer, and store it."""
        step = self._world.step
        if self._blocking:
            said = self._limits.apart(partial(step, action, replies, self.index, self._said.game))
        else:
            said = step(action, replies, self.index, self._said.game)
        encoded = encode_result(
            index=self.index,
            observation=said.shown.text,
            reward=said.reward,
            terminated=said.terminated,
            truncated=said.truncated,
            score=said.score,
            action_valid=said.action_valid,
            info={**said.info, RECOVERED: self._recoveries} if self._recoveries else said.info,
            state_key=said.state_key,
            sealed=said.sealed,
            parts=said.shown.parts,
            game=said.game,
        )
        self._said = said
        return encoded
