"""One session's episode: exactly-once steps, the turn limit, and copies in the same state."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

import structlog
from gymfleet_contracts import problems
from gymfleet_contracts.observation import ImageContent
from gymfleet_contracts.session import (
    RECOVERED,
    AdmissibleActions,
    ExpertMove,
    ForkSupport,
    Game,
    Session,
    TaskRef,
    ToolCall,
)
from gymfleet_envs.environment import BadArguments, EngineLost, Environment, ModelFailed, Outcome
from gymfleet_envs.tasks import Task
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

from gymfleet_env_server.catalogue import Entry
from gymfleet_env_server.errors import ShardUnavailable
from gymfleet_env_server.models.replies import ReplayDiverged
from gymfleet_env_server.sessions.deadline import Overdue, within
from gymfleet_env_server.sessions.declared import bounded, checked_actions, hashed
from gymfleet_env_server.sessions.game import Move, dealt, moved, observed
from gymfleet_env_server.sessions.limits import Limits
from gymfleet_env_server.sessions.observation import NOTHING, Shown, shown
from gymfleet_env_server.shards.coroutines import Settled
from gymfleet_env_server.tools import check_call
from gymfleet_env_server.wire import checked_info, decode, encode_result

T = TypeVar("T")
Seal: TypeAlias = Callable[[TaskRef, int, Mapping[str, JsonValue]], str]
"""Returns what the environment of a task tells the reward service alone after so many steps, sealed."""
log = structlog.get_logger()


class Episode:
    """An environment instance and what the session API remembers about it."""

    __slots__ = (
        "_actions",
        "_blocking",
        "_committed",
        "_env",
        "_expert_overdue",
        "_first_info",
        "_keyed",
        "_last",
        "_last_action",
        "_limits",
        "_max_action_chars",
        "_may_commit",
        "_models",
        "_recoveries",
        "_seal_with",
        "_tells_state",
        "_timeout_s",
        "cpu_s",
        "entry",
        "game",
        "index",
        "name",
        "owner",
        "score",
        "sealed",
        "seed",
        "session_id",
        "shown",
        "state",
        "state_key",
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
        state_keys: bool = False,
        seal: Seal | None = None,
        record_replies: bool = False,
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
        self.shown = NOTHING
        """The last observation."""
        self.state = ""
        """The digest of the state behind the last observation, where the environment reports one."""
        self.state_key: str | None = None
        """The key of the state, where the session was opened with keys and the environment has one."""
        self.sealed: str | None = None
        """What the environment said last to the reward service alone."""
        self.game: Game | None = None
        """What the players see, where the environment is a game."""
        self.cpu_s = 0.0
        self._limits = limits
        self._seal_with = seal
        self._blocking = entry.kind.is_blocking()
        self._tells_state = entry.kind.tells_state()
        self._may_commit = entry.spec.capabilities.irreversible
        self._committed = False
        """Whether an action was taken that cannot be taken back."""
        self._timeout_s = self._own_timeout_s()
        # Read here once, because every step needs them.
        self.name = entry.spec.name
        self._max_action_chars = entry.spec.max_action_chars
        self._keyed = state_keys and entry.spec.capabilities.state_keys
        self._recoveries = recoveries
        self._last = b""
        self._expert_overdue = False
        self._last_action = ""
        self._first_info: dict[str, JsonValue] = {}
        self._actions: list[str] | None = [] if entry.kind.fork is ForkSupport.REPLAY else None
        self._models = entry.model_calls(told=record_replies)
        self._env: Environment[Any] | Settled

    @property
    def over(self) -> bool:
        """Whether the episode has ended, so that it takes no further step."""
        return self.terminated or self.truncated

    @property
    def told_replies(self) -> bytes:
        """What models replied during the last `reset` or `step`, for an opener that keeps it for a replay."""
        return b"" if self._models is None else self._models.told

    def begin(self, replies: bytes = b"") -> None:
        """Make the instance and reset it; in a replay, models are not asked but `replies` are repeated.

        Raises `EnvironmentFailed`, `ShardUnavailable`, `InvalidRequest`.
        """
        try:
            self._env = self.guarded(self.entry.make)
            if self._models is not None:
                self._env.answered_by(self._models)
            try:
                reset = partial(self._reset, replies)
                self.shown, self._first_info, self.score, self.state = self.guarded(reset)
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
        if index != self.index or self.terminated or self.truncated or len(action) > self._max_action_chars:
            self._check(index, action)
        if self._may_commit and not self._committed:
            self._committed = self.irreversible(index, action)
        limits = self._limits
        limits.beat(self.name, self._timeout_s)
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
        return self._may_commit and bool(self.guarded(partial(self._env.irreversible, action)))

    def action_of(self, call: ToolCall) -> str:
        """Return the action that a tool call spells.

        Raises `InvalidToolCall`, `ActionTooLarge`, `EnvironmentFailed`, `SessionLost`.
        """
        check_call(self.entry.kind, call.name, call.arguments)
        told = self.guarded(partial(self._spelled, call))
        if isinstance(told, BadArguments):
            raise InvalidToolCall(f"{call.name}: {told}")
        self._check_size(told)
        return told

    def fork(self, session_id: str) -> "Episode":
        """Return a child in exactly this state.

        Raises `ForkUnsupported`, `Irreversible`, `EnvironmentFailed`, `SessionLost`; and `ShardUnavailable` when
        the child's engine died, not the parent's.
        """
        child = Episode(
            session_id,
            self.entry,
            self.task,
            self.seed,
            self._limits,
            owner=self.owner,
            recoveries=self._recoveries,
            state_keys=self._keyed,
            seal=self._seal_with,
        )
        if self.entry.kind.fork is ForkSupport.NATIVE:
            copied: Callable[[], Environment[Any] | Settled] = self._env.snapshot
            child._env = self.guarded(copied)
            if self._models is not None:
                child._models = self._models.copy()
                child._env.answered_by(child._models)
        elif self._committed:
            raise Irreversible("an action of the session cannot be taken back, and a replay would repeat it")
        elif self._actions is not None and self.entry.kind.deterministic:
            if self._models is not None:
                child._models = self._models.fresh()
            child._repeat(self._actions, self._history, self.shown, self.state)
        else:
            raise ForkUnsupported(f"{self.entry.spec.name} can neither copy nor replay its state")
        child.index = self.index
        child.terminated = self.terminated
        child.truncated = self.truncated
        child.score = self.score
        child.shown = self.shown
        child.state = self.state
        child.state_key = self.state_key
        child.sealed = self.sealed
        child.game = self.game
        child._committed = self._committed
        child._last = self._last
        child._expert_overdue = self._expert_overdue
        child._last_action = self._last_action
        child._first_info = self._first_info
        return child

    @property
    def _history(self) -> list[bytes]:
        """What models replied during `reset`, and during each action that a fork would replay."""
        return [b""] * (self.index + 1) if self._models is None else self._models.history

    def _repeat(self, actions: list[str], history: list[bytes], expected: Shown, state: str) -> None:
        """Play the parent's episode from the beginning, as its child.

        Raises `ForkUnsupported` when that does not lead to the observation `expected` and to `state`, and what `fork`
        raises.
        """
        name = self.entry.spec.name
        first, *later = history
        try:
            self.begin(first)
            try:
                seen, reached = self.shown, self.state
                for action, replies in zip(actions, later, strict=True):
                    outcome, reached, _, move = self.guarded(partial(self._act, action, replies))
                    seen = self._shown(outcome, move)
                    self.game = None if move is None else move.game
                if (self.entry.kind.stable_observations and seen != expected) or reached != state:
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
        move = self.guarded(self._env.expert) if limit_s is None else self._expert_within(limit_s)
        if move is None:
            raise ExpertUnavailable(f"the expert of {self.entry.spec.name} knows no move here")
        return move

    def admissible_actions(self) -> AdmissibleActions:
        """Return the actions that are possible now. Raises `ActionsUnavailable`, `EnvironmentFailed`, `SessionLost`."""
        if not self.entry.spec.capabilities.admissible_actions:
            raise ActionsUnavailable(f"{self.entry.spec.name} does not say which actions are possible")
        told = () if self.over else self.guarded(self._possible)
        if told is None:
            raise ActionsUnavailable(f"{self.entry.spec.name} does not know which actions are possible here")
        return bounded(told, self.entry.spec.max_action_chars)

    def image(self, sha256: str) -> ImageContent:
        """Return an image of the last observation. Raises `UnknownImage`."""
        if (found := self.shown.images.get(sha256)) is None:
            raise UnknownImage(f"the last observation shows {len(self.shown.images)} images, and not {sha256}")
        return found

    def view(self, *, lease_s: float, expires_in_s: float) -> Session:
        """Return the session as callers see it."""
        return Session(
            session_id=self.session_id,
            task=self._task_ref(),
            observation=self.shown.text,
            parts=self.shown.parts,
            index=self.index,
            lease_s=lease_s,
            expires_in_s=expires_in_s,
            terminated=self.terminated,
            truncated=self.truncated,
            score=self.score,
            info=decode(self._last)["info"] if self._last else self._first_info,
            state_key=self.state_key,
            sealed=self.sealed,
            game=self.game,
        )

    def close(self) -> None:
        """Let the environment release its resources; a failure is logged and changes nothing."""
        try:
            if self._blocking:
                self._limits.beat(self.name, self._timeout_s)
                self._limits.apart(self._env.close)
            else:
                self._env.close()
        except (Exception, SystemExit):
            log.exception("environment.close_failed", env=self.entry.spec.name, session_id=self.session_id)

    def guarded(self, call: Callable[[], T]) -> T:
        """Run foreign code, turning `EngineLost` into `SessionLost` and other exceptions into `EnvironmentFailed`."""
        self._limits.beat(self.name, self._timeout_s)
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

    def _reset(self, replies: bytes) -> tuple[Shown, dict[str, JsonValue], float, str]:
        text = self._asking(partial(self._env.reset, self.task.data, self.seed), replies)
        max_chars = self._limits.max_observation_chars
        if seats := self.entry.kind.seats:
            self.game = dealt(self._env.game(), text, seats, max_chars)
            text = self.game.seats[self.game.to_move or seats[0]].observation
        seen = shown(text, self._env.start_parts, max_chars)
        score = float(self._env.start_score)
        if not 0.0 <= score <= 1.0:
            raise ValueError(f"the score must be within [0, 1], got {score}")
        info = dict(self._env.start_info)
        if self._recoveries:
            info[RECOVERED] = self._recoveries
        digest = self._digest(self.game)
        self.state_key = self._key()
        self.sealed = self._seal(self._env.start_private, 0)
        return seen, checked_info(info), score, digest

    def _act(self, action: str, replies: bytes) -> tuple[Outcome, str, str | None, Move | None]:
        """Return the environment's answer, its digest, its key and, in a game, what the move gave.

        One call, so that threads switch only once.
        """
        if self._models is None:
            outcome = self._env.step(action)
        else:
            outcome = self._asking(partial(self._env.step, action), replies)
        move = None if self.game is None else self._moved(self.game, outcome)
        digest = self._digest(move and move.game) if self._tells_state else ""
        return outcome, digest, self._key() if self._keyed else None, move

    def _moved(self, game: Game, outcome: Outcome) -> Move:
        cut = self._cut(outcome)
        return moved(game, outcome, self._env.game(), self._limits.max_observation_chars, cut=cut)

    def _cut(self, outcome: Outcome) -> bool:
        """Return whether the turn limit ends the episode with this step."""
        max_turns = self.entry.kind.max_turns
        limit = min(max_turns, self._env.turn_limit or max_turns)
        return self.index + 1 >= limit and not outcome.terminated

    def _seal(self, private: Mapping[str, JsonValue], index: int) -> str | None:
        """Return what is for the reward service alone; None where there is nothing, or no key to seal it with."""
        if not private or self._seal_with is None:
            return None
        return self._seal_with(self._task_ref(), index, private)

    def _task_ref(self) -> TaskRef:
        task = self.task
        return TaskRef(env=self.name, split=task.split, level=task.level, task_id=task.task_id, seed=self.seed)

    def _own_timeout_s(self) -> float:
        """Return the task's own time limit for one call; 0 where it has none."""
        if self.task.step_timeout_s is None:
            return 0.0
        return min(self.task.step_timeout_s, self.entry.kind.step_timeout_s or self._limits.step_timeout_s)

    def _asking(self, call: Callable[[], T], replies: bytes) -> T:
        """Make a call in which the environment may ask models."""
        if self._models is None:
            return call()
        return self._models.during(call, self._timeout_s or self._limits.step_timeout_s, replies)

    def _key(self) -> str | None:
        return hashed(self._env.state_key(), self.task.task_id) if self._keyed else None

    def _spelled(self, call: ToolCall) -> str | BadArguments:
        try:
            action = self._env.action_of(call.name, call.arguments)
        except BadArguments as error:  # the model's fault, and none of the environment's
            return error
        if not isinstance(action, str):
            raise TypeError(f"an action must be a str, got {type(action).__name__}")
        return action

    def _possible(self) -> Sequence[str] | None:
        told = self._env.admissible_actions()
        return None if told is None else checked_actions(told)

    def _shown(self, outcome: Outcome, move: Move | None) -> Shown:
        if move is not None:
            return Shown(move.observation)
        return shown(outcome.observation, outcome.parts, self._limits.max_observation_chars)

    def _digest(self, game: Game | None) -> str:
        if not self._tells_state:
            return ""
        state = self._env.state_digest()
        if state is not None and not isinstance(state, str):
            raise TypeError(f"a digest of the state must be a str or None, got {type(state).__name__}")
        if game is not None and self.entry.kind.stable_observations:
            return f"{observed(game)} {state or ''}"
        return state or ""

    def _failure(self, error: BaseException) -> ServiceError:
        env, name = self.entry.spec.name, type(error).__name__
        trace = {"traceparent": self._limits.trace} if self._limits.trace else {}
        if self._models is not None and self._models.failure is not None:
            error = self._models.failure  # whatever the environment made of it
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
        """Step the environment, check and encode its answer, and store it."""
        act = self._act
        if self._blocking:
            outcome, state, key, move = self._limits.apart(partial(act, action, replies))
        else:
            outcome, state, key, move = act(action, replies)
        gained = outcome if move is None else move
        reward, score = float(gained.reward), float(gained.score)
        if not (math.isfinite(reward) and 0.0 <= score <= 1.0):
            raise ValueError(f"reward must be finite and score within [0, 1], got {reward} and {score}")
        seen = self._shown(outcome, move)
        truncated = self._cut(outcome)
        game = None if move is None else move.game
        sealed = self._seal(outcome.private, self.index + 1)
        encoded = encode_result(
            index=self.index,
            observation=seen.text,
            reward=reward,
            terminated=outcome.terminated,
            truncated=truncated,
            score=score,
            action_valid=outcome.action_valid,
            info={**outcome.info, RECOVERED: self._recoveries} if self._recoveries else outcome.info,
            state_key=key,
            sealed=sealed,
            parts=seen.parts,
            game=game,
        )
        self.game = game
        self.state = state
        self.state_key = key
        self.sealed = sealed
        self.shown = seen
        self.score = score
        self.terminated = bool(outcome.terminated)
        self.truncated = truncated
        return encoded
