"""One episode: the agent replies, the environment answers, until one of them ends it."""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gymfleet_client.errors import ActionTooLarge, ClientError
from gymfleet_client.rest import GatewayClient
from gymfleet_contracts.conversation import Conversation, ConversationTask, Message, Record
from gymfleet_contracts.reply_format import FormatSection, ParsedReply
from gymfleet_contracts.session import EnvironmentSpec, Session, StepResult
from gymfleet_contracts.trajectory import (
    FinishReason,
    PolicyRef,
    ReplyEnd,
    ScoredTrajectory,
    Status,
    Trajectory,
    Turn,
)
from gymfleet_kit.formats import CheckedFormat, format_of
from gymfleet_kit.plugins import PluginError

from gymfleet_cli.collecting.model import AgentModel, ContextFull, Reply
from gymfleet_cli.collecting.plan import Episode, Manner
from gymfleet_cli.collecting.spending import Spending
from gymfleet_cli.console import UsageProblem

_CLOSE_TIMEOUT_S: Final = 5.0


class PlayFailed(Exception):
    """The episode cannot be played to its end, for a reason that says nothing about the agent."""


@dataclass(frozen=True, slots=True)
class World:
    """An environment, and the format in which it is played."""

    spec: EnvironmentSpec
    format_name: str
    format: CheckedFormat

    @property
    def instructions(self) -> str:
        """Return the instructions that the agent is shown once."""
        return "\n\n".join(part for part in (self.spec.instructions.strip(), self.format.instructions) if part)


def world_of(spec: EnvironmentSpec, section: FormatSection | None) -> World:
    """Return an environment in the given or its own format. Raises `UsageProblem` if one agent cannot play it."""
    if spec.seats:
        raise UsageProblem(f"{spec.name} is a game of {', '.join(spec.seats)}: one agent cannot play it by itself")
    if spec.images == "only":
        raise UsageProblem(
            f"{spec.name} shows images alone, and the model is sent texts: give the environment the option "
            'observation = "both", or leave it out'
        )
    chosen = section or FormatSection(use=spec.format)
    try:
        return World(spec, chosen.name, format_of(chosen))
    except PluginError as error:
        raise UsageProblem(f"--format: {error}") from None


@dataclass(slots=True)
class _Played:
    """An episode as far as it was played."""

    observation: str
    messages: list[Mapping[str, str]]
    score: float
    num_steps: int = 0
    turns: list[Turn] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    end: FinishReason | None = None


