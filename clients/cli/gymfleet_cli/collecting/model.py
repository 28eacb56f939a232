"""An agent behind an OpenAI-compatible chat endpoint: its replies, its reasoning, and their tokens."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from gymfleet_contracts.faults import faults
from gymfleet_kit.chat_endpoint import OF_THE_REQUEST, ChatEndpoint, KeyUnreadable, ModelEndpoint, NoModelAnswer
from pydantic import HttpUrl, TypeAdapter, ValidationError

from gymfleet_cli.console import UsageProblem

_PATH: Final = "/chat/completions"
_OPENED: Final = "<think>"
_CLOSED: Final = "</think>"
_URL: Final = TypeAdapter(HttpUrl)


class ModelFailed(Exception):
    """The endpoint gave no usable answer, however often it was asked; another episode may fare better."""


class ContextFull(Exception):
    """The conversation has grown longer than the model's context."""


class ModelRefused(Exception):
    """The endpoint refuses every request like this one."""


class Usage(NamedTuple):
    """Tokens of one reply, as the endpoint counts them."""

    prompt_tokens: int
    reply_tokens: int
    reasoning_tokens: int = 0
    """Those of the reply tokens that are reasoning, as far as the endpoint reports them."""


class Reply(NamedTuple):
    """An agent's answer."""

    text: str
    reasoning: str
    """Its reasoning before the answer; empty if the endpoint does not show it."""
    cut: bool
    """Whether it was cut off at `max_reply_tokens`."""
    usage: Usage | None
    seconds: float


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The model that plays, and how it is asked."""

    endpoint: ModelEndpoint
    max_reply_tokens: int


def agent_endpoint(
    url: str,
    model: str,
    key_file: Path | None,
    temperature: float | None,
    timeout_s: float,
    concurrency: int,
    *,
    key_env: str | None = None,
) -> ModelEndpoint:
    """Return the endpoint named on the command line: the base of its address, `https://host/v1`, is enough.

    Raises `UsageProblem`.
    """
    try:
        parsed = _URL.validate_python(url)
        path = (parsed.path or "").rstrip("/")
        if not path.endswith(_PATH):
            url = f"{url.rstrip('/')}{_PATH}"
        return ModelEndpoint(
            url=_URL.validate_python(url), model=model, key_file=key_file, key_env=key_env, temperature=temperature,
            timeout_s=timeout_s, concurrency=concurrency,
        )  # fmt: skip
    except ValidationError as error:
        raise UsageProblem(f"--model-url: {faults(error, most=1)}; give one such as https://host/v1") from None


class AgentModel:
    """Asks one endpoint; all episodes use it, in one event loop. Raises `UsageProblem` for an unreadable key.

    Args:
        settings: the model that answers, and how it is asked.
        splits_thoughts: take the part of a reply between `<think>` and `</think>` as its reasoning. A reply format that
            uses such tags itself needs them in the text.
    """

    def __init__(self, settings: AgentSettings, *, splits_thoughts: bool) -> None:
        try:
            self._endpoint = ChatEndpoint("the model's endpoint", settings.endpoint)
        except KeyUnreadable as error:
            option = "--key-file" if settings.endpoint.key_env is None else "--api-key-env"
            raise UsageProblem(f"{option}: {error}") from None
        self._max_reply_tokens = settings.max_reply_tokens
        self._splits = splits_thoughts

    async def aclose(self) -> None:
        """Close the connections."""
        await self._endpoint.aclose()

    async def reply(self, messages: Sequence[Mapping[str, str]]) -> Reply:
        """Return the reply to a conversation. Raises `ModelFailed`, `ModelRefused` and `ContextFull`."""
        began = time.perf_counter()
        try:
            found = await self._endpoint.reply(messages, self._max_reply_tokens, math.inf, reasoning_is_enough=True)
        except NoModelAnswer as error:
            raise _failure(error, first=len(messages) == 1) from None
        text, reasoning = found.text, found.reasoning
        if self._splits:
            inside, text = split_thoughts(text)
            reasoning = "\n\n".join(part for part in (reasoning, inside) if part)
        told = found.prompt_tokens is not None and found.completion_tokens is not None
        counts = (found.prompt_tokens or 0, found.completion_tokens or 0, found.reasoning_tokens or 0)
        usage = Usage(*counts) if told else None
        return Reply(text, reasoning, found.cut, usage, time.perf_counter() - began)


def _failure(error: NoModelAnswer, *, first: bool) -> Exception:
    if error.status is None:
        return ModelFailed(str(error))
    if error.status in OF_THE_REQUEST and not first:
        return ContextFull() if error.too_long else ModelFailed(f"{error}, in the middle of a conversation")
    if error.too_long:
        return ModelRefused(f"{error}: the first prompt and --max-reply-tokens do not fit the model's context")
    return ModelRefused(f"{error}: check --model-url, --model and the key")


def split_thoughts(text: str) -> tuple[str, str]:
    """Return the thought between `<think>` and `</think>` at the beginning of a reply, and the rest.

    Some templates open the thought themselves, so the reply begins inside it; a cut reply may not close it.
    """
    head, closed, rest = text.partition(_CLOSED)
    begins = head.lstrip().startswith(_OPENED)
    if not closed:
        return (head.lstrip().removeprefix(_OPENED).strip(), "") if begins else ("", text)
    if not begins and _OPENED in head:  # the tags stand in the middle of the reply: they are the reply's own
        return "", text
    return head.lstrip().removeprefix(_OPENED).strip(), rest.lstrip()
