"""One session's episode: exactly-once steps, the turn limit, and copies in the same state."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import structlog
from gymfleet_contracts import problems
from gymfleet_contracts.session import RECOVERED, ExpertMove, ForkSupport, Session, TaskRef
from gymfleet_envs.environment import EngineLost, Environment, Outcome
from gymfleet_envs.tasks import Task
from gymfleet_kit.problems import ServiceError
from gymfleet_kit.session_problems import (
    ActionTooLarge,
    EnvironmentFailed,
    EpisodeOver,
    ExpertUnavailable,
    ForkUnsupported,
    SessionLost,
    StepOutOfOrder,
)
from pydantic import JsonValue

from gymfleet_env_server.catalogue import Entry
from gymfleet_env_server.errors import ShardUnavailable
from gymfleet_env_server.sessions.deadline import Overdue, within
from gymfleet_env_server.shards.coroutines import Settled, own_cpu_s
from gymfleet_env_server.shards.threads import SessionThreads
from gymfleet_env_server.wire import checked_info, decode, encode_result

CUT_MARK: Final = "\n[cut: {excess} more characters]"
T = TypeVar("T")
log = structlog.get_logger()


class Limits:
    """The limits on an environment's calls and answers.

    Args:
        beat: called with the environment's name before each call into it.
        session_cpu_s: processor time of a session; None for no limit.
        session_wall_s: age of a session; None for no limit.
        expert_s: time for one move of an expert; None for no limit.
        cpu_clock: processor time of the calling thread or job, in seconds; read only where it is limited.
        threads: for environments that wait; without them, every call runs on the calling thread.
    """

    __slots__ = (
        "beat",
        "cpu_clock",
        "expert_s",
        "max_observation_chars",
        "session_cpu_s",
        "session_wall_s",
        "threads",
        "trace",
    )

    def __init__(
        self,
        max_observation_chars: int,
        beat: Callable[[str], None],
        *,
        session_cpu_s: float | None = None,
        session_wall_s: float | None = None,
        expert_s: float | None = None,
        cpu_clock: Callable[[], float] = own_cpu_s,
        threads: SessionThreads | None = None,
    ) -> None:
        self.max_observation_chars = max_observation_chars
        self.beat = beat
        self.session_cpu_s = session_cpu_s
        self.session_wall_s = session_wall_s
        self.expert_s = expert_s
        self.cpu_clock = cpu_clock if session_cpu_s is not None else _no_clock
        self.threads = threads
        self.trace = ""
        """The `traceparent` of the current call, for the log."""

    def apart(self, call: Callable[[], T]) -> T:
        """Make a call that may wait, and let other sessions' calls run meanwhile."""
        if self.threads is None:
            return call()
        trace = self.trace
        try:
            return self.threads.apart(call)
        finally:
            self.trace = trace


def _no_clock() -> float:
    return 0.0


