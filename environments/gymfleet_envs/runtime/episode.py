"""One session's episode: exactly-once steps, the turn limit, and copies in the same state."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import structlog
from gymfleet_contracts.session import ExpertMove, ForkSupport, Session, Step, StepResult, TaskRef
from gymfleet_kit.session_problems import (
    ActionTooLarge,
    EnvironmentFailed,
    EpisodeOver,
    ExpertUnavailable,
    ForkUnsupported,
    StepOutOfOrder,
)

from gymfleet_envs.runtime.catalogue import Entry
from gymfleet_envs.runtime.environment import Environment, Outcome
from gymfleet_envs.runtime.tasks import Task

CUT_MARK: Final = "\n[cut: {excess} more characters]"
T = TypeVar("T")
log = structlog.get_logger()


class Limits:
    """What bounds an environment's answers, and `beat`, called before each of its calls."""

    def __init__(self, max_observation_chars: int, beat: Callable[[], None]) -> None:
        self.max_observation_chars = max_observation_chars
        self.beat = beat


class Episode:
    """An environment instance and what the session API remembers of it."""

    def __init__(self, session_id: str, entry: Entry, task: Task[Any], seed: int, limits: Limits) -> None:
        self.session_id = session_id
        self.entry = entry
        self.task = task
        self.seed = seed
        self.ref = TaskRef(env=entry.spec.name, split=task.split, level=task.level, task_id=task.task_id, seed=seed)
        self.index = 0
        self.terminated = False
        self.truncated = False
        self.score = 0.0
        self.observation = ""
        self._limits = limits
        self._last: StepResult | None = None
        self._actions: list[str] = []
        self._env: Environment[Any]

    @property
    def over(self) -> bool:
        """No further step is taken."""
        return self.terminated or self.truncated

    def begin(self) -> None:
        """Make the instance and reset it. Raises `EnvironmentFailed`."""
        self._env = self.guarded(self.entry.kind)
        self.observation = self.guarded(lambda: self._text(self._env.reset(self.task.data, self.seed)))

    def repeated(self, step: Step) -> StepResult | None:
        """The stored result, when `step` is the last one again."""
        return self._last if self._last is not None and step.index == self._last.index else None

    def step(self, step: Step) -> StepResult:
        """Apply the next action. Raises what the session API says; only `EnvironmentFailed` ends the session."""
        if self.over:
            raise EpisodeOver(f"the episode ended with step {self.index - 1}", last_index=self.index - 1)
        if step.index != self.index:
            raise StepOutOfOrder(f"expected step {self.index}, got {step.index}", expected=self.index)
        if len(step.action) > (limit := self.entry.spec.max_action_chars):
            raise ActionTooLarge(
                f"the action has {len(step.action)} characters; {self.entry.spec.name} takes {limit}",
                max_action_chars=limit,
            )
        result = self.guarded(lambda: self._result(self._env.step(step.action)))
        if self.entry.kind.fork is ForkSupport.REPLAY:
            self._actions.append(step.action)
        self.index += 1
        self.observation = result.observation
        self.score = result.score
        self.terminated = result.terminated
        self.truncated = result.truncated
        self._last = result
        return result

    def fork(self, session_id: str) -> "Episode":
        """A child in exactly this state. Raises `ForkUnsupported`, `EnvironmentFailed`."""
        child = Episode(session_id, self.entry, self.task, self.seed, self._limits)
        if self.entry.kind.fork is ForkSupport.NATIVE:
            child._env = self.guarded(self._env.snapshot)
        elif self.entry.kind.fork is ForkSupport.REPLAY and self.entry.kind.deterministic:
            child.replay(self._actions, self.observation)
        else:
            raise ForkUnsupported(f"{self.entry.spec.name} can neither copy nor replay its state")
        child.index = self.index
        child.terminated = self.terminated
        child.truncated = self.truncated
        child.score = self.score
        child.observation = self.observation
        child._last = self._last
        child._actions = list(self._actions)
        return child

    def replay(self, actions: list[str], expected: str) -> None:
        """Begin and repeat `actions`. Raises `ForkUnsupported` when that does not lead to `expected`."""
        self.begin()
        shown = self.observation
        for action in actions:
            outcome = self.guarded(partial(self._env.step, action))
            shown = self._text(outcome.observation)
        if self.entry.kind.stable_observations and shown != expected:
            log.error("environment.diverged", env=self.entry.spec.name, session_id=self.session_id)
            raise ForkUnsupported(f"{self.entry.spec.name} showed something else when the episode was replayed")

    def expert(self) -> ExpertMove:
        """The expert's next move. Raises `ExpertUnavailable`, `EnvironmentFailed`."""
        if self.over:
            raise ExpertUnavailable("the episode is over")
        move = self.guarded(self._env.expert)
        if move is None:
            raise ExpertUnavailable(f"the expert of {self.entry.spec.name} knows no move here")
        return move

    def view(self, *, lease_s: float, expires_in_s: float) -> Session:
        """The session as callers see it."""
        return Session(
            session_id=self.session_id,
            task=self.ref,
            observation=self.observation,
            index=self.index,
            lease_s=lease_s,
            expires_in_s=expires_in_s,
            terminated=self.terminated,
            truncated=self.truncated,
            score=self.score,
        )

    def close(self) -> None:
        """Let the environment release what it holds; its failure to do so is logged and changes nothing."""
        try:
            self._env.close()
        except Exception:
            log.exception("environment.close_failed", env=self.entry.spec.name, session_id=self.session_id)

    def guarded(self, call: Callable[[], T]) -> T:
        """Run foreign code: whatever it raises becomes `EnvironmentFailed`, with the traceback in the log alone."""
        self._limits.beat()
        try:
            return call()
        except (Exception, SystemExit) as error:
            name = type(error).__name__
            log.exception("environment.failed", env=self.entry.spec.name, session_id=self.session_id, exception=name)
            raise EnvironmentFailed(
                f"{self.entry.spec.name} raised {name}; the session is closed",
                env=self.entry.spec.name,
                session_id=self.session_id,
                exception=name,
            ) from None

    def _result(self, outcome: Outcome) -> StepResult:
        reward, score = float(outcome.reward), float(outcome.score)
        if not (math.isfinite(reward) and 0.0 <= score <= 1.0):
            raise ValueError(f"reward must be finite and score within [0, 1], got {reward} and {score}")
        turns = self.index + 1
        limit = min(self.entry.kind.max_turns, self._env.turn_limit or self.entry.kind.max_turns)
        return StepResult(
            index=self.index,
            observation=self._text(outcome.observation),
            reward=reward,
            terminated=outcome.terminated,
            truncated=turns >= limit and not outcome.terminated,
            score=score,
            action_valid=outcome.action_valid,
            info=outcome.info,
        )

    def _text(self, observation: str) -> str:
        """Text that can travel: valid Unicode, within the limit."""
        if not isinstance(observation, str):
            raise TypeError(f"an observation must be a str, got {type(observation).__name__}")
        if not observation.isascii():  # lone surrogates, such as from an engine's undecodable output
            observation = observation.encode(errors="replace").decode()
        if (excess := len(observation) - self._limits.max_observation_chars) > 0:
            observation = observation[:-excess] + CUT_MARK.format(excess=excess)
        return observation
