"""One session's calls of models: bounded, recorded, and repeated instead of asked anew when the session is replayed."""

import copy
import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, Self, TypeVar

import msgspec
from gymfleet_contracts import problems
from gymfleet_contracts.session import EnvironmentSpec, ForkSupport
from gymfleet_envs.environment import ModelFailed
from gymfleet_envs.model_calls import Messages
from gymfleet_kit.problems import ServiceError
from gymfleet_kit.session_problems import EnvironmentFailed, InvalidRequest

from gymfleet_env_server.shards.coroutines import settle

MAX_RECORD_BYTES: Final = 1024 * 1024
"""Maximum size of all replies in one session: a journal holds them, and a frame holds those of one step with its
result."""
MAX_PROMPT_CHARS: Final = 1024 * 1024
"""Maximum length of one call's messages together."""
_MAX_MESSAGES: Final = 4096
_SPEAKERS: Final = frozenset({"system", "user", "assistant"})
_HASH_BYTES: Final = 16
_RESERVE: Final = 0.1
"""Share of a call's time that is left for the rest of the call after the last answer."""
_LONGEST_RESERVE_S: Final = 1.0


class Model(Protocol):
    """Whoever answers for a role."""

    async def reply(self, messages: Messages, max_tokens: int, deadline: float) -> str:
        """Return the reply before `deadline` of the monotonic clock. Raises `ModelFailed`."""


class ReplayDiverged(EnvironmentFailed):
    """A replay asked something other than what was recorded: it would be another episode."""


class EndOfProbe(ServiceError):
    """A probe has come as far as it can: to the first question to a model, which costs money."""

    type = problems.UNAVAILABLE
    title = "A probe asks no model"
    status = 503


class ProbedModel:
    """Stands for every model in a probe."""

    async def reply(self, messages: Messages, max_tokens: int, deadline: float) -> str:  # noqa: ARG002
        """Raise `EndOfProbe`."""
        raise EndOfProbe("a probe asks no model")


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """One reply, and a hash of what was asked."""

    asked: bytes
    text: str


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Reply]).decode
T = TypeVar("T")


@dataclass(slots=True)
class AskCounts:
    """How often the models of an environment were asked, by all sessions of a shard."""

    asked: int = 0
    failed: int = 0
    """Calls without a usable answer."""
    _taken: tuple[int, int] = (0, 0)

    def take(self) -> tuple[int, int]:
        """Return both counts since the last call."""
        # The event loop's thread counts meanwhile, so nothing may be reset here.
        before, self._taken = self._taken, (self.asked, self.failed)
        return self._taken[0] - before[0], self._taken[1] - before[1]


@dataclass(slots=True)
class _Past:
    """What a session has asked so far."""

    calls: dict[str, int]
    """By role."""
    tokens: dict[str, int]
    """By role."""
    size_bytes: int = 0
    """The size of all replies."""
    last: bytes = b""
    """The record of the last `reset` or `step`."""
    history: list[bytes] = field(default_factory=list)
    """All records, that of `reset` first, if a fork replays them."""


