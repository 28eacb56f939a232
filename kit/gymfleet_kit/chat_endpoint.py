"""A chat completions endpoint, OpenAI's or a compatible one.

The other end is not trusted: answers are bounded in size and time, and only a non-empty text counts as an answer. The
key appears only in the request's header.
"""

import asyncio
import math
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self, TypeAlias

import httpx
import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, HttpUrl, PositiveFloat, model_validator

from gymfleet_kit.retries import Retries

MAX_ANSWER_BYTES: Final = 1024 * 1024
"""The most bytes of an endpoint's whole answer."""
_MAX_KEY_BYTES: Final = 4096
_ATTEMPTS: Final = 3
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 60.0
"""The longest pause: an endpoint that asks for a longer one is not asked again."""
_PASSING: Final = frozenset({408, 409, 425, 429, *range(500, 600)})
"""Statuses after which another try may succeed."""
_OK: Final = 200
OF_THE_REQUEST: Final = frozenset({400, 413, 422})
"""Statuses that may concern a single conversation."""
_TOO_LONG: Final = re.compile(
    rb"context[ _-]?(?:length|size|window)|maximum (?:model length|number of tokens)|prompt is too long"
    rb"|inputs` tokens \+ `max_new_tokens",
    re.IGNORECASE,
)
"""What servers say of a conversation that is longer than the model's context: OpenAI, vLLM, SGLang, llama.cpp, TGI,
Anthropic, Gemini, Mistral."""
_MAX_DIGITS: Final = 4

Messages: TypeAlias = Sequence[Mapping[str, str]]
"""A conversation: `{"role": "system" | "user" | "assistant", "content": "..."}`, in order."""


def _without_secrets(url: HttpUrl) -> HttpUrl:
    if url.username or url.password:
        raise ValueError("the URL holds a user or a password; put the key into key_file")
    return url


ShownUrl: TypeAlias = Annotated[HttpUrl, AfterValidator(_without_secrets)]
"""A URL without a password: URLs are shown."""


class ModelEndpoint(BaseModel):
    """The endpoint of a model, as set by operators."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: ShownUrl
    """URL of OpenAI's chat completions or of a compatible server: `https://host/v1/chat/completions`."""
    model: Annotated[str, Field(min_length=1, max_length=256)]
    """The model's name there."""
    key_file: Path | None = None
    """A file with the API key, sent as a bearer token."""
    key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")] | None = None
    """Alternatively, the environment variable that has the key."""
    timeout_s: PositiveFloat = 20.0
    """Time limit for one answer; there are up to three tries."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Sampling temperature; by default the endpoint's own."""
    concurrency: Annotated[int, Field(ge=1, le=4096)] = 64
    """Calls that a process makes at once; further calls wait."""

    @model_validator(mode="after")
    def one_key(self) -> Self:
        """Require the key to be in a file or in a variable, not both."""
        if self.key_file is not None and self.key_env is not None:
            raise ValueError("give key_file or key_env, not both")
        return self

    def key(self) -> str | None:
        """Return the API key; None if there is none. Raises `KeyUnreadable`."""
        if self.key_env is not None:
            return _checked_key(os.environ.get(self.key_env, ""), f"the variable {self.key_env}")
        return None if self.key_file is None else read_key(self.key_file)


class KeyUnreadable(Exception):
    """The file or the variable has no key; the message says why and quotes nothing of it."""


def read_key(file: Path) -> str:
    """Return the key in a file. Raises `KeyUnreadable`."""
    try:
        with file.open("rb") as stream:
            key = stream.read(_MAX_KEY_BYTES + 1).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        raise KeyUnreadable(f"{file} cannot be read: {reason}") from None
    return _checked_key(key, str(file))


def _checked_key(key: str, place: str) -> str:
    if not key or len(key) > _MAX_KEY_BYTES or not (key.isascii() and key.isprintable()) or " " in key:
        raise KeyUnreadable(f"{place} holds no key: one line of at most {_MAX_KEY_BYTES} bytes would be right")
    return key


