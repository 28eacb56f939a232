"""An agent behind an OpenAI-compatible chat endpoint: what it replied, what it thought before, and what that cost.

Answers are bounded in size and time. The key appears in the request's header and nowhere else.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import httpx
import msgspec
from gymfleet_kit.retries import Retries

from gymfleet_cli.console import UsageProblem

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""Of an endpoint's whole answer."""
_MAX_KEY_BYTES: Final = 4096
_ATTEMPTS: Final = 4
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 20.0
_PASSING: Final = frozenset({408, 409, 425, 429, *range(500, 600)})
"""Statuses after which another try may succeed."""
_OF_THE_REQUEST: Final = frozenset({400, 413, 422})
"""Statuses that may be about one conversation, such as one that is longer than the model's context."""
_OK: Final = 200
_MAX_DIGITS: Final = 4
_PATH: Final = "/chat/completions"
_OPENED: Final = "<think>"
_CLOSED: Final = "</think>"


class ModelFailed(Exception):
    """The endpoint gave no usable answer, however often it was asked; another episode may fare better."""


class ModelRefused(Exception):
    """The endpoint refuses every request like this one."""


class Usage(NamedTuple):
    """Tokens of one reply, as the endpoint counts them."""

    prompt_tokens: int
    reply_tokens: int


class Reply(NamedTuple):
    """What the agent answered."""

    text: str
    reasoning: str
    """What it thought before; empty where the endpoint shows nothing of it."""
    cut: bool
    """It ended because `max_tokens` were spent."""
    usage: Usage | None
    seconds: float


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Which model plays, and how it is asked."""

    url: str
    model: str
    key_file: Path | None = None
    max_reply_tokens: int = 1024
    temperature: float | None = None
    timeout_s: float = 120.0
    """For one reply."""
    concurrency: int = 8


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**40)]
    completion_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class _Completion(msgspec.Struct):
    """The part of an answer that is read."""

    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    usage: _Usage | None = None


_decode: Final = msgspec.json.Decoder(_Completion).decode
_encode: Final = msgspec.json.Encoder().encode


class _NoAnswer(Exception):
    """No usable answer; another try may bring one, after `pause_s` if the endpoint says so."""

    def __init__(self, reason: str, pause_s: float | None = None) -> None:
        super().__init__(reason)
        self.pause_s = pause_s


class AgentModel:
    """Asks one endpoint; used by all episodes, in one event loop. Raises `UsageProblem` for a key that is none.

    Args:
        settings: who answers, and how it is asked.
        splits_thoughts: take what a reply has between `<think>` and `</think>` for its reasoning. A reply format that
            has such tags of its own needs them in the text.
    """

    def __init__(self, settings: AgentSettings, *, splits_thoughts: bool) -> None:
        self._url = endpoint_url(settings.url)
        self._timeout_s = settings.timeout_s
        self._splits = splits_thoughts
        self._body: dict[str, Any] = {"model": settings.model, "max_tokens": settings.max_reply_tokens}
        if settings.temperature is not None:
            self._body["temperature"] = settings.temperature
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
        if settings.key_file is not None:
            headers["Authorization"] = f"Bearer {read_key(settings.key_file)}"
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=None,  # noqa: S113 - `_once` limits the whole answer, which httpx's timeouts do not
            limits=httpx.Limits(max_connections=settings.concurrency),
            follow_redirects=False,  # the key is for this host alone
            trust_env=False,
        )
        self._retries = Retries(
            None, on=_NoAnswer, first_pause_s=_FIRST_PAUSE_S, longest_pause_s=_LONGEST_PAUSE_S,
            asked_s=lambda error: error.pause_s,
        )  # fmt: skip

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def reply(self, messages: Sequence[Mapping[str, str]]) -> Reply:
        """Return the reply to a conversation. Raises `ModelFailed` and `ModelRefused`."""
        body = _encode({**self._body, "messages": messages})
        first = len(messages) == 1
        try:
            return await self._retries.call(lambda: self._once(body, first=first), attempts=_ATTEMPTS)
        except _NoAnswer as error:
            raise ModelFailed(f"the model's endpoint: {error}") from None

    async def _once(self, body: bytes, *, first: bool) -> Reply:
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s), self._client.stream("POST", self._url, content=body) as answer:
                if answer.status_code != _OK:
                    raise _refusal(answer, first=first)
                held = await _bounded(answer)
        except TimeoutError:
            raise _NoAnswer(f"no answer within {self._timeout_s:g} s") from None
        except httpx.HTTPError as error:  # its text may hold the URL, or what the other side sent
            raise _NoAnswer(f"the connection failed: {type(error).__name__}") from None
        return self._read(held, time.perf_counter() - began)

    def _read(self, answer: bytes, seconds: float) -> Reply:
        try:
            found = _decode(answer)
            text = found.choices[0].message.content or ""
            text.encode()
            reasoning = _shown_reasoning(found.choices[0].message)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise _NoAnswer("an answer that is no chat completion") from None
        if self._splits:
            inside, text = split_thoughts(text)
            reasoning = "\n\n".join(part for part in (reasoning, inside) if part)
        if not text.strip() and not reasoning:
            raise _NoAnswer("an empty reply")
        usage = None if found.usage is None else Usage(found.usage.prompt_tokens, found.usage.completion_tokens)
        return Reply(text, reasoning, found.choices[0].finish_reason == "length", usage, seconds)


def endpoint_url(url: str) -> str:
    """Return the address of chat completions, of which the base (`https://host/v1`) is enough.

    Raises `UsageProblem` for an address that is none, or holds a password: addresses are shown.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        raise UsageProblem("--model-url is no URL; give one such as https://host/v1") from None
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise UsageProblem(f"--model-url {url}: give an http or https URL such as https://host/v1")
    if parsed.userinfo:
        raise UsageProblem("--model-url holds a user or a password; put the key into a file and give it as --key-file")
    path = parsed.path.rstrip("/")
    return str(parsed.copy_with(path=path if path.endswith(_PATH) else path + _PATH))


