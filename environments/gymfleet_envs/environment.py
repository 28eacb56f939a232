"""What a researcher writes: one class with `reset`, `step`, a task source and an action grammar."""

import copy
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, Self, TypeAlias, TypeVar

from gymfleet_contracts.session import Capabilities, EnvironmentSpec, ExpertMove, ForkSupport
from pydantic import BaseModel, ConfigDict, JsonValue

from gymfleet_envs.tasks import SPLITS, TaskSource

TaskT = TypeVar("TaskT")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one action led to.

    `reward` is the benchmark's own, on its own scale; `score` is the success so
    far in [0, 1], and 1 means solved. `action_valid` is False when the action was
    not understood: such a step still counts as a turn.
    """

    observation: str
    reward: float = 0.0
    terminated: bool = False
    score: float = 0.0
    action_valid: bool = True
    info: dict[str, JsonValue] = field(default_factory=dict)


class Options(BaseModel):
    """Settings of one environment, such as its backend: a subclass names them.

    Given as JSON by `GYMFLEET_ENV_OPTIONS='{"db": {"backend": "mariadb"}}'`. Secrets
    are read from files that an option names, never given here.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineLost(Exception):
    """The engine under the episode (a JVM, a database server, a shell) died or had to be killed.

    Raised by `reset`, `step`, `expert` or `snapshot`. The session answers `session-lost`
    from then on, never a reward: a gateway replays it elsewhere, where it is
    deterministic. An opening is answered with 503 and may be tried again. Neighbours are
    untouched, as long as the environment starts a new engine for them.
    """


class EnvironmentClass(ABC, Generic[TaskT]):
    """What `Environment` and `AsyncEnvironment` have in common: what a class says of its episodes, and its tasks."""

    name: ClassVar[str]
    version: ClassVar[str]
    summary: ClassVar[str]
    instructions: ClassVar[str]
    """Task-independent rules for the model, without the reply format: the grammar brings its own."""
    grammar: ClassVar[str] = "react"
    max_turns: ClassVar[int]
    deterministic: ClassVar[bool] = True
    stable_observations: ClassVar[bool] = True
    fork: ClassVar[ForkSupport] = ForkSupport.NATIVE
    max_action_chars: ClassVar[int] = 4096
    licence: ClassVar[str] = ""
    options: ClassVar[Options] = Options()
    """Its defaults; the runtime puts in place of them what the operator set, before the first task is asked for."""
    blocking: ClassVar[bool] = False
    """Calls wait for something outside of Python (a shell, a database, a JVM). The runtime then makes them in
    threads, one at a time per session and not always the same, so that a session that waits holds up no other: what
    instances share must be safe for that."""

    calls_at_once: ClassVar[int | None] = None
    """With `blocking`: so many calls of a shard's sessions, and so many opens, are made at once, and more wait in line;
    None: as many as there are sessions. For engines that compute rather than wait, whose calls only slow each other."""

    turn_limit: int | None = None
    """Set by `reset` where the task allows fewer turns than `max_turns`."""
    start_info: Mapping[str, JsonValue] = MappingProxyType({})
    """Set by `reset`: what `Outcome.info` is to a step, for the first observation. Never holds a gold answer."""
    start_score: float = 0.0
    """Set by `reset` where an episode begins with part of its success: what `Outcome.score` is to a step."""

    @classmethod
    @abstractmethod
    def task_source(cls, data: Path | None) -> TaskSource[TaskT]:
        """Generated tasks without `data`, else the benchmark's files in that directory.

        Raises `TaskDataError`, which names file and fault, for damaged data.
        """

    @classmethod
    def programs(cls) -> tuple[str, ...]:
        """Programs that the engine starts, such as `java`; the server refuses to start without them."""
        return ()

    @classmethod
    def is_blocking(cls) -> bool:
        """Return `blocking`, unless that depends on the options."""
        return cls.blocking

    @classmethod
    def longest_call_s(cls) -> float:
        """Return how long one call may take by the environment's own limits; 0 where it has none.

        A server that kills a shard earlier than that refuses to start: it would kill what was about to answer.
        """
        return 0.0

    @classmethod
    def import_data(cls, source: Path, target: Path) -> None:
        """Make of a benchmark's files in `source` what `task_source` reads, in the empty directory `target`.

        A plain copy, unless something has to be converted or indexed. Raises `TaskDataError`.
        """
        shutil.copytree(source, target, dirs_exist_ok=True)

    @classmethod
    def has_expert(cls) -> bool:
        """Whether `expert` was written."""
        return cls._wrote("expert")

    @classmethod
    def tells_state(cls) -> bool:
        """Whether a replay is compared by more than what was observed."""
        return cls.deterministic and cls._wrote("state_digest")

    @classmethod
    def _wrote(cls, name: str) -> bool:
        """Whether a method is the author's, not the one that stands here for want of it."""
        return any(name in vars(kind) for kind in cls.__mro__ if kind.__module__ != __name__)

    @classmethod
    def spec(cls, tasks: TaskSource[TaskT]) -> EnvironmentSpec:
        """What the environment says of itself on the wire."""
        level = tasks.default_level
        return EnvironmentSpec(
            name=cls.name,
            version=cls.version,
            summary=cls.summary,
            grammar=cls.grammar,
            instructions=cls.instructions,
            max_turns=cls.max_turns,
            levels=tuple(tasks.levels),
            default_level=level,
            splits={split: tasks.count(split, level) for split in SPLITS},
            capabilities=Capabilities(
                deterministic=cls.deterministic,
                stable_observations=cls.stable_observations,
                fork=cls.fork,
                expert=cls.has_expert(),
            ),
            max_action_chars=cls.max_action_chars,
            task_source=tasks.name,
            licence=cls.licence,
        )