class NoModelAnswer(Exception):
    """The endpoint gave no usable answer in several tries. The message names it and says why."""

    def __init__(self, message: str, status: int | None = None, *, too_long: bool = False) -> None:
        super().__init__(message)
        self.status = status
        """The status with which the request was refused for good; None for any other reason."""
        self.too_long = too_long
        """The endpoint says that the conversation is longer than the model's context."""


class ModelReply(NamedTuple):
    """A model's reply, and its tokens."""

    text: str
    prompt_tokens: int | None
    """None if the endpoint does not report it."""
    completion_tokens: int | None
    """None if the endpoint does not report it."""
    reasoning: str = ""
    """Its thoughts before the reply, if the endpoint separates them from the text."""
    cut: bool = False
    """Whether it was cut off at `max_tokens`."""
    reasoning_tokens: int | None = None
    """The part of `completion_tokens` spent on thoughts; None if the endpoint does not report it."""


class _NoAnswer(Exception):
    """No usable answer; another try may bring one, after `pause_s` if the endpoint gives it."""

    def __init__(self, reason: str, pause_s: float | None = None) -> None:
        super().__init__(reason)
        self.pause_s = pause_s


class _Refused(_NoAnswer):
    """No usable answer, and another try would bring none either."""

    def __init__(self, status: int, pause_s: float | None, *, too_long: bool) -> None:
        super().__init__(f"status {status}", pause_s)
        self.status = status
        self.too_long = too_long


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: Any = None
    """The key of vLLM and DeepSeek."""
    reasoning: Any = None
    """The key of OpenRouter."""


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: Any = None


class _Completion(msgspec.Struct):
    """The part of an answer that is read."""

    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    usage: msgspec.Raw = msgspec.Raw(b"null")


_NumTokens: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class _Details(msgspec.Struct):
    reasoning_tokens: _NumTokens | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _NumTokens | None = None
    completion_tokens: _NumTokens | None = None
    reasoning_tokens: _NumTokens | None = None
    """The count of endpoints that do not nest it in details."""
    completion_tokens_details: _Details | None = None
    """The details of OpenAI and vLLM."""

    @property
    def reasoning(self) -> int | None:
        """Return the number of tokens spent on thoughts."""
        details = self.completion_tokens_details
        told = None if details is None else details.reasoning_tokens
        return self.reasoning_tokens if told is None else told


_decode: Final = msgspec.json.Decoder(_Completion).decode
_decode_usage: Final = msgspec.json.Decoder(_Usage | None).decode
_encode: Final = msgspec.json.Encoder().encode


