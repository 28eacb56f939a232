"""One attempt at an episode: observe, reply and act until something ends it."""

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from gymfleet_client.errors import (
    ActionTooLarge,
    ClientError,
    DeadlinePassed,
    EnvironmentFull,
    ExpertUnavailable,
    QuotaExceeded,
    RateLimited,
    TransportError,
    Unavailable,
)
from gymfleet_contracts.grammar import Grammar
from gymfleet_contracts.rollout import GroupRequest, Sampling
from gymfleet_contracts.session import EnvironmentSpec, ExpertMove, OpenSession, Session, StepResult
from gymfleet_contracts.trajectory import FinishReason, ReplyEnd, Status, Turn
from gymfleet_kit.retries import Retries

from gymfleet_rollout import metrics
from gymfleet_rollout.inference.base import Generation, InferenceError
from gymfleet_rollout.tokens import ChatTokens

_OPEN_PAUSE_S: Final = 0.05
_OUTAGE_PATIENCE_S: Final = 60.0
"""How long a gateway or env server that died may take to be restarted before the attempt fails."""
_LEASE_MARGIN_S: Final = 60.0
_SEED_SPACE: Final = 2**62


class Sessions(Protocol):
    """The part of `gymfleet_client.stream.SessionStream` that an episode needs."""

    async def open(self, request: OpenSession, *, timeout_s: float = ...) -> Session:
        """Open a session."""

    async def step(self, session_id: str, index: int, action: str, *, timeout_s: float = ...) -> StepResult:
        """Apply one action; its index makes sure that it is applied exactly once."""

    async def close(self, session_id: str, *, timeout_s: float = ...) -> None:
        """Free the slot."""

    async def expert(self, session_id: str, *, index: int | None = ..., timeout_s: float = ...) -> ExpertMove:
        """Return what the environment's expert would do after `index` steps."""


class Sampler(Protocol):
    """The part of the policy that an episode needs."""

    @property
    def model(self) -> str:
        """Return the name of the model."""

    @property
    def live_version(self) -> int:
        """Return the policy version that generates replies now."""

    @property
    def max_model_len(self) -> int:
        """Return the limit for the tokens of prompt and reply together."""

    async def generate(
        self, prompt_token_ids: Sequence[int], *, max_tokens: int, sampling: Sampling, stop_token_ids: tuple[int, ...]
    ) -> Generation:
        """Sample a reply. Raises InferenceError."""

    def timeout(self, seconds: float) -> contextlib.AbstractAsyncContextManager[asyncio.Timeout]:
        """Return a time limit like `asyncio.timeout`, paused while nothing is sampled because weights are replaced."""


@dataclass(frozen=True, slots=True)
class EpisodeContext:
    """The parts that an episode is played with."""

    policy: Sampler
    chat: ChatTokens
    sessions: Sessions
    spec: EnvironmentSpec
    grammar: Grammar


