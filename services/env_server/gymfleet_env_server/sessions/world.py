"""The environment of one episode, as the runtime calls it: its answers are checked before they are used."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from gymfleet_contracts.session import Game, TaskRef, ToolCall
from gymfleet_envs.environment import BadArguments, Environment
from gymfleet_envs.tasks import Task
from pydantic import JsonValue

from gymfleet_env_server.catalogue import Entry
from gymfleet_env_server.models.replies import ModelCalls
from gymfleet_env_server.sessions.declared import checked_actions, hashed
from gymfleet_env_server.sessions.game import dealt, moved, observed
from gymfleet_env_server.sessions.limits import Limits
from gymfleet_env_server.sessions.observation import Shown, shown
from gymfleet_env_server.shards.coroutines import Settled
from gymfleet_env_server.wire import checked_info

T = TypeVar("T")
Seal: TypeAlias = Callable[[TaskRef, int, Mapping[str, JsonValue]], str]
"""Seals an environment's data for the reward service alone; takes the task, the number of steps taken, and the data."""


class Said(NamedTuple):
    """The environment's answer to `reset` or a `step`."""

    shown: Shown
    info: dict[str, JsonValue]
    score: float = 0.0
    state: str = ""
    """A digest of the state behind the observation, where the environment reports one."""
    state_key: str | None = None
    """The key of the state, where the session was opened with keys and the environment has one."""
    sealed: str | None = None
    """Sealed data for the reward service alone."""
    game: Game | None = None
    """What the players see, if it is a game."""
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    action_valid: bool = True


class World:
    """One instance of an environment for one task, made by `make`.

    Its calls may take long and raise anything: the environment's code is foreign. Each covers one `reset` or `step`
    with all that belongs to it, so that threads switch only once.
    """

    __slots__ = (
        "_keyed",
        "_limits",
        "_max_turns",
        "_seal_with",
        "_seed",
        "_tells_state",
        "entry",
        "env",
        "models",
        "task",
        "timeout_s",
    )

    def __init__(
        self,
        entry: Entry,
        task: Task[Any],
        seed: int,
        limits: Limits,
        *,
        state_keys: bool = False,
        seal: Seal | None = None,
        models: ModelCalls | None = None,
    ) -> None:
        self.entry = entry
        self.task = task
        self.models = models
        self.timeout_s = 0.0
        """The task's own time limit for one call; 0 where it has none."""
        if task.step_timeout_s is not None:
            self.timeout_s = min(task.step_timeout_s, entry.kind.step_timeout_s or limits.step_timeout_s)
        self.env: Environment[Any] | Settled
        self._seed = seed
        self._limits = limits
        self._keyed = state_keys and entry.spec.capabilities.state_keys
        self._seal_with = seal
        self._tells_state = entry.kind.tells_state()
        self._max_turns = entry.kind.max_turns

    def make(self) -> None:
        """Make the instance."""
        self.env = self.entry.make()
        if self.models is not None:
            self.env.answered_by(self.models)

    def fresh(self) -> "World":
        """Return another world of the same episode, without an instance."""
        return self._like(None if self.models is None else self.models.fresh())

    def copy(self) -> "World":
        """Return a world in exactly this state."""
        copied = self._like(None if self.models is None else self.models.copy())
        copied.env = self.env.snapshot()
        if copied.models is not None:
            copied.env.answered_by(copied.models)
        return copied

    def _like(self, models: ModelCalls | None) -> "World":
        return World(
            self.entry, self.task, self._seed, self._limits, state_keys=self._keyed, seal=self._seal_with, models=models
        )

    def reset(self, replies: bytes) -> Said:
        """Begin the episode; in a replay, models are not asked but `replies` are repeated."""
        text = self._asking(partial(self.env.reset, self.task.data, self._seed), replies)
        game, max_chars = None, self._limits.max_observation_chars
        if seats := self.entry.kind.seats:
            game = dealt(self.env.game(), text, seats, max_chars)
            text = game.seats[game.to_move or seats[0]].observation
        seen = shown(text, self.env.start_parts, max_chars)
        score = float(self.env.start_score)
        if not 0.0 <= score <= 1.0:
            raise ValueError(f"the score must be within [0, 1], got {score}")
        info = checked_info(dict(self.env.start_info))
        sealed = self._sealed(self.env.start_private, 0)
        return Said(seen, info, score, self._digest(game), self._key(), sealed, game)

    def step(self, action: str, replies: bytes, index: int, game: Game | None) -> Said:
        """Apply an action as step `index`; `game` is the game's state before it."""
        if self.models is None:
            outcome = self.env.step(action)
        else:
            outcome = self._asking(partial(self.env.step, action), replies)
        truncated = index + 1 >= min(self._max_turns, self.env.turn_limit or self._max_turns) and not outcome.terminated
        if game is None:
            seen = shown(outcome.observation, outcome.parts, self._limits.max_observation_chars)
            reward, score = float(outcome.reward), float(outcome.score)
        else:
            move = moved(game, outcome, self.env.game(), self._limits.max_observation_chars, cut=truncated)
            seen, reward, score, game = Shown(move.observation), move.reward, move.score, move.game
        if not (math.isfinite(reward) and 0.0 <= score <= 1.0):
            raise ValueError(f"reward must be finite and score within [0, 1], got {reward} and {score}")
        state = self._digest(game) if self._tells_state else ""
        key = self._key() if self._keyed else None
        sealed = self._sealed(outcome.private, index + 1) if outcome.private else None
        return Said(
            seen, outcome.info, score, state, key, sealed, game, reward, outcome.terminated, truncated,
            outcome.action_valid,
        )  # fmt: skip

    def possible(self) -> Sequence[str] | None:
        """Return the actions that are possible now; None if they are not known."""
        told = self.env.admissible_actions()
        return None if told is None else checked_actions(told)

    def spelled(self, call: ToolCall) -> str | BadArguments:
        """Return the action that a tool call spells, or why it spells none."""
        try:
            action = self.env.action_of(call.name, call.arguments)
        except BadArguments as error:  # the model's fault, and none of the environment's
            return error
        if not isinstance(action, str):
            raise TypeError(f"an action must be a str, got {type(action).__name__}")
        return action

    def task_ref(self) -> TaskRef:
        """Return the task as callers know it."""
        task, env = self.task, self.entry.spec.name
        return TaskRef(env=env, split=task.split, level=task.level, task_id=task.task_id, seed=self._seed)

    def _asking(self, call: Callable[[], T], replies: bytes) -> T:
        """Make a call in which the environment may ask models."""
        if self.models is None:
            return call()
        return self.models.during(call, self.timeout_s or self._limits.step_timeout_s, replies)

    def _key(self) -> str | None:
        return hashed(self.env.state_key(), self.task.task_id) if self._keyed else None

    def _sealed(self, private: Mapping[str, JsonValue], index: int) -> str | None:
        """Return the data for the reward service alone, sealed; None if there is none, or no key to seal it with."""
        if not private or self._seal_with is None:
            return None
        return self._seal_with(self.task_ref(), index, private)

    def _digest(self, game: Game | None) -> str:
        if not self._tells_state:
            return ""
        state = self.env.state_digest()
        if state is not None and not isinstance(state, str):
            raise TypeError(f"a digest of the state must be a str or None, got {type(state).__name__}")
        if game is not None and self.entry.kind.stable_observations:
            return f"{observed(game)} {state or ''}"
        return state or ""