class ChatEndpoint:
    """Asks one endpoint, in one event loop.

    Args:
        label: the purpose of the calls, for the log.
        settings: the endpoint.
    """

    def __init__(self, label: str, settings: ModelEndpoint) -> None:
        """Raises `KeyUnreadable`."""
        self._label = label
        self._url = str(settings.url)
        self._timeout_s = settings.timeout_s
        self._body: dict[str, Any] = {"model": settings.model}
        if settings.temperature is not None:
            self._body["temperature"] = settings.temperature
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
        if (key := settings.key()) is not None:
            headers["Authorization"] = f"Bearer {key}"
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=None,  # noqa: S113 - `_once` limits the whole answer, which httpx's timeouts do not
            limits=httpx.Limits(max_connections=settings.concurrency),
            follow_redirects=False,  # the key is for this host alone
            trust_env=False,
        )
        self._turn = asyncio.Semaphore(settings.concurrency)
        self._retries = Retries(
            "model.failing", on=_NoAnswer, unless=_Refused, first_pause_s=_FIRST_PAUSE_S,
            asked_s=lambda error: error.pause_s, ended="model.answering", bound={"of": label},
        )  # fmt: skip

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def reply(
        self,
        messages: Messages,
        max_tokens: int,
        deadline: float,
        *,
        before_try: Callable[[], Awaitable[None]] | None = None,
        more: Mapping[str, Any] | None = None,
        reasoning_is_enough: bool = False,
    ) -> ModelReply:
        """Return the model's reply. Raises `NoModelAnswer`.

        Args:
            messages: the conversation.
            max_tokens: the most tokens of the reply.
            deadline: by the monotonic clock.
            before_try: awaited before each request; an exception from it ends the call.
            more: further keys of the request.
            reasoning_is_enough: accept an answer with reasoning but without a text; the text is then "".
        """
        body = _encode({**self._body, "messages": messages, "max_tokens": max_tokens, **(more or {})})
        left_s = deadline - time.monotonic()
        try:
            async with asyncio.timeout(None if math.isinf(left_s) else max(left_s, 0)):
                once = partial(self._once, body, before_try, reasoning_is_enough)
                return await self._retries.call(once, timeout_s=left_s, attempts=_ATTEMPTS)
        except TimeoutError:
            raise NoModelAnswer(f"{self._label}: no usable answer within the time for it") from None
        except _NoAnswer as error:
            if not isinstance(error, _Refused):
                raise NoModelAnswer(f"{self._label}: {error}") from None
            raise NoModelAnswer(f"{self._label}: {error}", error.status, too_long=error.too_long) from None

    async def _once(
        self, body: bytes, before: Callable[[], Awaitable[None]] | None, reasoning_is_enough: bool
    ) -> ModelReply:
        if before is not None:
            await before()
        try:
            async with self._turn, asyncio.timeout(self._timeout_s):
                return await self._ask(body, reasoning_is_enough)
        except TimeoutError:
            raise _NoAnswer(f"no answer within {self._timeout_s:g} s") from None
        except httpx.HTTPError as error:  # its text may hold the URL, or what the other side sent
            raise _NoAnswer(f"the connection failed: {type(error).__name__}") from None

    async def _ask(self, body: bytes, reasoning_is_enough: bool) -> ModelReply:
        async with self._client.stream("POST", self._url, content=body) as response:
            if response.status_code != _OK:
                pause_s = _pause_s(response)
                passing = response.status_code in _PASSING and (pause_s or 0) <= _LONGEST_PAUSE_S
                if passing:
                    raise _NoAnswer(f"status {response.status_code}", pause_s)
                raise _Refused(response.status_code, pause_s, too_long=await _says_too_long(response))
            reply = _reply(await _bounded(response))
        if not reply.text.strip() and not (reasoning_is_enough and reply.reasoning):
            raise _NoAnswer("an empty reply")
        return reply


async def _says_too_long(response: httpx.Response) -> bool:
    if response.status_code not in OF_THE_REQUEST:
        return False
    try:
        return _TOO_LONG.search(await _bounded(response)) is not None
    except _NoAnswer:
        return False


async def _bounded(response: httpx.Response) -> bytes:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise _NoAnswer("a compressed answer, which was not asked for")
    held = bytearray()
    async for piece in response.aiter_raw():
        held += piece
        if len(held) > MAX_ANSWER_BYTES:
            raise _NoAnswer(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
    return bytes(held)


def _reply(answer: bytes) -> ModelReply:
    try:
        completion = _decode(answer)
        choice = completion.choices[0]
        reasoning = _reasoning(choice.message)
        text = choice.message.content
        if text is None and not reasoning:
            raise _NoAnswer("an answer that is no chat completion with a text")
        ((text or "") + reasoning).encode()
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise _NoAnswer("an answer that is no chat completion with a text") from None
    usage = _usage(completion.usage)
    return ModelReply(
        text or "", usage.prompt_tokens, usage.completion_tokens, reasoning, choice.finish_reason == "length",
        usage.reasoning,
    )  # fmt: skip


def _reasoning(message: _Message) -> str:
    told = (message.reasoning_content, message.reasoning)
    return next((text.strip() for text in told if isinstance(text, str) and text.strip()), "")


def _usage(said: msgspec.Raw) -> _Usage:
    try:
        return _decode_usage(said) or _Usage()
    except (msgspec.DecodeError, UnicodeError, RecursionError):  # what it means is unknown: it is none
        return _Usage()


def _pause_s(response: httpx.Response) -> float | None:
    """Return the pause in seconds that the endpoint asks for, if it gives it as a number."""
    asked = response.headers.get("Retry-After", "")
    return float(asked) if asked.isascii() and asked.isdigit() and len(asked) <= _MAX_DIGITS else None
