"""Checks of what a strategy promises, in a world of a few numbers: `examine` returns the promises that it breaks."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, Self, cast

from gymfleet_client.errors import EnvironmentFailed
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.reply_format import ModelReply
from gymfleet_contracts.reward import EvaluatorSpec, ScoreRequest
from gymfleet_contracts.rollout import (
    Budget,
    EpisodeLimits,
    GroupRequest,
    MessageRoles,
    Sampling,
    StrategySpec,
    TemplateOptions,
)
from gymfleet_contracts.session import (
    AdmissibleActions,
    Capabilities,
    EnvironmentSpec,
    ExpertMove,
    ForkSupport,
    Game,
    OpenSession,
    Seat,
    Session,
    StepResult,
    TaskRef,
    Tool,
)
from gymfleet_contracts.trajectory import Trajectory, sampled_by
from gymfleet_kit.chat.image_reader import PlacedImage
from gymfleet_kit.chat.images import MarkedImage
from gymfleet_kit.chat.tokens import Said
from gymfleet_kit.plugins import PluginError

from gymfleet_rollout.formats import Formats
from gymfleet_rollout.inference.base import FinishReason, Generation
from gymfleet_rollout.player import NOT_BEGUN, Player
from gymfleet_rollout.strategy import STRATEGIES, strategy_of

NUM_SAMPLES: Final = 4
PATIENCE_S: Final = 20.0
_PROMPT_S: Final = 0.5
"""Time within which cancellation from outside must take effect."""
_GOAL: Final = 3
_LIMITS: Final = EpisodeLimits(max_turns=8, max_response_tokens=64, max_context_tokens=8_192, max_attempts=1)
_TASK: Final = TaskRef(env="steps", split="train", level="easy", task_id="0")
_SPEC: Final = EnvironmentSpec(
    name="steps", version="1", summary="", instructions="Go up three steps.", max_turns=8, levels=("easy",),
    default_level="easy", splits={"train": 1},
    capabilities=Capabilities(deterministic=True, fork=ForkSupport.NATIVE, expert=True, admissible_actions=True),
)  # fmt: skip
_BUDGETS: Final = (
    Budget(env_steps=5),
    Budget(model_calls=5),
    Budget(tokens=600),
    Budget(evaluations=3),
    Budget(env_steps=0),
)


class _Chat:
    """A chat whose tokens are characters."""

    stop_token_ids = (0,)
    thoughts_end_id = None
    replaces = False
    dialect = SimpleNamespace(thinks=False)

    def under(self, roles: MessageRoles, options: TemplateOptions, tools: tuple[Tool, ...]) -> Self:
        del roles, options, tools
        return self

    def first(self, content: str, instructions: str = "", images: Sequence[MarkedImage] = ()) -> tuple[int, ...]:
        del images
        return tuple(map(ord, instructions + content))

    def following(
        self, content: str, *, reply_ended: bool, called: str = "", images: Sequence[MarkedImage] = ()
    ) -> tuple[int, ...]:
        del called, images
        return (*(() if reply_ended else (0,)), *map(ord, content))

    def ended(self, response_token_ids: Sequence[int], *, called: bool = False) -> bool:
        del called
        return response_token_ids[-1:] in ((0,), [0])

    def read(self, response_token_ids: Sequence[int]) -> Said:
        text = "".join(chr(token) for token in response_token_ids if token)
        return Said(text, ModelReply(text), 0)

    def write(self, reply: ModelReply) -> tuple[int, ...]:
        return (*map(ord, reply.content), 0)


@dataclass
class _World:
    """Stairs, a policy that goes up or down depending on its seed, and a record of the requests to both."""

    seats: tuple[str, ...] = ()
    """The players, who go up and down the same stairs in turn."""
    fails_at: int | None = None
    """The number of the step from which on steps fail."""
    hangs: bool = False
    heights: dict[str, int] = field(default_factory=dict)
    open_ids: set[str] = field(default_factory=set)
    used: Counter[str] = field(default_factory=Counter)
    sampled: set[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=set)
    """Each whole prompt, and the reply to it."""
    model: str = "steps"
    live_version: int = 0
    max_model_len: int = 8_192

    def timeout(self, seconds: float) -> contextlib.AbstractAsyncContextManager[asyncio.Timeout]:
        return asyncio.timeout(seconds)

    async def spec(self, _: str) -> EnvironmentSpec:
        return _SPEC.model_copy(update={"seats": self.seats})

    async def generate(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop_token_ids: tuple[int, ...],
        images: Sequence[PlacedImage] = (),
    ) -> Generation:
        del stop_token_ids, images
        self.used["model_calls"] += 1
        await asyncio.sleep(0)
        action = random.Random(sampling.seed).choice(("up", "up", "down"))
        ids = (*map(ord, f"Thought: on. Action: {action}"), 0)[:max_tokens]
        self.used["tokens"] += len(prompt) + len(ids)
        self.sampled.add((tuple(prompt), ids))
        reason: FinishReason = "stop" if ids[-1] == 0 else "length"
        return Generation(ids, (-1.0,) * len(ids), reason, sampled_by(0, len(ids)), num_prefilled_tokens=len(prompt))

    async def open(self, request: OpenSession, *, timeout_s: float = 0) -> Session:
        del request, timeout_s
        await asyncio.sleep(0)
        return self._session(0)

    async def fork(
        self, session_id: str, count: int = 1, *, index: int | None = None, timeout_s: float = 0
    ) -> list[Session]:
        del index, timeout_s
        await asyncio.sleep(0)
        return [self._session(self.heights[session_id]) for _ in range(count)]

    async def admissible_actions(
        self, session_id: str, *, index: int | None = None, timeout_s: float = 0
    ) -> AdmissibleActions:
        del index, timeout_s
        await asyncio.sleep(0)
        return AdmissibleActions(actions=["up", "down"] if self.heights[session_id] else ["up"])

    def _session(self, height: int) -> Session:
        session_id = str(len(self.heights))
        self.heights[session_id] = height
        self.open_ids.add(session_id)
        return Session(
            session_id=session_id, task=_TASK, observation=f"Step {height}.", lease_s=60, expires_in_s=60,
            game=self._game(0, height),
        )  # fmt: skip

    def _game(self, num_steps: int, height: int) -> Game | None:
        if not self.seats:
            return None
        mover = None if height == _GOAL else self.seats[num_steps % len(self.seats)]
        own = Seat(observation=f"Step {height}.", reward=float(height == _GOAL), score=height / _GOAL)
        return Game(to_move=mover, seats=dict.fromkeys(self.seats, own))

    async def step(self, session_id: str, index: int, action: str, *, timeout_s: float = 0) -> StepResult:
        del timeout_s
        self.used["env_steps"] += 1
        if self.hangs:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        if self.fails_at is not None and self.used["env_steps"] >= self.fails_at:
            raise EnvironmentFailed(Problem(title="As planned", status=500, detail="a step failed"))
        height = self.heights[session_id] = max(0, self.heights[session_id] + (1 if action == "up" else -1))
        done = height == _GOAL
        return StepResult(
            index=index, observation=f"Step {height}.", reward=float(done), terminated=done, truncated=False,
            score=height / _GOAL, game=self._game(index + 1, height),
        )  # fmt: skip

    async def totals(self, requests: Sequence[ScoreRequest], *, timeout_s: float) -> list[float]:
        del timeout_s
        self.used["evaluations"] += len(requests)
        await asyncio.sleep(0)
        return [request.trajectory.score for request in requests]

    async def close(self, session_id: str, *, timeout_s: float = 0) -> None:
        del timeout_s
        self.open_ids.discard(session_id)

    async def expert(self, session_id: str, *, index: int | None = None, timeout_s: float = 0) -> ExpertMove:
        del session_id, index, timeout_s
        await asyncio.sleep(0)
        return ExpertMove(thought="On.", action="up")


def examine(reference: str, options: Mapping[str, Any] | None = None) -> list[str]:
    """Return a line for each promise that a strategy breaks; none if it is sound.

    Args:
        reference: a name, `package.module:Class`, or the path of a file.
        options: its options, if it needs any.
    """
    spec = StrategySpec(use=reference, options=dict(options or {}))
    try:
        strategy_of(STRATEGIES.find(reference), spec)
    except PluginError as error:
        return [str(error)]
    return asyncio.run(_examined(spec))


async def _examined(spec: StrategySpec) -> list[str]:
    try:
        async with asyncio.timeout(PATIENCE_S):
            if told := await _plays(spec):
                return told  # the rest would say the same again
            return [*await _keeps_budgets(spec), *await _shows_failures(spec), *await _can_be_cancelled(spec)]
    except TimeoutError:
        return [f"it was not over after {PATIENCE_S:g} s"]


def _world(spec: StrategySpec, **troubles: Any) -> _World:
    """Return a world of the kind that the strategy is for."""
    return _World(seats=("x", "o") if STRATEGIES.find(spec.use).facts.games else (), **troubles)


async def _played(world: _World, spec: StrategySpec, budget: Budget | None = None) -> list[Trajectory]:
    group = GroupRequest(
        run_id="check", group_id="g", task=OpenSession(env="steps", task_index=0), num_samples=NUM_SAMPLES,
        strategy=spec, sampling=Sampling(seed=7), limits=_LIMITS, budget=budget or Budget(),
        evaluator=EvaluatorSpec.model_validate({"goal": {}}),
    )  # fmt: skip
    parts = cast("Any", world)
    player = Player(
        parts, cast("Any", _Chat()), parts, parts, Formats(), max_episodes=64, plugins=(spec.use,), evaluator=parts
    )
    played: list[Trajectory] = []

    async def keep(trajectories: list[Trajectory]) -> None:
        played.extend(trajectories)

    await player.play(group, group.wanted, keep)
    return sorted(played, key=lambda trajectory: trajectory.sample)


async def _plays(spec: StrategySpec) -> list[str]:
    world, again = _world(spec), _world(spec)
    played, repeated = await _played(world, spec), await _played(again, spec)
    if errors := {str(trajectory.error) for trajectory in played if not trajectory.status.trainable}:
        return [f"it fails without a reason: {error}" for error in sorted(errors)]
    told = [*_left_open(world, "it has played")]
    if [t.sample for t in played] != list(range(len(played))):
        told.append(f"its samples are numbered {[t.sample for t in played]}")
    if [_substance(t) for t in played] != [_substance(t) for t in repeated]:
        told.append("with the same seed it plays other episodes: what it draws must come from the seed of the group")
    if any(not _was_sampled(world, trajectory) for trajectory in played if not trajectory.by_expert):
        told.append("it records a reply that the policy did not give to the tokens before it")
    leading = {(turn.node, turn.response_token_ids) for trajectory in played for turn in trajectory.turns if turn.node}
    counts = Counter(node for node, _ in leading)
    return told + [f"{count} different turns lead to node {node}" for node, count in counts.items() if count > 1]


def _was_sampled(world: _World, trajectory: Trajectory) -> bool:
    for turns in trajectory.sequences():
        context: tuple[int, ...] = ()
        for turn in turns:
            context += turn.prompt_token_ids
            if (context, turn.response_token_ids) not in world.sampled:
                return False
            context += turn.response_token_ids
    return True


def _substance(trajectory: Trajectory) -> object:
    turns = [(turn.node, turn.parent, turn.response_token_ids) for turn in trajectory.turns]
    return trajectory.trajectory_id, trajectory.group_size, trajectory.selected, turns


async def _keeps_budgets(spec: StrategySpec) -> list[str]:
    told = []
    for budget in _BUDGETS:
        world = _world(spec)
        played = await _played(world, spec, budget)
        ((name, limit),) = budget.model_dump(exclude_none=True).items()
        if world.used[name] > limit:
            told.append(f"it uses {world.used[name]} {name}, and its budget is {limit}")
        errors = {str(trajectory.error) for trajectory in played if not trajectory.status.trainable}
        # An episode that the budget did not let begin cannot be exported.
        told += [
            f"it fails with a budget of {limit} {name}: {error}" for error in sorted(errors) if NOT_BEGUN not in error
        ]
        told += _left_open(world, f"a budget of {limit} {name} was spent")
    return told


async def _shows_failures(spec: StrategySpec) -> list[str]:
    told = []
    for step in (1, 4):
        world = _world(spec, fails_at=step)
        played = await _played(world, spec)
        if world.used["env_steps"] >= step and all(trajectory.status.trainable for trajectory in played):
            told.append(f"step {step} fails, and it says nothing of that")
        told += _left_open(world, f"step {step} has failed")
    return told


async def _can_be_cancelled(spec: StrategySpec) -> list[str]:
    world = _world(spec, hangs=True)
    playing = asyncio.create_task(_played(world, spec))
    await _until(lambda: playing.done() or world.used["env_steps"] > 0)
    for _ in range(20):  # side by side, others come as far
        await asyncio.sleep(0)
    cancelled_at = asyncio.get_running_loop().time()
    playing.cancel()
    await asyncio.wait({playing})
    seconds = asyncio.get_running_loop().time() - cancelled_at
    told = [f"it goes on for {seconds:.1f} s when it is cancelled"] if seconds >= _PROMPT_S else []
    return told + _left_open(world, "it was cancelled")


async def _until(happened: Callable[[], bool]) -> None:
    while not happened():  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.001)


def _left_open(world: _World, when: str) -> list[str]:
    return [f"{len(world.open_ids)} sessions are open when {when}"] if world.open_ids else []
