"""Episodes against a scripted policy and a scripted environment: what is recorded, what ends them, what fails."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
from gymfleet_client.errors import (
    ActionTooLarge,
    DeadlinePassed,
    EnvironmentFailed,
    EnvironmentFull,
    ExpertUnavailable,
    ProblemError,
    QuotaExceeded,
    RateLimited,
    SessionLost,
    StepTimeout,
    TransportError,
    Unavailable,
    UnknownTask,
)
from gymfleet_contracts.formats.react import React
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.rollout import EpisodeLimits, GroupRequest, MessageRoles, Sampling, StrategySpec
from gymfleet_contracts.session import (
    Capabilities,
    EnvironmentSpec,
    ExpertMove,
    OpenSession,
    Session,
    StepResult,
    TaskRef,
)
from gymfleet_contracts.trajectory import FinishReason, ReplyEnd, Status, Trajectory, sampled_by
from gymfleet_kit.chat.image_reader import PlacedImage
from gymfleet_kit.chat.tokens import ChatTokens
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.inference.base import EngineDied, Generation, InferenceError
from gymfleet_rollout.player import Player
from pydantic import JsonValue

from tests.models import CHATML, build_tokenizer, model_tokenizer

CHAT = ChatTokens(model_tokenizer(build_tokenizer()))
SPEC = EnvironmentSpec(
    name="door", version="1", summary="", instructions="Open the door.", max_turns=9, levels=("easy",),
    default_level="easy", splits={"train": 5}, capabilities=Capabilities(deterministic=True), max_action_chars=20,
)  # fmt: skip
EXPERT = StrategySpec(use="expert")
LEFT = "Thought: left it is Action: go left"
OPEN = "Thought: here Action: open"


def failure(kind: type[ProblemError]) -> ProblemError:
    return kind(Problem(type=kind.type or "about:blank", title=kind.__name__, status=500, detail="as planned"))


class ScriptedPolicy:
    """Replies in order, the last one for ever; an exception is raised instead."""

    model = "scripted"
    live_version = 3
    caches = False
    """Whether every prompt is in the engine's prefix cache."""

    def __init__(self, *replies: str | Exception, max_model_len: int = 10_000) -> None:
        self.replies = list(replies)
        self.max_model_len = max_model_len
        self.calls: list[tuple[tuple[int, ...], int, Sampling]] = []

    def timeout(self, seconds: float) -> contextlib.AbstractAsyncContextManager[asyncio.Timeout]:
        return asyncio.timeout(seconds)

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop_token_ids: tuple[int, ...],
        images: Sequence[PlacedImage] = (),
    ) -> Generation:
        self.calls.append((tuple(prompt_token_ids), max_tokens, sampling))
        await asyncio.sleep(0)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        ids = CHAT.reply(reply)[:max_tokens]
        reason = "stop" if ids[-1] in stop_token_ids else "length"
        version = 3 + len(self.calls) // 2
        prefilled = 0 if self.caches else len(prompt_token_ids)
        return Generation(ids, tuple(-0.5 for _ in ids), reason, sampled_by(version, len(ids)), prefilled)  # type: ignore[arg-type]