class Episode:
    """An environment instance and what the session API remembers about it."""

    __slots__ = (
        "_actions",
        "_blocking",
        "_env",
        "_expert_overdue",
        "_first_info",
        "_last",
        "_last_action",
        "_limits",
        "_recoveries",
        "_tells_state",
        "cpu_s",
        "entry",
        "index",
        "observation",
        "owner",
        "score",
        "seed",
        "session_id",
        "state",
        "task",
        "terminated",
        "truncated",
    )

    def __init__(
        self,
        session_id: str,
        entry: Entry,
        task: Task[Any],
        seed: int,
        limits: Limits,
        *,
        owner: str = "",
        recoveries: int = 0,
    ) -> None:
        self.session_id = session_id
        self.entry = entry
        self.task = task
        self.seed = seed
        self.owner = owner
        self.index = 0
        self.terminated = False
        self.truncated = False
        self.score = 0.0
        self.observation = ""
        self.state = ""
        """The digest of the state behind the last observation, where the environment reports one."""
        self.cpu_s = 0.0
        self._limits = limits
        self._blocking = entry.kind.is_blocking()
        self._tells_state = entry.kind.tells_state()
        self._recoveries = recoveries
        self._last = b""
        self._expert_overdue = False
        self._last_action = ""
        self._first_info: dict[str, JsonValue] = {}
        self._actions: list[str] | None = [] if entry.kind.fork is ForkSupport.REPLAY else None
        self._env: Environment[Any] | Settled

    @property
    def over(self) -> bool:
        """Whether the episode has ended, so that it takes no further step."""
        return self.terminated or self.truncated

    def begin(self) -> None:
        """Make the instance and reset it. Raises `EnvironmentFailed`, `ShardUnavailable`."""
        try:
            self._env = self.guarded(self.entry.make)
            try:
                self.observation, self._first_info, self.score, self.state = self.guarded(self._reset)
            except ServiceError:
                self.close()
                raise
        except SessionLost:
            name = self.entry.spec.name
            raise ShardUnavailable(f"the engine of {name} died while the episode began; try again") from None

    def repeated(self, index: int, action: str) -> bytes:
        """Return the stored result if this repeats the last step; empty for another index.

        Raises `StepOutOfOrder` for the last index with another action: its result would pass for that action's.
        """
        if index != self.index - 1:
            return b""
        if action != self._last_action:
            raise StepOutOfOrder(f"step {index} was taken with another action", expected=self.index)
        return self._last

    def step(self, index: int, action: str) -> bytes:
        """Apply the next action and return the encoded `StepResult`.

        Raises the errors of the session API; only `EnvironmentFailed` and `SessionLost` end the session.
        """
        if self.over:
            raise EpisodeOver(f"the episode ended with step {self.index - 1}", last_index=self.index - 1)
        if index != self.index:
            raise StepOutOfOrder(f"expected step {self.index}, got {index}", expected=self.index)
        if len(action) > (limit := self.entry.spec.max_action_chars):
            raise ActionTooLarge(
                f"the action has {len(action)} characters; {self.entry.spec.name} takes {limit}",
                max_action_chars=limit,
            )
        limits = self._limits
        limits.beat(self.entry.spec.name)
        began = limits.cpu_clock()
        try:  # as `guarded` does, without the cost of a closure
            self._last = self._play(action)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - logged, with its traceback, by `_failure`
            raise self._failure(error) from None
        finally:
            self.cpu_s += limits.cpu_clock() - began
        if self._actions is not None:
            self._actions.append(action)
        self._last_action = action
        self.index += 1
        return self._last

    def fork(self, session_id: str) -> "Episode":
        """Return a child in exactly this state.

        Raises `ForkUnsupported`, `EnvironmentFailed`, `SessionLost`; and `ShardUnavailable` when
        the child's engine died, not the parent's.
        """
        child = Episode(
            session_id, self.entry, self.task, self.seed, self._limits, owner=self.owner, recoveries=self._recoveries
        )
        if self.entry.kind.fork is ForkSupport.NATIVE:
            copied: Callable[[], Environment[Any] | Settled] = self._env.snapshot
            child._env = self.guarded(copied)
        elif self._actions is not None and self.entry.kind.deterministic:
            child.begin()
            try:
                child.replay(self._actions, self.observation, self.state)
            except ServiceError as error:
                child.close()
                if isinstance(error, SessionLost):
                    name = self.entry.spec.name
                    raise ShardUnavailable(f"the engine of {name} died while it was replayed; try again") from None
                raise
            child._actions = list(self._actions)
        else:
            raise ForkUnsupported(f"{self.entry.spec.name} can neither copy nor replay its state")
        child.index = self.index
        child.terminated = self.terminated
        child.truncated = self.truncated
        child.score = self.score
        child.observation = self.observation
        child.state = self.state
        child._last = self._last
        child._expert_overdue = self._expert_overdue
        child._last_action = self._last_action
        child._first_info = self._first_info
        return child

    def replay(self, actions: list[str], expected: str, state: str) -> None:
        """Replay `actions` from the beginning.

        Raises `ForkUnsupported` when they do not lead to the observation `expected` and to `state`.
        """
        shown, reached = self.observation, self.state
        for action in actions:
            outcome, reached = self.guarded(partial(self._act, action))
            shown = self._text(outcome.observation)
        if (self.entry.kind.stable_observations and shown != expected) or reached != state:
            log.error("environment.diverged", env=self.entry.spec.name, session_id=self.session_id)
            raise ForkUnsupported(f"{self.entry.spec.name} showed something else when the episode was replayed")

    def expert(self) -> ExpertMove:
        """Return the expert's next move. Raises `ExpertUnavailable`, `EnvironmentFailed`, `SessionLost`."""
        if self.over:
            raise ExpertUnavailable("the episode is over")
        limit_s = self._limits.expert_s
        move = self.guarded(self._env.expert) if limit_s is None else self._expert_within(limit_s)
        if move is None:
            raise ExpertUnavailable(f"the expert of {self.entry.spec.name} knows no move here")
        return move

    def view(self, *, lease_s: float, expires_in_s: float) -> Session:
        """Return the session as callers see it."""
        return Session(
            session_id=self.session_id,
            task=TaskRef(
                env=self.entry.spec.name,
                split=self.task.split,
                level=self.task.level,
                task_id=self.task.task_id,
                seed=self.seed,
            ),
            observation=self.observation,
            index=self.index,
            lease_s=lease_s,
            expires_in_s=expires_in_s,
            terminated=self.terminated,
            truncated=self.truncated,
            score=self.score,
            info=decode(self._last)["info"] if self._last else self._first_info,
        )

    def close(self) -> None:
        """Let the environment release its resources; a failure is logged and changes nothing."""
        try:
            if self._blocking:
                self._limits.beat(self.entry.spec.name)
                self._limits.apart(self._env.close)
            else:
                self._env.close()
        except (Exception, SystemExit):
            log.exception("environment.close_failed", env=self.entry.spec.name, session_id=self.session_id)

    def guarded(self, call: Callable[[], T]) -> T:
        """Run foreign code, turning `EngineLost` into `SessionLost` and other exceptions into `EnvironmentFailed`."""
        self._limits.beat(self.entry.spec.name)
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
                return self.guarded(partial(within, limit_s, self._env.expert))
            except Overdue:
                self._expert_overdue = True
                log.error("expert.overdue", env=name, session_id=self.session_id, limit_s=limit_s)
        raise ExpertUnavailable(f"the expert of {name} took longer than {limit_s:g} s in this session")

    def _reset(self) -> tuple[str, dict[str, JsonValue], float, str]:
        shown = self._text(self._env.reset(self.task.data, self.seed))
        score = float(self._env.start_score)
        if not 0.0 <= score <= 1.0:
            raise ValueError(f"the score must be within [0, 1], got {score}")
        info = dict(self._env.start_info)
        if self._recoveries:
            info[RECOVERED] = self._recoveries
        return shown, checked_info(info), score, self._digest()

    def _act(self, action: str) -> tuple[Outcome, str]:
        """Return the environment's answer and the digest of its state; one call, so that threads switch only once."""
        return self._env.step(action), self._digest()

    def _digest(self) -> str:
        if not self._tells_state:
            return ""
        state = self._env.state_digest()
        if state is not None and not isinstance(state, str):
            raise TypeError(f"a digest of the state must be a str or None, got {type(state).__name__}")
        return state or ""

    def _failure(self, error: BaseException) -> ServiceError:
        env, name = self.entry.spec.name, type(error).__name__
        trace = {"traceparent": self._limits.trace} if self._limits.trace else {}
        if isinstance(error, EngineLost):
            log.error("environment.engine_lost", env=env, session_id=self.session_id, reason=str(error), **trace)
            detail, own = f"the engine of {env} died under the session", {problems.IN_WORK: True}
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

    def _play(self, action: str) -> bytes:
        """Step the environment, check and encode its answer, and store it."""
        outcome, state = self._limits.apart(partial(self._act, action)) if self._blocking else self._act(action)
        reward, score = float(outcome.reward), float(outcome.score)
        if not (math.isfinite(reward) and 0.0 <= score <= 1.0):
            raise ValueError(f"reward must be finite and score within [0, 1], got {reward} and {score}")
        max_turns = self.entry.kind.max_turns
        limit = min(max_turns, self._env.turn_limit or max_turns)
        observation = self._text(outcome.observation)
        truncated = self.index + 1 >= limit and not outcome.terminated
        encoded = encode_result(
            index=self.index,
            observation=observation,
            reward=reward,
            terminated=outcome.terminated,
            truncated=truncated,
            score=score,
            action_valid=outcome.action_valid,
            info={**outcome.info, RECOVERED: self._recoveries} if self._recoveries else outcome.info,
        )
        self.state = state
        self.observation = observation
        self.score = score
        self.terminated = bool(outcome.terminated)
        self.truncated = truncated
        return encoded

    def _text(self, observation: str) -> str:
        """Return an observation that can be sent: valid Unicode, within the length limit."""
        if not isinstance(observation, str):
            raise TypeError(f"an observation must be a str, got {type(observation).__name__}")
        if not observation.isascii():  # lone surrogates, such as from an engine's undecodable output
            observation = observation.encode(errors="replace").decode()
        if (excess := len(observation) - self._limits.max_observation_chars) > 0:
            observation = observation[:-excess] + CUT_MARK.format(excess=excess)
        return observation