def read_key(file: Path) -> str:
    """Return the key in a file. Raises `UsageProblem`, which quotes nothing of it."""
    try:
        with file.open("rb") as stream:
            key = stream.read(_MAX_KEY_BYTES + 1).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        raise UsageProblem(f"--key-file {file} cannot be read: {reason}") from None
    if not key or len(key) > _MAX_KEY_BYTES or not key.isprintable() or " " in key:
        raise UsageProblem(f"--key-file {file} holds no key: one line of at most {_MAX_KEY_BYTES} bytes would be right")
    return key


def split_thoughts(text: str) -> tuple[str, str]:
    """Return what a reply thinks between `<think>` and `</think>` at its beginning, and the rest.

    Some templates open the thought themselves, so that the reply begins inside; one that was cut may not close it.
    """
    head, closed, rest = text.partition(_CLOSED)
    begins = head.lstrip().startswith(_OPENED)
    if not closed:
        return (head.lstrip().removeprefix(_OPENED).strip(), "") if begins else ("", text)
    if not begins and _OPENED in head:  # the tags stand in the middle of the reply: they are the reply's own
        return "", text
    return head.lstrip().removeprefix(_OPENED).strip(), rest.lstrip()


def _shown_reasoning(message: _Message) -> str:
    for told in (message.reasoning_content, message.reasoning):
        if isinstance(told, str) and told.strip():
            told.encode()
            return told.strip()
    return ""


def _refusal(answer: httpx.Response, *, first: bool) -> Exception:
    status = answer.status_code
    if status in _PASSING:
        return _NoAnswer(f"status {status}", _pause_s(answer))
    if status in _OF_THE_REQUEST and not first:
        return ModelFailed(f"the model's endpoint refused the conversation with status {status}; is it too long?")
    return ModelRefused(f"the model's endpoint refuses with status {status}: check --model-url, --model and --key-file")


async def _bounded(answer: httpx.Response) -> bytes:
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise _NoAnswer("a compressed answer, which was not asked for")
    held = bytearray()
    async for piece in answer.aiter_raw():
        held += piece
        if len(held) > MAX_ANSWER_BYTES:
            raise _NoAnswer(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
    return bytes(held)


def _pause_s(answer: httpx.Response) -> float | None:
    """Return the pause in seconds that the endpoint asks for, where it gives one as a number."""
    asked = answer.headers.get("Retry-After", "")
    return float(asked) if asked.isascii() and asked.isdigit() and len(asked) <= _MAX_DIGITS else None