class Door:
    """Sessions of an environment that `open` solves; `fail` scripts exceptions per call, in order."""

    def __init__(self, fail: dict[str, list[Exception | None]] | None = None, turn_limit: int = 99) -> None:
        self.fail = fail or {}
        self.turn_limit = turn_limit
        self.opened: list[OpenSession] = []
        self.closed: list[str] = []
        self.forked: list[tuple[str, int | None, str]] = []
        self.actions: list[tuple[str, int, str]] = []
        self.hang = asyncio.Event()

    def _maybe_fail(self, call: str) -> None:
        queue = self.fail.get(call)
        if queue and (error := queue.pop(0)) is not None:
            raise error

    async def open(self, request: OpenSession, *, timeout_s: float = 0) -> Session:
        self._maybe_fail("open")
        self.opened.append(request)
        task = TaskRef(env="door", split="train", level="easy", task_id="easy.train.0", seed=request.seed)
        return Session(session_id=f"s{len(self.opened)}", task=task, observation="A door.", lease_s=60, expires_in_s=60)

    async def fork(
        self, session_id: str, count: int = 1, *, index: int | None = None, timeout_s: float = 0
    ) -> list[Session]:
        self._maybe_fail("fork")
        task = TaskRef(env="door", split="train", level="easy", task_id="easy.train.0")
        children = [f"f{len(self.forked) + number}" for number in range(1, count + 1)]
        self.forked += [(session_id, index, child) for child in children]
        return [
            Session(session_id=child, task=task, observation="", index=index or 0, lease_s=60, expires_in_s=60)
            for child in children
        ]

    async def step(self, session_id: str, index: int, action: str, *, timeout_s: float = 0) -> StepResult:
        self._maybe_fail("step")
        if action == "hang":
            await self.hang.wait()
        self.actions.append((session_id, index, action))
        done = action == "open"
        return StepResult(
            index=index, observation=f"You did {action}.", reward=float(done), terminated=done,
            truncated=not done and index + 1 >= self.turn_limit, score=float(done), action_valid=action != "dance",
            info={"n": index},
        )  # fmt: skip

    async def close(self, session_id: str, *, timeout_s: float = 0) -> None:
        self.closed.append(session_id)
        self._maybe_fail("close")

    async def expert(self, session_id: str, *, index: int | None = None, timeout_s: float = 0) -> ExpertMove:
        self._maybe_fail("expert")
        return ExpertMove(thought="I know", action="open" if self.actions else "go left")


class Specs:
    async def spec(self, name: str) -> EnvironmentSpec:
        return SPEC


def group(**changes: Any) -> GroupRequest:
    fields = {"run_id": "run", "group_id": "g", "task": OpenSession(env="door", task_index=0), "num_samples": 2}
    return GroupRequest.model_validate({**fields, **changes})


def player(policy: ScriptedPolicy, door: Door, max_episodes: int = 8) -> Player:
    return Player(policy, CHAT, door, Specs(), Formats(), max_episodes=max_episodes)  # type: ignore[arg-type]


async def play(policy: ScriptedPolicy, door: Door, **changes: Any) -> Trajectory:
    return await play_one(player(policy, door), 1, **changes)


async def play_one(by: Player, sample: int, **changes: Any) -> Trajectory:
    played: list[Trajectory] = []

    async def deliver(trajectories: list[Trajectory]) -> None:
        played.extend(trajectories)

    await by.play(group(**changes), [sample], deliver)
    (trajectory,) = played
    return trajectory


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymfleet_rollout.player._RETRY_PAUSE_S", 0.0)
    monkeypatch.setattr("gymfleet_rollout.sessions._OPEN_PAUSE_S", 0.0)


# --- what is recorded


async def test_a_solved_episode(door: Door) -> None:
    policy = ScriptedPolicy(LEFT, OPEN)

    trajectory = await play(policy, door, task=OpenSession(env="door", task_id="easy.train.0", seed=5))

    assert trajectory.trajectory_id == "run/g/1"
    assert (trajectory.status, trajectory.finish_reason) == (Status.COMPLETED, FinishReason.TERMINATED)
    assert (trajectory.success, trajectory.score, trajectory.attempt) == (True, 1.0, 1)
    assert (trajectory.task.task_id, trajectory.task.seed) == ("easy.train.0", 5), "the environment's own words"
    assert (trajectory.policy.model, trajectory.policy.version_min, trajectory.policy.version_max) == ("scripted", 3, 4)
    assert (trajectory.format, trajectory.format_version) == ("react", 1)
    assert [turn.action for turn in trajectory.turns] == ["go left", "open"]
    assert [turn.observation for turn in trajectory.turns] == ["A door.", "You did go left."]
    assert trajectory.final_observation == "You did open."
    assert [turn.reward for turn in trajectory.turns] == [0.0, 1.0]
    assert [turn.info for turn in trajectory.turns] == [{"n": 0}, {"n": 1}]
    assert [turn.policy_versions for turn in trajectory.turns] == [
        sampled_by(version, len(CHAT.reply(reply))) for version, reply in ((3, LEFT), (4, OPEN))
    ]
    assert all(turn.format_valid and turn.action_valid for turn in trajectory.turns)
    assert trajectory.turns[0].thought == "left it is"
    assert door.closed == ["s1"]


