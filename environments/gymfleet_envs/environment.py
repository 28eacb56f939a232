"""The classes that a researcher derives from: one class with `reset`, `step`, a task source and a reply format."""

import copy
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, Literal, Self, TypeAlias, TypeVar

from gymfleet_contracts.session import Capabilities, EnvironmentSpec, ExpertMove, ForkSupport, ModelRole, Tool
from pydantic import BaseModel, ConfigDict, JsonValue

from gymfleet_envs.model_calls import Answerer, Messages, Nobody
from gymfleet_envs.tasks import SPLITS, TaskSource

TaskT = TypeVar("TaskT")


@dataclass(frozen=True, slots=True)
class Image:
    """A picture that an observation shows, at most 2 MiB."""

    content: bytes
    """A PNG, JPEG or WebP file."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one action.

    `reward` is the benchmark's own, on its own scale; `score` is the success so
    far in [0, 1], and 1 means solved. `action_valid` is False when the action was
    not understood: such a step still counts as a turn. `private` is for the
    reward service's components alone, such as a gold answer: agents and trainers carry it sealed. If an observation
    is more than text, `parts` holds its texts and images in order, and `observation` is empty: clients that only
    read text see a mark for each image.
    """

    observation: str
    reward: float = 0.0
    terminated: bool = False
    score: float = 0.0
    action_valid: bool = True
    info: dict[str, JsonValue] = field(default_factory=dict)
    private: Mapping[str, JsonValue] = field(default_factory=dict)
    parts: Sequence[str | Image] = ()


@dataclass(frozen=True, slots=True)
class Seat:
    """One player's view of a game, and its results so far."""

    observation: str
    """Everything that this player may know, and nothing that is hidden from it."""
    reward: float = 0.0
    """The sum of the player's rewards so far."""
    score: float = 0.0
    """The player's success so far in [0, 1]; 1 means won."""


@dataclass(frozen=True, slots=True)
class Game:
    """The state of a game for its players."""

    to_move: str | None
    """The seat whose action the next `step` takes; None when the game is over."""
    seats: Mapping[str, Seat]
    """All seats, by their names."""