class Player:
    """Plays episodes with one agent. Its methods raise `ClientError`, `ModelFailed` and `PlayFailed` for failures that
    are not the agent's fault, and `ModelRefused` and `BudgetSpent` for those that end the collection.
    """

    def __init__(
        self, client: GatewayClient, model: AgentModel, spending: Spending, worlds: Mapping[str, World], manner: Manner
    ) -> None:
        self._client = client
        self._model = model
        self._spending = spending
        self._worlds = worlds
        self._manner = manner

    async def play(self, episode: Episode, attempt: int) -> Record:
        """Play an episode and return its record."""
        self._spending.require_left()
        world = self._worlds[episode.env]
        began, started_at = time.perf_counter(), time.time()
        session = await self._client.open(episode.opening(self._manner))
        try:
            played = await self._played(world, session)
        finally:
            with contextlib.suppress(ClientError, TimeoutError):  # its lease ends it otherwise
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._client.close(session.session_id)
        trajectory = Trajectory(
            trajectory_id=episode.id(self._manner), run_id=self._manner.run_id,
            group_id=episode.group_id(self._manner), sample=episode.sample, attempt=attempt, task=session.task,
            sealed=session.sealed, policy=PolicyRef(model=self._manner.model, version_min=0, version_max=0),
            purpose=self._manner.purpose, format=world.format_name, format_version=world.format.version,
            turns=tuple(played.turns), final_observation=played.observation,
            status=Status.COMPLETED if played.end is FinishReason.TERMINATED else Status.TRUNCATED,
            score=played.score, success=played.score >= 1.0, finish_reason=played.end or FinishReason.STOPPED,
            started_at=started_at, duration_s=time.perf_counter() - began,
        )  # fmt: skip
        if self._manner.form == "conversations":
            return _conversation(trajectory, world, played)
        return ScoredTrajectory(trajectory=trajectory, reward=None)

    async def _played(self, world: World, session: Session) -> _Played:
        if session.terminated or session.truncated:
            raise PlayFailed(f"{session.task.task_id} is over before its first turn")
        opening = {"role": "user", "content": f"{world.instructions}\n\n{session.observation}"}
        played = _Played(session.observation, [opening], session.score)
        limit = min(self._manner.max_turns or world.spec.max_turns, world.spec.max_turns)
        while played.end is None:
            await self._turn(world, session, played)
            if played.end is None and len(played.turns) >= limit:
                played.end = FinishReason.MAX_TURNS
        return played

    async def _turn(self, world: World, session: Session, played: _Played) -> None:
        self._spending.require_left()
        try:
            reply = await self._model.reply(played.messages)
        except ContextFull:
            played.end = FinishReason.CONTEXT_LENGTH
            return
        self._spending.pay(reply.usage)
        parsed = world.format.parse(reply.text)
        if reply.cut:
            parsed = parsed.if_cut()
        began = time.perf_counter()
        result = await self._acted(world, session, parsed.action, played)
        played.turns.append(_turn(played.observation, reply, parsed, result, time.perf_counter() - began))
        played.replies.append(reply)
        if result is None:
            played.observation = _complaint(world, parsed.action)
        else:
            played.observation, played.score, played.end = result.observation, result.score, _end(result)
        # The agent is not shown its own reasoning again; its endpoint's own clients do the same.
        played.messages.append({"role": "assistant", "content": reply.text})
        played.messages.append({"role": "user", "content": played.observation})

    async def _acted(self, world: World, session: Session, action: str | None, played: _Played) -> StepResult | None:
        """Take a step with the action; return None, without a step, if there is no action or it is too long."""
        if action is None or len(action) > world.spec.max_action_chars:
            return None
        try:
            result = await self._client.step(session.session_id, played.num_steps, action)
        except ActionTooLarge:
            return None
        played.num_steps += 1
        return result


def _turn(observation: str, reply: Reply, parsed: ParsedReply, result: StepResult | None, seconds: float) -> Turn:
    """Return the record of a turn. It has no tokens: those the endpoint counts belong to its own model."""
    if result is None:
        did: dict[str, Any] = {"action_valid": False}
    else:
        did = {
            "action_valid": result.action_valid, "reward": result.reward, "terminated": result.terminated,
            "truncated": result.truncated, "info": result.info, "sealed": result.sealed,
        }  # fmt: skip
    return Turn(
        observation=observation, prompt_token_ids=(), response_token_ids=(), response_logprobs=(), text=reply.text,
        reply_end=ReplyEnd.LENGTH if reply.cut else ReplyEnd.STOP, thought=reply.reasoning or parsed.thought,
        action=parsed.action, format_valid=parsed.well_formed, generate_s=reply.seconds, environment_s=seconds, **did,
    )  # fmt: skip


def _complaint(world: World, action: str | None) -> str:
    """Return the answer to a reply that could not be carried out, in the rollout service's words."""
    if action is None:
        return world.format.complaint
    limit = world.spec.max_action_chars
    return f"Invalid action: it has {len(action)} characters, at most {limit} are allowed."


def _end(result: StepResult) -> FinishReason | None:
    if result.terminated:
        return FinishReason.TERMINATED
    return FinishReason.ENV_TURN_LIMIT if result.truncated else None


def _conversation(trajectory: Trajectory, world: World, played: _Played) -> Conversation:
    """Return the episode as messages to learn from, each reply preceded by the agent's reasoning."""
    messages: list[Message] = []
    for place, (turn, reply) in enumerate(zip(trajectory.turns, played.replies, strict=True)):
        shown = turn.observation if place else f"{world.instructions}\n\n{turn.observation}"
        messages.append(Message(role="user", content=shown))
        thought = f"<think>\n{reply.reasoning}\n</think>\n\n" if reply.reasoning else ""
        messages.append(Message(role="assistant", content=thought + reply.text))
    task = trajectory.task
    return Conversation(
        messages=tuple(messages), task=ConversationTask(env=task.env, split=task.split, task_id=task.task_id),
        success=trajectory.success, reward=trajectory.score, id=trajectory.trajectory_id,
        labels=() if trajectory.success else ("failed",),
    )  # fmt: skip
