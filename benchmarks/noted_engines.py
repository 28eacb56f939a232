"""Engines that note the requests of each search, and the prefix-cache counters of a vLLM server."""

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
    """A request to the engine, and the number of tokens it returned."""

    prompt: list[int]
    num_tokens: int


Conversation = list[Request]
_ASKED: Final[ContextVar[Conversation | None]] = ContextVar("asked", default=None)


def _noted(request: GenerationRequest, answer: Continuation) -> Continuation:
    if (asked := _ASKED.get()) is not None:
        asked.append(Request(list(request.prompt_token_ids), len(answer.token_ids)))
    return answer


class NotedEmbedded(EmbeddedEngine):
    """The embedded engine, noting its requests."""

    async def generate(self, request: GenerationRequest, on_tokens: OnTokens | None = None) -> Continuation:
        """See `Engine.generate`."""
        return _noted(request, await super().generate(request, on_tokens))


class NotedServer(ServerEngine):
    """A vLLM server, noting its requests."""

    async def generate(self, request: GenerationRequest, on_tokens: OnTokens | None = None) -> Continuation:
        """See `Engine.generate`."""
        return _noted(request, await super().generate(request, on_tokens))


async def asked_by(playing: Coroutine[Any, Any, Any]) -> Conversation:
    """Return the requests made by `playing`, in the order of the answers. Call it in a separate task."""
    asked: Conversation = []
    _ASKED.set(asked)
    await playing
    return asked


class Scores:
    """An evaluator that values an episode by the environment's score, without a service."""

    async def totals(self, requests: Sequence[ScoreRequest], *, timeout_s: float) -> list[float]:
        """Return the score of each request's trajectory."""
        del timeout_s  # it waits for nobody
        return [request.trajectory.score for request in requests]


async def prefix_cache(engine: Engine) -> tuple[float, float]:
    """Return how many prompt tokens a server has looked up in its prefix cache so far, and how many it found.

    Returns zeros for an engine that is not a server: the embedded one counts nothing.
    """
    if not isinstance(engine, ServerEngine):
        return 0.0, 0.0
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"{engine.name}/metrics")
    told = {name: float(value) for name, value in _COUNTER.findall(answer.raise_for_status().text)}
    return told["queries"], told["hits"]


def hit_rate(before: tuple[float, float], after: tuple[float, float]) -> float:
    """Return the share of tokens found between two readings."""
    return (after[1] - before[1]) / (after[0] - before[0])