class Options(BaseModel):
    """Settings of one environment, such as its backend; a subclass names them.

    Operators give them as JSON in `GYMFLEET_ENV_OPTIONS='{"db": {"backend": "mariadb"}}'`. Secrets
    are read from files that an option names, and are never given here.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineLost(Exception):
    """The engine under the episode (a JVM, a database server, a shell) died or had to be killed.

    It is raised by `reset`, `step`, `expert` or `snapshot`. From then on the session answers
    `session-lost` and never a reward; a gateway replays it elsewhere if the environment is
    deterministic. An open is answered with 503 and may be tried again. Other sessions are
    not affected, as long as the environment starts a new engine for them.
    """


class ModelFailed(EngineLost):
    """A model that the environment asked gave no usable answer, though it was asked several times.

    `ask` raises it; do not catch it. The session is lost even if it is caught: otherwise training would use whatever
    the environment makes up instead of a reply.
    """


class BadArguments(ValueError):
    """The arguments of a tool call spell no action. The message tells the model what is wrong."""


class EnvironmentClass(ABC, Generic[TaskT]):
    """The base of `Environment` and `AsyncEnvironment`: what a class declares about its episodes, and its tasks."""

    name: ClassVar[str]
    version: ClassVar[str]
    summary: ClassVar[str]
    instructions: ClassVar[str]
    """Task-independent rules for the model, without the reply format, which the reply format adds."""
    format: ClassVar[str] = "react"
    """The reply format with which the benchmark is played."""
    max_turns: ClassVar[int]
    deterministic: ClassVar[bool] = True
    stable_observations: ClassVar[bool] = True
    fork: ClassVar[ForkSupport] = ForkSupport.NATIVE
    max_action_chars: ClassVar[int] = 4096
    licence: ClassVar[str] = ""
    options: ClassVar[Options] = Options()
    """The default options; the runtime replaces them with the operator's before the first task is requested."""
    blocking: ClassVar[bool] = False
    """Whether calls wait for something outside of Python (a shell, a database, a JVM). The runtime then makes them in
    threads, one call at a time per session and not always in the same thread, so that a waiting session does not delay
    the others. Objects that instances share must be thread-safe."""

    calls_at_once: ClassVar[int | None] = None
    """With `blocking`, how many calls of a shard's sessions, and how many opens, are made at once; further ones queue.
    None means as many as there are sessions. Set it for engines that compute rather than wait, because their
    concurrent calls only slow each other."""

    slots: ClassVar[int] = 1
    """How many of a server's slots one session takes, for environments whose sessions need more memory than others'."""

    step_timeout_s: ClassVar[float | None] = None
    """The longest `step_timeout_s` that a task may set. Without it a task can only shorten the server's limit."""

    tools: ClassVar[tuple[Tool, ...]] = ()
    """The actions as tools that a model can call; `action_of` turns a call into an action."""

    models: ClassVar[tuple[ModelRole, ...]] = ()
    """The language models that `reset` and `step` ask. Operators set in `GYMFLEET_ENV_MODELS` which model answers; an
    `Environment` that asks is `blocking`."""

    floors: ClassVar[Mapping[str, Mapping[str, float]]] = MappingProxyType({})
    """The mean scores on generated tasks of policies that seek the reward instead of solving the task, by policy
    (`gymfleet_env_server.cheats`) and level; 0 where none is stated. The environment's README derives each."""

    seats: ClassVar[tuple[str, ...]] = ()
    """The names of the players, if several share the game; `game` then returns what each of them sees."""

    turn_limit: int | None = None
    """Set by `reset` where the task allows fewer turns than `max_turns`."""
    start_info: Mapping[str, JsonValue] = MappingProxyType({})
    """Set by `reset`: the counterpart of `Outcome.info` for the first observation. It never holds a gold answer."""
    start_private: Mapping[str, JsonValue] = MappingProxyType({})
    """Set by `reset`: the counterpart of `Outcome.private`."""
    start_parts: Sequence[str | Image] = ()
    """Set by `reset`, which then returns an empty text: the counterpart of `Outcome.parts`."""
    start_score: float = 0.0
    """Set by `reset` where an episode begins with part of its success: the counterpart of `Outcome.score`."""
    _answerer: Answerer = Nobody()

    def answered_by(self, answerer: Answerer) -> None:
        """Let `answerer` answer what the instance asks. The runtime calls this before `reset` and after `snapshot`."""
        self._answerer = answerer

    @classmethod
    @abstractmethod
    def task_source(cls, data: Path | None) -> TaskSource[TaskT]:
        """Return generated tasks without `data`, else the tasks of the benchmark's files in that directory.

        Raises `TaskDataError`, which names the file and the fault, for damaged data.
        """

    @classmethod
    def programs(cls) -> tuple[str, ...]:
        """Return the programs that the engine starts, such as `java`; the server refuses to start without them."""
        return ()

    @classmethod
    def is_blocking(cls) -> bool:
        """Return whether calls block: `blocking`, unless that depends on the options."""
        return cls.blocking

    @classmethod
    def asked_models(cls) -> tuple[ModelRole, ...]:
        """Return the roles of `models` that are asked at all, which may depend on the options."""
        return cls.models

    @classmethod
    def images(cls) -> Literal["beside", "only"] | None:
        """Return how observations show images; None if they are texts alone.

        `beside` means images next to texts with the same content; `only` means images as the only thing to see.
        """
        return None

    @classmethod
    def longest_call_s(cls) -> float:
        """Return how long one call may take by the environment's own limits; 0 if it has none.

        A server that kills a shard earlier than that refuses to start: it would kill calls that are about to answer.
        """
        return 0.0

    @classmethod
    def import_data(cls, source: Path, target: Path) -> None:
        """Convert a benchmark's files in `source` to those that `task_source` reads, in the empty directory `target`.

        This is a plain copy, unless something has to be converted or indexed. Raises `TaskDataError`.
        """
        shutil.copytree(source, target, dirs_exist_ok=True)

    def action_of(self, tool: str, arguments: Mapping[str, JsonValue]) -> str:
        """Return the action that a call of one of `tools` spells, as `step` takes it. Raises `BadArguments`.

        The arguments fit the tool's schema, but a model wrote them: quote text that could end a field of the action.
        The method changes nothing and is quick, also in an `AsyncEnvironment`.
        """
        raise NotImplementedError

    def irreversible(self, action: str) -> bool:  # noqa: ARG002 - for authors
        """Return whether the action, taken now, reaches the outside world and cannot be taken back: a mail, an order.

        Called before each step; it changes nothing and is quick, also in an `AsyncEnvironment`. From such an action on
        the session is not replayed: if its process dies the session is lost, and a fork by replay is refused.
        """
        return False

    def game(self) -> Game:
        """Return the view and the results of each of `seats`, and the seat whose action the next `step` takes.

        Called after `reset`, which then returns an empty text, and after each `step`, which then leaves out the
        observation, the reward and the score. It changes nothing and is quick, also in an `AsyncEnvironment`. Ask for
        simultaneous moves one after the other, and show none before the last is made. Answer an action that breaks the
        rules with `action_valid=False`; the game decides who moves next.
        """
        raise NotImplementedError

    @classmethod
    def has_expert(cls) -> bool:
        """Return whether the author wrote `expert`."""
        return cls._wrote("expert")

    @classmethod
    def tells_state(cls) -> bool:
        """Return whether a replay is compared by more than its observations."""
        return cls.deterministic and (cls._wrote("state_digest") or bool(cls.seats))

    @classmethod
    def seats_players(cls) -> bool:
        """Return whether the author wrote `game`."""
        return cls._wrote("game")

    @classmethod
    def maps_tools(cls) -> bool:
        """Return whether the author wrote `action_of`."""
        return cls._wrote("action_of")

    @classmethod
    def _wrote(cls, name: str) -> bool:
        """Return whether a method is the author's own and not the default of this module."""
        return any(name in vars(kind) for kind in cls.__mro__ if kind.__module__ != __name__)

    @classmethod
    def spec(cls, tasks: TaskSource[TaskT]) -> EnvironmentSpec:
        """Return the environment's description for the wire."""
        level = tasks.default_level
        return EnvironmentSpec(
            name=cls.name,
            version=cls.version,
            summary=cls.summary,
            format=cls.format,
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
                state_keys=cls._wrote("state_key"),
                admissible_actions=cls._wrote("admissible_actions"),
                irreversible=cls._wrote("irreversible"),
            ),
            max_action_chars=cls.max_action_chars,
            task_source=tasks.name,
            licence=cls.licence,
            slots=cls.slots,
            step_timeout_s=cls.step_timeout_s,
            tools=cls.tools,
            images=cls.images(),
            models=cls.asked_models(),
            seats=cls.seats,
        )


