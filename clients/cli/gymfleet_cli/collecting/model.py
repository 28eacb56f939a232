"""An agent behind an OpenAI-compatible chat endpoint: what it replied, what it thought before, and what that cost."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from gymfleet_contracts.faults import faults
from gymfleet_kit.chat_endpoint import ChatEndpoint, KeyUnreadable, ModelEndpoint, NoModelAnswer
from pydantic import HttpUrl, TypeAdapter, ValidationError

from gymfleet_cli.console import UsageProblem

_OF_THE_REQUEST: Final = frozenset({400, 413, 422})
"""Statuses that may be about one conversation, such as one that is longer than the model's context."""
_PATH: Final = "/chat/completions"
_OPENED: Final = "<think>"
_CLOSED: Final = "</think>"
_URL: Final = TypeAdapter(HttpUrl)


class ModelFailed(Exception):
    """The endpoint gave no usable answer, however often it was asked; another episode may fare better."""


class ModelRefused(Exception):
    """The endpoint refuses every request like this one."""


class Usage(NamedTuple):
    """Tokens of one reply, as the endpoint counts them."""

    prompt_tokens: int
    reply_tokens: int
    reasoning_tokens: int = 0
    """Of the reply's, as far as the endpoint tells."""


class Reply(NamedTuple):
    """What the agent answered."""

    text: str
    reasoning: str
    """What it thought before; empty where the endpoint shows nothing of it."""
    cut: bool
    """It ended because `max_reply_tokens` were spent."""
    usage: Usage | None
    seconds: float


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Which model plays, and how it is asked."""

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
    """Return an endpoint as the command line names it: the base of its address, `https://host/v1`, is enough.

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
    """Asks one endpoint; used by all episodes, in one event loop. Raises `UsageProblem` for a key that is none.

    Args:
        settings: who answers, and how it is asked.
        splits_thoughts: take what a reply has between `<think>` and `</think>` for its reasoning. A reply format that
            has such tags of its own needs them in the text.
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
        """Return the reply to a conversation. Raises `ModelFailed` and `ModelRefused`."""
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
    if error.status in _OF_THE_REQUEST and not first:
        return ModelFailed(f"{error}, in the middle of a conversation: it may be longer than the model's context")
    return ModelRefused(f"{error}: check --model-url, --model and the key")


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
