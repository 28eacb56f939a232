"""Replies to nodes: what a prompt adds, and how replies are sampled from the policy and read."""

import asyncio
import math
import random
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

from gymfleet_contracts.rollout import GroupRequest, Sampling
from gymfleet_contracts.trajectory import AGENT, ReplyEnd, VersionSpan
from gymfleet_kit.chat.image_reader import PlacedImage

from gymfleet_rollout import metrics
from gymfleet_rollout.budget import Spending
from gymfleet_rollout.inference.base import Generation, InferenceError
from gymfleet_rollout.parts import Parts
from gymfleet_rollout.seen import Prompted
from gymfleet_rollout.tree import Node, Reply

_SEED_SPACE: Final = 2**62
T = TypeVar("T")


class Prompt(NamedTuple):
    """The tokens that a prompt adds to those before it, which it may replace."""

    added: Prompted
    num_before: int
    replaces: bool

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens, including those before the prompt."""
        return self.num_before + len(self.added.token_ids)


def next_prompt(node: Node) -> Prompt:
    """Return the prompt of a node's observation, or the one that replaces it."""
    if node.replacement is not None:
        return Prompt(node.replacement, 0, replaces=True)
    return Prompt(node.prompt, node.num_tokens, replaces=False)


class Context(NamedTuple):
    """Everything that the policy is given before its reply."""

    token_ids: list[int]
    images: list[PlacedImage]

    def followed_by(self, token_ids: Sequence[int]) -> "Context":
        """Return the context followed by more tokens."""
        return Context([*self.token_ids, *token_ids], self.images)


class Replies:
    """Samples replies for one attempt at the samples of a group, and counts their cost."""

    def __init__(self, parts: Parts, group: GroupRequest, sample: int | None, spending: Spending) -> None:
        self._parts = parts
        self._group = group
        self._limits = group.limits
        self._sample = sample
        self._spending = spending

    async def sampled(
        self,
        node: Node,
        prompt: Prompt,
        context: Context,
        count: int,
        max_tokens: int,
        role: str,
        *,
        greedy: bool = False,
    ) -> list[Reply]:
        """Return replies to a node, sampled independently, or the likeliest; `context` ends with the prompt."""
        num_before = len(context.token_ids)
        max_tokens = await self._spending.reserve(count, num_before, max_tokens)
        used = 0
        try:
            first, node.num_replies = node.num_replies, node.num_replies + count
            if count == 1:
                replies = [await self._reply(node, prompt, context, max_tokens, first, role, greedy=greedy)]
            else:
                draws = range(first, first + count)
                replies = await _all(
                    [self._reply(node, prompt, context, max_tokens, draw, role, greedy=greedy) for draw in draws]
                )
            used = sum(len(reply.token_ids) + reply.num_prefilled_tokens for reply in replies)
        finally:
            self._spending.settle(count * (num_before + max_tokens), used)
        return replies

    async def _reply(
        self, node: Node, prompt: Prompt, context: Context, max_tokens: int, draw: int, role: str, *, greedy: bool
    ) -> Reply:
        sampling = self._sampling(node, draw)
        if greedy:
            sampling = sampling.model_copy(update={"temperature": 0.0})
        began = time.perf_counter()
        try:
            async with self._parts.policy.timeout(self._limits.generate_timeout_s):
                generation = await self._generated(context, max_tokens, sampling)
        except TimeoutError:
            raise TimeoutError(f"no reply within generate_timeout_s = {self._limits.generate_timeout_s:g}") from None
        end, seconds = ReplyEnd(generation.finish_reason), time.perf_counter() - began
        reply = self.read(
            node, prompt, generation.token_ids, generation.logprobs, generation.versions, end, seconds, role
        )
        return replace(reply, num_prefilled_tokens=generation.num_prefilled_tokens, greedy=greedy)

    async def _generated(self, context: Context, max_tokens: int, sampling: Sampling) -> Generation:
        """Return a reply, cut off if it thinks for longer than the template's options allow."""
        chat, limit = self._parts.chat, self._group.template.max_reasoning_tokens
        if limit is None or limit >= max_tokens or chat.thoughts_end_id is None:
            return await self._sampled_by_policy(context, max_tokens, sampling, chat.stop_token_ids)
        stops = (*chat.stop_token_ids, chat.thoughts_end_id)
        thoughts = await self._sampled_by_policy(context, limit, sampling, stops)
        num_thoughts = len(thoughts.token_ids)
        if thoughts.finish_reason == "length":
            if chat.read(thoughts.token_ids).reply.reasoning:
                return thoughts
        elif thoughts.token_ids[-1] != chat.thoughts_end_id:  # the reply is at its end
            return thoughts
        if sampling.seed is not None:
            sampling = sampling.model_copy(update={"seed": sampling.seed + num_thoughts})
        rest = await self._sampled_by_policy(
            context.followed_by(thoughts.token_ids), max_tokens - num_thoughts, sampling, chat.stop_token_ids
        )
        return thoughts.followed_by(rest)

    async def _sampled_by_policy(
        self, context: Context, max_tokens: int, sampling: Sampling, stop_token_ids: tuple[int, ...]
    ) -> Generation:
        generation: Generation = await self._parts.policy.generate(
            context.token_ids,
            max_tokens=max_tokens,
            sampling=sampling,
            stop_token_ids=stop_token_ids,
            images=context.images,
        )
        _require_sound(generation)
        return generation

    def read(
        self,
        node: Node,
        prompt: Prompt,
        token_ids: tuple[int, ...],
        logprobs: tuple[float, ...] | None,
        versions: tuple[VersionSpan, ...],
        end: ReplyEnd,
        seconds: float,
        role: str = AGENT,
    ) -> Reply:
        """Return a reply as the format reads it; one that was cut off asks for nothing that may be half an action."""
        said = self._parts.chat.read(token_ids)
        parsed = self._parts.format.read(said.reply)
        if end is ReplyEnd.LENGTH:
            parsed = parsed.if_cut()
            metrics.CUT_REPLIES.inc()
        return Reply(
            node.id, said.text, parsed, token_ids, logprobs, prompt.added.token_ids, prompt.added.images,
            prompt.replaces, versions, end, seconds, role, num_reasoning_tokens=said.num_reasoning_tokens,
        )  # fmt: skip

    def _sampling(self, node: Node, draw: int) -> Sampling:
        """Derive a separate seed for each reply from the group's seed: equal seeds give equal episodes."""
        sampling = self._group.sampling
        if sampling.spread:
            sampling = sampling.model_copy(update={"temperature": self._group.temperature_of(self._sample)})
        if sampling.seed is None:
            return sampling
        who = "group" if self._sample is None else str(self._sample)
        name = f"{sampling.seed}/{who}/{node.depth}{node.branch}"
        if draw:
            name += f"#{draw}"
        if again := self._group.again:  # the same draws could meet the same failure
            name += f"/{again}"
        own = random.Random(name).randrange(_SEED_SPACE)
        return sampling.model_copy(update={"seed": own})


def _require_sound(generation: Generation) -> None:
    """Raise InferenceError for a reply with missing or non-finite log-probabilities: training would have to guess."""
    num_tokens, num_logprobs = len(generation.token_ids), len(generation.logprobs)
    if num_tokens != num_logprobs:
        raise InferenceError(f"the engine gave {num_tokens} tokens and {num_logprobs} log-probabilities")
    if not all(map(math.isfinite, generation.logprobs)):
        raise InferenceError("the engine gave a log-probability that is not finite")


async def _all(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of all calls; if one fails, the others are cancelled."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