class Environment(EnvironmentClass[TaskT]):
    """The world of one episode. The runtime makes one instance per session, called from one thread, but see `blocking`.

    `reset` is called once, before the first `step`. Neither may touch global
    state: the same task, seed and actions give the same episode in any process,
    unless `deterministic` is False. The runtime counts turns, cuts the
    episode at `max_turns`, stores results for repeated requests and renews leases.
    """

    @abstractmethod
    def reset(self, task: TaskT, seed: int) -> str:
        """Begin the episode and return the first observation."""

    @abstractmethod
    def step(self, action: str) -> Outcome:
        """Apply one action. Answer hostile input with `action_valid=False`, not with an exception."""

    def ask(self, role: str, messages: Messages, *, max_tokens: int) -> str:
        """Return the reply, never empty, of the model of one of `models`; call it only in `reset` and `step`.

        Write the code as if the model were a function: a replayed session gets the recorded replies, as long as it
        asks the same in the same order. The agent's text is hostile in a prompt too. Raises `ModelFailed`, which must
        not be caught, and RuntimeError beyond the role's bounds.
        """
        return self._answerer.ask_blocking(role, messages, max_tokens)

    def expert(self) -> ExpertMove | None:
        """Return the next move of a policy that solves the task from here; None when there is none.

        It leaves the episode unchanged. It may be cut off anywhere in its Python code, so it must try things out on
        a copy. An expert that may search for long bounds its own work, so that it ends the same on every machine.
        """
        return None

    def state_digest(self) -> str | None:
        """Return a digest of the state behind the observations, such as the files that the agent has written.

        The digest is journaled with each step and compared after a replay: a session whose digest differs is lost and
        never silently becomes another one. Return None if the observations alone show whether a replay matches.
        It is called after `reset` and after each step of a deterministic environment; agents never see the digest.
        """
        return None

    def state_key(self) -> str | None:
        """Return a text that is equal for equal states of one task, whatever led there; None if there is no such text.

        Equal states have the same future: the same actions give the same rewards and the same observations, up to the
        order of words in a list. The number of turns taken does not count. The text may be of any length; callers see
        a hash of it, and only those that asked for it when they opened the session. It serves search, and algorithms
        that compare sessions in the same state.
        """
        return None

    def admissible_actions(self) -> Sequence[str] | None:
        """Return the actions that are possible now, as `step` takes them; None if they are not known.

        Leave out actions with free text. Called only on request; it leaves the episode unchanged.
        """
        return None

    def close(self) -> None:
        """Release all that the episode holds outside of Python's memory. Called once, also after a failed `reset`."""

    def snapshot(self) -> Self:
        """Return an independent copy in exactly this state. Override it if a deep copy is slow or wrong."""
        return copy.deepcopy(self)