class Environment(EnvironmentClass[TaskT]):
    """One episode's world. The runtime makes one instance per session and calls it from one thread, but see `blocking`.

    `reset` is called once, before the first `step`. Neither may touch global
    state: the same task, seed and actions give the same episode in any process,
    unless `deterministic` says otherwise. The runtime counts turns, cuts the
    episode at `max_turns`, stores results for repeated requests and renews leases.
    """

    @abstractmethod
    def reset(self, task: TaskT, seed: int) -> str:
        """Begin the episode and return the first observation."""

    @abstractmethod
    def step(self, action: str) -> Outcome:
        """Apply one action. Hostile input gets an `Outcome` with `action_valid=False`, not an exception."""

    def expert(self) -> ExpertMove | None:
        """Return the next move of a policy that solves the task from here; None when there is none.

        It leaves the episode as it is, and may be cut off anywhere in its Python code: what it tries out, it tries
        on a copy. One that may search for long bounds its own work, which ends alike on every machine.
        """
        return None

    def state_digest(self) -> str | None:
        """Return a digest of the state behind the observations, such as the files that the agent has written.

        Journaled with each step and compared after a replay: a session whose digest differs is lost, never
        silently another one. None where the observations alone tell whether a replay went the same way.
        Asked for after `reset` and after each step of a deterministic environment; agents never see it.
        """
        return None

    def close(self) -> None:
        """Release what the episode holds outside of Python's memory. Called once, also after a `reset` that failed."""

    def snapshot(self) -> Self:
        """An independent copy in exactly this state. Override where a deep copy is slow or wrong."""
        return copy.deepcopy(self)


class AsyncEnvironment(EnvironmentClass[TaskT]):
    """An environment whose calls await something: a model's judgement, a browser, a service over HTTP.

    As `Environment`, but that its methods are coroutines. They run in one event loop of their process, so that a
    thousand sessions that wait hold no thread: never block it, and share what you like (a client, a semaphore).
    A call that takes too long is cancelled and ends its session; code that blocks the loop for so long ends the shard.
    """

    blocking: ClassVar[bool] = True

    @abstractmethod
    async def reset(self, task: TaskT, seed: int) -> str:
        """Begin the episode and return the first observation."""

    @abstractmethod
    async def step(self, action: str) -> Outcome:
        """Apply one action. Hostile input gets an `Outcome` with `action_valid=False`, not an exception."""

    async def expert(self) -> ExpertMove | None:
        """As `Environment.expert`."""
        return None

    async def state_digest(self) -> str | None:
        """As `Environment.state_digest`."""
        return None

    async def close(self) -> None:
        """As `Environment.close`."""

    async def snapshot(self) -> Self:
        """As `Environment.snapshot`."""
        return copy.deepcopy(self)


AnyEnvironment: TypeAlias = Environment[Any] | AsyncEnvironment[Any]
COROUTINES: Final = ("reset", "step", "expert", "state_digest", "close", "snapshot")
"""What is `async def` in an `AsyncEnvironment`, and in no other."""