@dataclass(frozen=True, slots=True)
class _Reply:
    """A reply, either the policy's or the expert's."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    version_min: int
    version_max: int
    end: ReplyEnd


class PromptTooLong(InferenceError):
    """The first prompt and one token do not fit the context: the limits are wrong, not the policy."""


class Episode:
    """The state of one attempt; `play` runs it to its end and stores the outcome in the attributes."""

    def __init__(self, table: EpisodeContext, group: GroupRequest, sample: int) -> None:
        self._table = table
        self._group = group
        self._sample = sample
        self._limits = group.limits
        self._max_context = min(group.limits.max_context_tokens, table.policy.max_model_len)
        self._max_turns = group.limits.max_turns
        self._context: list[int] = []
        self._index = 0
        self.session: Session | None = None
        self.turns: list[Turn] = []
        self.observation = ""
        self.final_prompt: tuple[int, ...] = ()
        """The prompt of the turn that the limits did not allow; empty if something else ended the episode."""
        self.score = 0.0
        self.finish_reason = FinishReason.ERROR

    @property
    def status(self) -> Status:
        """Return the status of an episode that was played to its end."""
        return Status.COMPLETED if self.finish_reason is FinishReason.TERMINATED else Status.TRUNCATED

    async def play(self) -> None:
        """Play to the end and close the session. Raises the client's errors, InferenceError or TimeoutError."""
        self.session = await self._open()
        try:
            self.observation = self.session.observation
            self.score = self.session.score
            reason = None
            while reason is None:
                reason = await self._turn()
            self.finish_reason = reason
        finally:
            await asyncio.shield(self._close(self.session.session_id))

    async def _open(self) -> Session:
        """Open the session, waiting for a free slot as long as the gateway says: a full environment is no failure."""
        limits = self._limits
        request = self._group.task
        if request.lease_s is None:
            # Between two steps there is one reply, and possibly a pause while weights are replaced.
            lease_s = limits.generate_timeout_s + limits.step_timeout_s + _LEASE_MARGIN_S
            request = request.model_copy(update={"lease_s": min(lease_s, 86_400.0)})
        once = partial(self._table.sessions.open, request, timeout_s=limits.step_timeout_s)
        # Nothing was played, so no attempt is used up.
        outage = Retries(
            "gateway.awaited", on=(Unavailable, TransportError), unless=DeadlinePassed, first_pause_s=_OPEN_PAUSE_S,
            bound={"env": request.env},
        )  # fmt: skip
        shortage = Retries(
            "environment.full", on=(EnvironmentFull, QuotaExceeded, RateLimited), first_pause_s=_OPEN_PAUSE_S,
            asked_s=lambda error: error.retry_after_s, level="info", bound={"env": request.env},
        )  # fmt: skip
        return await shortage.call(partial(outage.call, once, timeout_s=_OUTAGE_PATIENCE_S))

    async def _close(self, session_id: str) -> None:
        # A session that cannot be closed ends with its lease; the outcome of the episode stays valid.
        with contextlib.suppress(ClientError):
            await self._table.sessions.close(session_id, timeout_s=self._limits.step_timeout_s)

    async def _turn(self) -> FinishReason | None:
        observation = self.observation
        prompt = self._next_prompt(observation)
        if len(self.turns) >= self._max_turns:
            return self._cut(FinishReason.MAX_TURNS, prompt)
        room = self._max_context - len(self._context) - len(prompt)
        if room < 1:
            if not self.turns:
                raise PromptTooLong(
                    f"the first prompt has {len(prompt)} tokens, the context {self._max_context}: raise "
                    "limits.max_context_tokens and the engine's max_model_len"
                )
            return self._cut(FinishReason.CONTEXT_LENGTH, prompt)
        began = time.perf_counter()
        reply = await self._reply(prompt, min(room, self._limits.max_response_tokens))
        replied = time.perf_counter()
        if reply is None:
            return FinishReason.EXPERT_STUCK
        self._context += prompt
        self._context += reply.token_ids
        text = self._table.chat.text(reply.token_ids)
        parsed = self._table.grammar.parse(text)
        if reply.end is ReplyEnd.LENGTH:
            parsed = parsed.if_cut()
            metrics.CUT_REPLIES.inc()
        result = None if parsed.action is None else await self._act(parsed.action)
        acted = time.perf_counter()
        turn = Turn(
            observation=observation,
            prompt_token_ids=prompt,
            response_token_ids=reply.token_ids,
            response_logprobs=reply.logprobs,
            policy_version_min=reply.version_min,
            policy_version_max=reply.version_max,
            text=text,
            reply_end=reply.end,
            thought=parsed.thought,
            action=parsed.action,
            format_valid=parsed.well_formed,
            action_valid=result is not None and result.action_valid,
            reward=0.0 if result is None else result.reward,
            terminated=result is not None and result.terminated,
            truncated=result is not None and result.truncated,
            info={} if result is None else result.info,
            generate_s=replied - began,
            environment_s=acted - replied,
        )
        self.turns.append(turn)
        metrics.TURNS.inc()
        metrics.GENERATE_SECONDS.observe(turn.generate_s)
        return self._settle(parsed.action, result)

    def _cut(self, reason: FinishReason, prompt: tuple[int, ...]) -> FinishReason:
        """Keep what the next prompt would have added, cut to at most one whole context."""
        self.final_prompt = prompt[: self._max_context]
        return reason

    def _settle(self, action: str | None, result: StepResult | None) -> FinishReason | None:
        """Record the result of the step, or the complaint about a reply that could not be executed."""
        if result is None:
            limit = self._table.spec.max_action_chars
            self.observation = (
                self._table.grammar.complaint
                if action is None
                else f"Invalid action: it has {len(action)} characters, at most {limit} are allowed."
            )
            return None
        self.observation = result.observation
        self.score = result.score
        if result.terminated:
            return FinishReason.TERMINATED
        return FinishReason.ENV_TURN_LIMIT if result.truncated else None

    def _next_prompt(self, observation: str) -> tuple[int, ...]:
        chat = self._table.chat
        if self.turns:
            return chat.following(observation, reply_ended=chat.ended(self.turns[-1].response_token_ids))
        parts = (self._table.spec.instructions.strip(), self._table.grammar.instructions, observation)
        return chat.first("\n\n".join(part for part in parts if part))

    async def _reply(self, prompt: tuple[int, ...], max_tokens: int) -> _Reply | None:
        if self._group.strategy == "expert":
            return await self._expert_reply(max_tokens)
        try:
            async with self._table.policy.timeout(self._limits.generate_timeout_s):
                generation: Generation = await self._table.policy.generate(
                    [*self._context, *prompt],
                    max_tokens=max_tokens,
                    sampling=self._sampling(),
                    stop_token_ids=self._table.chat.stop_token_ids,
                )
        except TimeoutError:
            raise TimeoutError(f"no reply within generate_timeout_s = {self._limits.generate_timeout_s:g}") from None
        _require_sound(generation)
        end = ReplyEnd(generation.finish_reason)
        return _Reply(generation.token_ids, generation.logprobs, generation.version_min, generation.version_max, end)

    async def _expert_reply(self, max_tokens: int) -> _Reply | None:
        """Return the expert's move written in the grammar, or None if the expert has no move or none that fits."""
        assert self.session is not None  # noqa: S101 - `play` opened it
        try:
            move = await self._table.sessions.expert(
                self.session.session_id, index=self._index, timeout_s=self._limits.step_timeout_s
            )
        except ExpertUnavailable:
            if not self.turns:
                raise
            return None
        token_ids = self._table.chat.reply(self._table.grammar.render(move.thought, move.action))
        return _Reply(token_ids, None, 0, 0, ReplyEnd.STOP) if len(token_ids) <= max_tokens else None

    async def _act(self, action: str) -> StepResult | None:
        """Step the environment; return None, without stepping, when the action is too long."""
        assert self.session is not None  # noqa: S101 - `play` opened it
        if len(action) > self._table.spec.max_action_chars:
            return None
        began = time.perf_counter()
        try:
            result = await self._table.sessions.step(
                self.session.session_id, self._index, action, timeout_s=self._limits.step_timeout_s
            )
        except ActionTooLarge:
            return None
        metrics.ENVIRONMENT_SECONDS.observe(time.perf_counter() - began)
        self._index += 1
        return result

    def _sampling(self) -> Sampling:
        """Derive a separate seed for each sample and turn from the group's seed: equal seeds give equal episodes."""
        sampling = self._group.sampling
        if sampling.seed is None:
            return sampling
        name = f"{sampling.seed}/{self._sample}/{len(self.turns)}"
        if self._group.replay:  # the same draws again could meet the same failure
            name += f"/{self._group.replay}"
        own = random.Random(name).randrange(_SEED_SPACE)
        return sampling.model_copy(update={"seed": own})


def _require_sound(generation: Generation) -> None:
    """Raise InferenceError for a reply with missing or non-finite log-probabilities: training would have to guess."""
    num_tokens, num_logprobs = len(generation.token_ids), len(generation.logprobs)
    if num_tokens != num_logprobs:
        raise InferenceError(f"the engine gave {num_tokens} tokens and {num_logprobs} log-probabilities")
    if not all(map(math.isfinite, generation.logprobs)):
        raise InferenceError("the engine gave a log-probability that is not finite")