class ModelCalls:
    """The calls of one session.

    Args:
        spec: declares the roles.
        models: who answers for each, by its name.
        told: whether the session's opener gets the replies, so that it can have them repeated.
        counts: where its calls are counted.
        past: the parent's past, for the session of a fork.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        models: Mapping[str, Model],
        *,
        told: bool,
        counts: AskCounts,
        past: _Past | None = None,
    ) -> None:
        self._spec = spec
        self._env = spec.name
        self._roles = {role.name: role for role in spec.models}
        self._models = models
        self._is_told = told
        self._counts = counts
        self._past = past or _Past(dict.fromkeys(self._roles, 0), dict.fromkeys(self._roles, 0))
        self._keeps_history = spec.capabilities.fork is ForkSupport.REPLAY
        self._open = False
        self._deadline = math.inf
        self._recorded: list[Reply] | None = None
        self._replies: list[Reply | None] = []
        self.failure: Exception | None = None
        """The exception of the first failed call. The session is over, whatever the environment made of it."""

    @property
    def told(self) -> bytes:
        """The record of the last `reset` or `step`, which is never empty; empty if the opener is not told."""
        return self._past.last if self._is_told else b""

    @property
    def history(self) -> list[bytes]:
        """The records of `reset` and then of each `step`, if a fork replays them."""
        return self._past.history

    def fresh(self) -> Self:
        """Return the calls of a child that is to be played from the beginning."""
        return type(self)(self._spec, self._models, told=self._is_told, counts=self._counts)

    def copy(self) -> Self:
        """Return the calls of a child in the same state."""
        past = copy.deepcopy(self._past)
        return type(self)(self._spec, self._models, told=self._is_told, counts=self._counts, past=past)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the same object: a snapshot of an environment is given its own calls afterwards."""
        return self

    def during(self, call: Callable[[], T], limit_s: float, recorded: bytes) -> T:
        """Make a call of `reset` or `step` that may take `limit_s`; it repeats `recorded`, unless that is empty.

        Raises what the call raises or what any `ask` in it raised, even if the environment caught that; also
        `ReplayDiverged`, and `InvalidRequest` for an invalid record.
        """
        self._begin(limit_s, recorded)
        result = call()
        self._past.last = self._end()
        if self._keeps_history:
            self._past.history.append(self._past.last)
        return result

    def _begin(self, limit_s: float, recorded: bytes) -> None:
        self._recorded = _replies(recorded) if recorded else None
        self._replies = []
        self._deadline = time.monotonic() + limit_s - min(_RESERVE * limit_s, _LONGEST_RESERVE_S)
        self._open = True

    def _end(self) -> bytes:
        self._open = False
        if self.failure is not None:
            raise self.failure
        if None in self._replies:
            raise RuntimeError("a call of ask was not awaited")
        if self._recorded is not None and len(self._replies) < len(self._recorded):
            raise self._diverged("asked its models less")
        return _encode(self._replies)

    def ask_blocking(self, role: str, messages: Messages, max_tokens: int) -> str:
        """See `Answerer`."""
        return settle(self.ask(role, messages, max_tokens))

    async def ask(self, role: str, messages: Messages, max_tokens: int) -> str:
        """See `Answerer`. All of it happens in the event loop's thread, however many threads the environment has."""
        try:
            return await self._answer(role, _checked(messages), max_tokens)
        except Exception as error:
            self.failure = self.failure or error
            raise

    async def _answer(self, role: str, messages: list[dict[str, str]], max_tokens: int) -> str:
        if not self._open:
            raise RuntimeError("ask is for reset and step alone")
        self._spend(role, max_tokens)
        replies, place = self._replies, len(self._replies)
        asked = hashlib.blake2b(_encode((role, messages, max_tokens)), digest_size=_HASH_BYTES).digest()
        replies.append(None)
        if self._recorded is None:
            text = await self._reply(role, messages, max_tokens)
        elif place < len(self._recorded) and self._recorded[place].asked == asked:
            text = self._recorded[place].text
        else:
            raise self._diverged("asked its models something else")
        self._past.size_bytes += len(text.encode())
        if self._past.size_bytes > MAX_RECORD_BYTES:
            raise RuntimeError(
                f"the replies to the session have more than {MAX_RECORD_BYTES} bytes; ask for shorter ones"
            )
        replies[place] = Reply(asked, text)
        return text

    async def _reply(self, role: str, messages: list[dict[str, str]], max_tokens: int) -> str:
        self._counts.asked += 1
        try:
            return await self._models[role].reply(messages, max_tokens, self._deadline)
        except ModelFailed:
            self._counts.failed += 1
            raise

    def _spend(self, role: str, max_tokens: int) -> None:
        """Count a call. Raises RuntimeError when that exceeds what the environment declares."""
        if (bounds := self._roles.get(role)) is None:
            raise RuntimeError(f"{self._env} declares no model {role!r}; it declares {', '.join(self._roles)}")
        if max_tokens < 1:
            raise RuntimeError(f"max_tokens must be at least 1, got {max_tokens}")
        past = self._past
        past.calls[role] += 1
        past.tokens[role] += max_tokens
        if past.calls[role] > bounds.max_calls:
            raise RuntimeError(f"{role} is asked more than max_calls = {bounds.max_calls} times in the session")
        if past.tokens[role] > bounds.max_tokens:
            raise RuntimeError(f"{role} is asked for more than max_tokens = {bounds.max_tokens} tokens in the session")

    def _diverged(self, how: str) -> ReplayDiverged:
        return ReplayDiverged(f"{self._env} {how} when its episode was replayed", env=self._env)


def _replies(recorded: bytes) -> list[Reply]:
    try:
        return _decode(recorded)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidRequest("replies: these were not recorded by an env server") from None


def _checked(messages: Messages) -> list[dict[str, str]]:
    """Return the messages as they are sent, in valid Unicode. Raises ValueError."""
    if not 0 < len(messages) <= _MAX_MESSAGES:
        raise ValueError(f"give 1 to {_MAX_MESSAGES} messages, not {len(messages)}")
    checked = []
    for message in messages:
        if message.keys() != {"role", "content"} or message["role"] not in _SPEAKERS:
            raise ValueError('a message is {"role": "system", "user" or "assistant", "content": TEXT}')
        checked.append({"role": message["role"], "content": message["content"].encode(errors="replace").decode()})
    if (size := sum(len(message["content"]) for message in checked)) > MAX_PROMPT_CHARS:
        raise ValueError(f"the messages have {size} characters; {MAX_PROMPT_CHARS} is the limit")
    return checked
