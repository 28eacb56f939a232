"""Engines that note what each search asks of them, and what a vLLM server says of its prefix cache."""

import re
from collections.abc import Coroutine, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import httpx
from gymfleet_contracts.reward import ScoreRequest
from gymfleet_rollout.inference.base import Continuation, Engine, GenerationRequest, OnTokens
from gymfleet_rollout.inference.embedded import EmbeddedEngine
from gymfleet_rollout.inference.server import ServerEngine

_COUNTER: Final = re.compile(r"^vllm:prefix_cache_(queries|hits)_total\{[^}]*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Request:
    """What the engine was asked, and how many tokens it gave."""

    prompt: list[int]
    num_tokens: int


Conversation = list[Request]
_ASKED: Final[ContextVar[Conversation | None]] = ContextVar("asked", default=None)


def _noted(request: GenerationRequest, answer: Continuation) -> Continuation:
    if (asked := _ASKED.get()) is not None:
        asked.append(Request(list(request.prompt_token_ids), len(answer.token_ids)))
    return answer


class NotedEmbedded(EmbeddedEngine):
    """The embedded engine."""

    async def generate(self, request: GenerationRequest, on_tokens: OnTokens | None = None) -> Continuation:
        """See `Engine.generate`."""
        return _noted(request, await super().generate(request, on_tokens))


class NotedServer(ServerEngine):
    """A vLLM server."""

    async def generate(self, request: GenerationRequest, on_tokens: OnTokens | None = None) -> Continuation:
        """See `Engine.generate`."""
        return _noted(request, await super().generate(request, on_tokens))


async def asked_by(playing: Coroutine[Any, Any, Any]) -> Conversation:
    """Return what was asked while something was played, in the order of the answers. Call it in a task of its own."""
    asked: Conversation = []
    _ASKED.set(asked)
    await playing
    return asked


class Scores:
    """An evaluator for which an episode is worth the environment's score, without a service."""

    async def totals(self, requests: Sequence[ScoreRequest], *, timeout_s: float) -> list[float]:
        """Return the score of each."""
        del timeout_s  # it waits for nobody
        return [request.trajectory.score for request in requests]


async def prefix_cache(engine: Engine) -> tuple[float, float]:
    """Return the prompt tokens that a server has looked for in its prefix cache so far, and those that it found.

    Zeros for an engine that is no server: the embedded one counts nothing.
    """
    if not isinstance(engine, ServerEngine):
        return 0.0, 0.0
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"{engine.name}/metrics")
    told = {name: float(value) for name, value in _COUNTER.findall(answer.raise_for_status().text)}
    return told["queries"], told["hits"]


def hit_rate(before: tuple[float, float], after: tuple[float, float]) -> float:
    """Return the share of tokens that was found between two counts."""
    return (after[1] - before[1]) / (after[0] - before[0])