async def test_the_engine_sees_exactly_the_recorded_tokens(door: Door) -> None:
    policy = ScriptedPolicy(LEFT, "no action here", OPEN)

    trajectory = await play(policy, door)

    seen: tuple[int, ...] = ()
    for turn, (prompt, _, _) in zip(trajectory.turns, policy.calls, strict=True):
        seen += turn.prompt_token_ids
        assert prompt == seen
        seen += turn.response_token_ids
        assert turn.response_logprobs is not None
        assert len(turn.response_logprobs) == len(turn.response_token_ids)
    head = CHAT._tokenizer.decode(trajectory.turns[0].prompt_token_ids)
    assert head == (
        f"<|im_start|>user\nOpen the door.\n\n{React.instructions}\n\nA door.<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_a_reply_without_an_action_is_answered_by_the_format(door: Door) -> None:
    trajectory = await play(ScriptedPolicy("hm", OPEN), door)

    first, second = trajectory.turns
    assert (first.action, first.format_valid, first.action_valid, first.reward) == (None, False, False, 0.0)
    assert second.observation == React.complaint
    assert door.actions == [("s1", 0, "open")], "the environment was not stepped"


async def test_an_action_that_is_too_long_is_not_sent(door: Door) -> None:
    trajectory = await play(ScriptedPolicy(f"Thought: x Action: {'y' * 21}", OPEN), door)

    assert not trajectory.turns[0].action_valid
    assert trajectory.turns[1].observation == "Invalid action: it has 21 characters, at most 20 are allowed."
    assert len(door.actions) == 1


async def test_an_action_that_the_server_finds_too_long_costs_a_turn() -> None:
    door = Door({"step": [failure(ActionTooLarge), None]})

    trajectory = await play(ScriptedPolicy(LEFT, OPEN), door)

    assert [turn.action_valid for turn in trajectory.turns] == [False, True]
    assert door.actions == [("s1", 0, "open")]


async def test_an_action_that_the_environment_does_not_understand(door: Door) -> None:
    trajectory = await play(ScriptedPolicy("Thought: x Action: dance", OPEN), door)

    assert [turn.action_valid for turn in trajectory.turns] == [False, True]
    assert [turn.format_valid for turn in trajectory.turns] == [True, True]


# --- what ends an episode


async def test_max_turns(door: Door) -> None:
    trajectory = await play(ScriptedPolicy(LEFT), door, limits=EpisodeLimits(max_turns=3))

    assert (trajectory.status, trajectory.finish_reason) == (Status.TRUNCATED, FinishReason.MAX_TURNS)
    assert (len(trajectory.turns), trajectory.success) == (3, False)
    assert trajectory.final_observation == "You did go left."


async def test_the_environments_own_turn_limit() -> None:
    trajectory = await play(ScriptedPolicy(LEFT), Door(turn_limit=2))

    assert (trajectory.status, trajectory.finish_reason) == (Status.TRUNCATED, FinishReason.ENV_TURN_LIMIT)
    assert [turn.truncated for turn in trajectory.turns] == [False, True]


@pytest.mark.parametrize("by", ["limits", "engine"])
async def test_the_context_is_never_exceeded(door: Door, by: str) -> None:
    length = 240
    policy = ScriptedPolicy(LEFT, max_model_len=length if by == "engine" else 10_000)
    limits = EpisodeLimits(max_context_tokens=length if by == "limits" else 10_000)

    trajectory = await play(policy, door, limits=limits)

    assert (trajectory.status, trajectory.finish_reason) == (Status.TRUNCATED, FinishReason.CONTEXT_LENGTH)
    assert all(len(prompt) + max_tokens <= length for prompt, max_tokens, _ in policy.calls)
    assert sum(len(t.prompt_token_ids) + len(t.response_token_ids) for t in trajectory.turns) <= length
    assert len(trajectory.turns) > 1


async def test_a_reply_that_was_cut_is_closed_in_the_next_prompt(door: Door) -> None:
    trajectory = await play(ScriptedPolicy(LEFT), door, limits=EpisodeLimits(max_response_tokens=4, max_turns=2))

    first, second = trajectory.turns
    assert len(first.response_token_ids) == 4
    assert CHAT.turn_end_id not in first.response_token_ids
    assert second.prompt_token_ids[0] == CHAT.turn_end_id


@pytest.mark.parametrize("cut_by", ["limits", "context"])
async def test_a_reply_that_was_cut_is_no_action(door: Door, cut_by: str) -> None:
    cut = "Thought: here Action: go left and then"
    num_prompt = len(CHAT.first("\n\n".join((SPEC.instructions, React.instructions, "A door."))))
    num_reply = len(CHAT.reply(cut)) - 1  # all of it but the token that would have ended it
    limits = (
        EpisodeLimits(max_response_tokens=num_reply, max_turns=1)
        if cut_by == "limits"
        else EpisodeLimits(max_context_tokens=num_prompt + num_reply, max_turns=1)
    )

    trajectory = await play(ScriptedPolicy(cut), door, limits=limits)

    turn = trajectory.turns[0]
    assert turn.text == cut
    assert (turn.reply_end, turn.action) == (ReplyEnd.LENGTH, None)
    assert (turn.format_valid, turn.action_valid, turn.reward) == (False, False, 0.0)
    assert door.actions == [], "half an action was not executed"
    assert trajectory.final_observation == React.complaint
    assert trajectory.status is Status.TRUNCATED, "it counts as a turn"


async def test_a_cut_reply_whose_action_stands_whole_is_executed(door: Door) -> None:
    whole = "Thought: here Action: open\nThought: and"
    limits = EpisodeLimits(max_response_tokens=len(CHAT.reply(whole)) - 1)

    trajectory = await play(ScriptedPolicy(whole), door, limits=limits)

    turn = trajectory.turns[0]
    assert (turn.reply_end, turn.action, turn.format_valid) == (ReplyEnd.LENGTH, "open", False)
    assert trajectory.status is Status.COMPLETED


async def test_a_reply_that_the_policy_ended_says_so(door: Door) -> None:
    trajectory = await play(ScriptedPolicy(OPEN), door)

    assert [turn.reply_end for turn in trajectory.turns] == [ReplyEnd.STOP]


async def test_an_episode_cut_by_its_turns_keeps_the_prompt_that_would_have_followed(door: Door) -> None:
    cut = await play(ScriptedPolicy(LEFT), door, limits=EpisodeLimits(max_turns=2))
    longer = await play(ScriptedPolicy(LEFT), Door(), limits=EpisodeLimits(max_turns=3))

    assert cut.final_prompt_token_ids == longer.turns[2].prompt_token_ids
    assert cut.final_observation == longer.turns[2].observation


async def test_an_episode_cut_by_its_context_keeps_the_prompt_that_did_not_fit(door: Door) -> None:
    cut = await play(ScriptedPolicy(LEFT), door, limits=EpisodeLimits(max_context_tokens=240))
    longer = await play(ScriptedPolicy(LEFT), Door(), limits=EpisodeLimits(max_turns=len(cut.turns) + 1))

    assert cut.finish_reason is FinishReason.CONTEXT_LENGTH
    following = longer.turns[len(cut.turns)].prompt_token_ids
    ended = CHAT.ended(cut.turns[-1].response_token_ids)
    assert cut.final_prompt_token_ids == (following if ended else (CHAT.turn_end_id, *following))


async def test_no_more_than_a_context_is_kept_of_a_prompt_that_did_not_fit(door: Door) -> None:
    class Talkative(Door):
        async def step(self, session_id: str, index: int, action: str, *, timeout_s: float = 0) -> StepResult:
            result = await super().step(session_id, index, action, timeout_s=timeout_s)
            return result.model_copy(update={"observation": "You see a wall. " * 1000})

    cut = await play(ScriptedPolicy(LEFT), Talkative(), limits=EpisodeLimits(max_context_tokens=240))

    assert (cut.finish_reason, len(cut.final_prompt_token_ids)) == (FinishReason.CONTEXT_LENGTH, 240)


@pytest.mark.parametrize("reply", [OPEN, LEFT], ids=["solved", "the environment's own limit"])
async def test_an_end_that_the_environment_made_has_no_prompt_behind_it(reply: str) -> None:
    trajectory = await play(ScriptedPolicy(reply), Door(turn_limit=2))

    assert trajectory.finish_reason in (FinishReason.TERMINATED, FinishReason.ENV_TURN_LIMIT)
    assert trajectory.final_prompt_token_ids == ()


async def test_a_first_prompt_that_does_not_fit_is_a_mistake_in_the_limits(door: Door) -> None:
    trajectory = await play(ScriptedPolicy(LEFT), door, limits=EpisodeLimits(max_context_tokens=20))

    assert (trajectory.status, trajectory.attempt, trajectory.turns) == (Status.POLICY_ERROR, 1, ())
    assert "raise limits.max_context_tokens" in str(trajectory.error)
    assert door.closed == ["s1"]


# --- failures of the machinery


@pytest.mark.parametrize(
    ("call", "error", "status"),
    [
        ("open", failure(EnvironmentFailed), Status.ENV_ERROR),
        ("step", TransportError("gone"), Status.ENV_ERROR),
        ("step", failure(EnvironmentFailed), Status.ENV_ERROR),
        ("step", failure(SessionLost), Status.ENV_ERROR),
        ("step", failure(StepTimeout), Status.TIMEOUT),
        ("step", DeadlinePassed("30 s"), Status.TIMEOUT),
    ],
)
async def test_a_failure_is_played_anew_and_never_a_reward(call: str, error: Exception, status: Status) -> None:
    door = Door({call: [error, error, error]})

    given_up = await play(ScriptedPolicy(OPEN), door)
    recovered = await play(ScriptedPolicy(OPEN), Door({call: [error, error]}))

    assert (given_up.status, given_up.finish_reason, given_up.attempt) == (status, FinishReason.ERROR, 3)
    assert (given_up.score, given_up.success) == (0.0, False)
    assert type(error).__name__ in str(given_up.error)
    assert len(door.closed) == len(door.opened), "every session is closed"
    assert (recovered.status, recovered.attempt) == (Status.COMPLETED, 3)


async def test_a_new_attempt_starts_from_nothing() -> None:
    door = Door({"step": [None, failure(EnvironmentFailed)]})

    trajectory = await play(ScriptedPolicy(LEFT, LEFT, OPEN), door)

    assert [turn.action for turn in trajectory.turns] == ["open"]
    assert [session for session, _, _ in door.actions] == ["s1", "s2"]


@pytest.mark.parametrize(
    "error",
    [
        failure(EnvironmentFull),
        failure(QuotaExceeded),
        failure(RateLimited),
        failure(Unavailable),
        TransportError("refused"),
    ],
)
async def test_a_full_or_restarting_environment_is_waited_for(error: Exception) -> None:
    busy = Door({"open": [error] * 5})

    trajectory = await play(ScriptedPolicy(OPEN), busy)

    assert (trajectory.status, trajectory.attempt) == (Status.COMPLETED, 1)


async def test_an_open_comes_again_when_the_gateway_says(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        slept.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", note)
    full = EnvironmentFull(Problem(title="full", status=429), retry_after_s=7.0)

    trajectory = await play(ScriptedPolicy(OPEN), Door({"open": [full, full]}))

    assert trajectory.status is Status.COMPLETED
    assert [7.0 <= seconds <= 7.7 for seconds in slept[:2]] == [True, True]


async def test_an_unknown_task_is_not_tried_again() -> None:
    door = Door({"open": [failure(UnknownTask)] * 3})

    trajectory = await play(ScriptedPolicy(OPEN), door, task=OpenSession(env="door", task_index=7))

    assert (trajectory.status, trajectory.attempt) == (Status.ENV_ERROR, 1)
    assert trajectory.task.task_id == "#7"


async def test_an_unknown_format_is_named(door: Door) -> None:
    trajectory = await play(ScriptedPolicy(OPEN), door, format={"use": "morse"})

    assert (trajectory.status, trajectory.attempt) == (Status.POLICY_ERROR, 1)
    assert "UnknownFormat: there is no format 'morse'; known: agentbench_kg, agentbench_os, " in str(trajectory.error)


async def test_an_engine_that_fails_a_request_is_a_policy_error(door: Door) -> None:
    trajectory = await play(ScriptedPolicy(InferenceError("temperature must be in [0, 2]")), door)

    assert (trajectory.status, trajectory.attempt) == (Status.POLICY_ERROR, 3)
    assert len(door.closed) == 3


@pytest.mark.parametrize(
    ("generation", "words"),
    [
        pytest.param(
            Generation((1, 2, 3), (-0.5,), "stop", sampled_by(3, 3)), "3 tokens and 1 log-probabilities", id="too few"
        ),
        pytest.param(Generation((1,), (float("nan"),), "stop", sampled_by(3, 1)), "not finite", id="no number"),
    ],
)
async def test_a_reply_that_cannot_be_trained_on_is_a_policy_error(
    door: Door, generation: Generation, words: str
) -> None:
    policy = ScriptedPolicy(OPEN)

    async def generate(*_: Any, **__: Any) -> Generation:
        return generation

    policy.generate = generate  # type: ignore[method-assign]

    trajectory = await play(policy, door)

    assert (trajectory.status, trajectory.attempt, trajectory.turns) == (Status.POLICY_ERROR, 3, ())
    assert words in str(trajectory.error)


async def test_a_dead_engine_makes_no_trajectory(door: Door) -> None:
    with pytest.raises(EngineDied):
        await play(ScriptedPolicy(EngineDied("gone")), door)

    assert door.closed == ["s1"]


@pytest.mark.parametrize(
    ("limits", "words"),
    [({"episode_timeout_s": 0.05}, "episode_timeout_s"), ({"generate_timeout_s": 0.05}, "generate_timeout_s")],
)
async def test_what_hangs_is_a_timeout(limits: dict[str, Any], words: str, door: Door) -> None:
    policy = ScriptedPolicy(OPEN)
    never = asyncio.Event()

    async def generate(*_: Any, **__: Any) -> Generation:
        await never.wait()
        raise AssertionError

    policy.generate = generate  # type: ignore[method-assign]

    trajectory = await play(policy, door, limits=EpisodeLimits(max_attempts=2, **limits))

    assert (trajectory.status, trajectory.attempt) == (Status.TIMEOUT, 2)
    assert words in str(trajectory.error)
    assert len(door.closed) == len(door.opened) == 2


async def test_a_cancelled_episode_closes_its_session(door: Door) -> None:
    task = asyncio.create_task(play(ScriptedPolicy("Thought: x Action: hang"), door))
    async with asyncio.timeout(5):
        while not door.opened:  # noqa: ASYNC110 - the script has no event for it
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert door.closed == ["s1"]


async def test_a_session_that_cannot_be_closed_does_not_spoil_the_episode() -> None:
    trajectory = await play(ScriptedPolicy(OPEN), Door({"close": [TransportError("gone")]}))

    assert trajectory.status is Status.COMPLETED


# --- sampling, experts, bounds


async def test_a_groups_seed_gives_each_sample_and_turn_its_own(door: Door) -> None:
    async def seeds(sample: int) -> list[int | None]:
        policy = ScriptedPolicy(LEFT, OPEN)
        await play_one(player(policy, Door()), sample, sampling=Sampling(seed=11, temperature=0.7))
        assert {call[2].temperature for call in policy.calls} == {0.7}
        return [call[2].seed for call in policy.calls]

    first, again, other = await seeds(0), await seeds(0), await seeds(1)

    assert first == again
    assert len({*first, *other}) == 4


async def test_a_sample_that_is_played_again_draws_other_numbers(door: Door) -> None:
    seeds: dict[int, set[int | None]] = {}
    for replay in (0, 1, 1):
        policy = ScriptedPolicy(OPEN)
        trajectory = await play(policy, Door(), sampling=Sampling(seed=11), samples=(1,), replay=replay)
        assert (trajectory.replay, trajectory.trajectory_id) == (replay, "run/g/1")
        seeds.setdefault(replay, set()).add(policy.calls[0][2].seed)

    assert [len(found) for found in seeds.values()] == [1, 1]
    assert seeds[0] != seeds[1]


async def test_instructions_can_be_the_systems_and_observations_a_tools(door: Door) -> None:
    roles = MessageRoles(instructions="system", observations="tool")

    trajectory = await play(ScriptedPolicy(LEFT, OPEN), door, roles=roles)

    first, second = (CHAT._tokenizer.decode(turn.prompt_token_ids) for turn in trajectory.turns)
    assert first.startswith(f"<|im_start|>system\nOpen the door.\n\n{React.instructions}<|im_end|>")
    assert "<|im_start|>user\nA door.<|im_end|>" in first
    assert "<|im_start|>tool\nYou did go left.<|im_end|>" in second


async def test_a_role_that_the_chat_template_refuses_fails_before_anything_is_played(door: Door) -> None:
    deaf = CHATML.replace("message in messages %}", "message in messages if message['role'] != 'tool' %}", 1)
    chat = ChatTokens(model_tokenizer(build_tokenizer(chat_template=deaf)))
    refusing = Player(ScriptedPolicy(OPEN), chat, door, Specs(), Formats(), max_episodes=1)  # type: ignore[arg-type]

    trajectory = await play_one(refusing, 1, roles=MessageRoles(observations="tool"))

    assert (trajectory.status, door.opened) == (Status.POLICY_ERROR, [])
    assert str(trajectory.error).startswith("RefusedTemplate: the chat template takes no messages of the role 'tool'")


async def test_the_expert_writes_what_the_policy_would_have_to(door: Door) -> None:
    policy = ScriptedPolicy(InferenceError("must not be asked"))

    trajectory = await play(policy, door, strategy=EXPERT, purpose="demonstration")

    assert (trajectory.status, trajectory.success, trajectory.strategy) == (Status.COMPLETED, True, "expert")
    assert (trajectory.policy.model, trajectory.purpose) == ("expert", "demonstration")
    first = trajectory.turns[0]
    assert first.text == "Thought: I know Action: go left"
    assert (first.response_logprobs, first.policy_versions) == (None, ())
    assert first.response_token_ids == CHAT.reply(first.text)
    assert all(turn.format_valid for turn in trajectory.turns)


async def test_an_expert_that_is_stuck_truncates() -> None:
    stuck = await play(
        ScriptedPolicy(OPEN), Door({"expert": [None, failure(ExpertUnavailable)]}, turn_limit=99), strategy=EXPERT
    )
    never = Door({"expert": [failure(ExpertUnavailable)] * 3})
    absent = await play(ScriptedPolicy(OPEN), never, strategy=EXPERT)

    assert (stuck.status, stuck.finish_reason, len(stuck.turns)) == (Status.TRUNCATED, FinishReason.EXPERT_STUCK, 1)
    assert (absent.status, absent.attempt) == (Status.ENV_ERROR, 1), "no expert at all is a mistake in the request"


async def test_an_expert_whose_first_reply_has_no_room_says_what_to_raise(door: Door) -> None:
    limits = EpisodeLimits(max_response_tokens=2)

    episode = await play(ScriptedPolicy(OPEN), door, strategy=EXPERT, limits=limits)

    assert (episode.status, episode.attempt, door.actions) == (Status.POLICY_ERROR, 1, [])
    assert "the expert's first reply is too long for limits.max_response_tokens" in str(episode.error)


def script(*moves: tuple[str, str]) -> StrategySpec:
    return StrategySpec(use="script", options={"moves": [{"thought": why, "action": what} for why, what in moves]})


async def test_a_script_is_written_as_the_expert_would_write_it(door: Door) -> None:
    expert = await play(ScriptedPolicy(OPEN), Door(), strategy=EXPERT)
    moves = [(turn.thought, str(turn.action)) for turn in expert.turns]

    again = await play(ScriptedPolicy(InferenceError("must not be asked")), door, strategy=script(*moves))

    def tokens(episode: Trajectory) -> list[object]:
        return [(turn.prompt_token_ids, turn.response_token_ids, turn.response_logprobs) for turn in episode.turns]

    assert len(moves) > 1
    assert tokens(again) == tokens(expert)
    assert (again.status, again.success, again.strategy, again.by_expert) == (Status.COMPLETED, True, "script", True)


async def test_a_turn_has_the_role_of_its_move(door: Door) -> None:
    moves: list[JsonValue] = [{"action": "go left", "role": "mistake"}, {"action": "open"}]

    episode = await play(ScriptedPolicy(OPEN), door, strategy=StrategySpec(use="script", options={"moves": moves}))

    assert [turn.role for turn in episode.turns] == ["mistake", "agent"]


async def test_a_script_ends_with_its_last_move_or_with_the_episode(door: Door) -> None:
    short = await play(ScriptedPolicy(OPEN), door, strategy=script(("I go", "go left")))
    long = await play(ScriptedPolicy(OPEN), door, strategy=script(*[("I open", "open")] * 3))
    wordy = await play(ScriptedPolicy(OPEN), door, strategy=script(("I go", "go left"), ("word " * 2000, "open")))

    assert (short.status, short.finish_reason, short.success) == (Status.TRUNCATED, FinishReason.STOPPED, False)
    assert (long.finish_reason, len(long.turns), long.success) == (FinishReason.TERMINATED, 1, True)
    assert (wordy.finish_reason, len(wordy.turns), wordy.success) == (FinishReason.EXPERT_STUCK, 1, False)


async def test_a_replay_whose_environment_fails_is_no_replay_that_did_not_succeed() -> None:
    broken = Door({"step": [failure(EnvironmentFailed)] * 9})

    episode = await play(ScriptedPolicy(OPEN), broken, strategy=script(("I open", "open")))

    assert (episode.status, episode.success) == (Status.ENV_ERROR, False)


@pytest.mark.parametrize(
    "move", [{"thought": "x"}, {"action": ""}, {"action": " \n"}, {"action": "x", "why": "y"}, {"action": 3}, "go left"]
)
async def test_a_script_of_what_are_no_moves_is_refused(door: Door, move: JsonValue) -> None:
    episode = await play(ScriptedPolicy(OPEN), door, strategy=StrategySpec(use="script", options={"moves": [move]}))

    assert episode.status is Status.POLICY_ERROR
    assert "rollout.strategy.moves.0" in str(episode.error)


async def test_no_more_than_max_episodes_at_once(door: Door) -> None:
    policy = ScriptedPolicy("Thought: x Action: hang")
    three = player(policy, door, max_episodes=3)
    tasks = [asyncio.create_task(play_one(three, sample)) for sample in range(7)]
    await asyncio.sleep(0.05)

    num_open = len(door.opened) - len(door.closed)
    policy.replies = [OPEN]
    door.hang.set()
    trajectories = await asyncio.gather(*tasks)

    assert num_open == 3
    assert [trajectory.sample for trajectory in trajectories] == list(range(7))


@pytest.fixture
def door() -> Door:
    return Door()