class AsyncEnvironment(EnvironmentClass[TaskT]):
    """An environment whose calls await something: a model's judgement, a browser, a service over HTTP.

    It is like `Environment`, except that its methods are coroutines. They run in one event loop of their process, so
    a thousand waiting sessions hold no thread. Never block the loop, and share what you like (a client, a semaphore).
    A call that takes too long is cancelled and ends its session; code that blocks the loop for that long ends the
    shard.
    """

    blocking: ClassVar[bool] = True

    @abstractmethod
    async def reset(self, task: TaskT, seed: int) -> str:
        """Begin the episode and return the first observation."""

    @abstractmethod
    async def step(self, action: str) -> Outcome:
        """Apply one action. Answer hostile input with `action_valid=False`, not with an exception."""

    async def ask(self, role: str, messages: Messages, *, max_tokens: int) -> str:
        """Do as `Environment.ask` does."""
        return await self._answerer.ask(role, messages, max_tokens)

    async def expert(self) -> ExpertMove | None:
        """Do as `Environment.expert` does."""
        return None

    async def state_digest(self) -> str | None:
        """Do as `Environment.state_digest` does."""
        return None

    async def state_key(self) -> str | None:
        """Do as `Environment.state_key` does."""
        return None

    async def admissible_actions(self) -> Sequence[str] | None:
        """Do as `Environment.admissible_actions` does."""
        return None

    async def close(self) -> None:
        """Do as `Environment.close` does."""

    async def snapshot(self) -> Self:
        """Do as `Environment.snapshot` does."""
        return copy.deepcopy(self)


AnyEnvironment: TypeAlias = Environment[Any] | AsyncEnvironment[Any]
COROUTINES: Final = (
    "reset", "step", "expert", "state_digest", "state_key", "admissible_actions", "close", "snapshot",
)  # fmt: skip
"""The methods that are `async def` in an `AsyncEnvironment`, and in no other class."""
