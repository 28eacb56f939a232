"""Episodes of calls and thoughts as the chat template has them: what is recorded, shown and learned."""

from collections.abc import Sequence
from typing import Any

import pytest
from gymfleet_contracts.reply_format import FormatSection
from gymfleet_contracts.rollout import (
    EpisodeLimits,
    GroupRequest,
    Sampling,
    StrategySpec,
    TemplateOptions,
)
from gymfleet_contracts.session import OpenSession
from gymfleet_contracts.trajectory import ReplyEnd, Reward, ScoredTrajectory, Status, Trajectory, sampled_by
from gymfleet_kit.chat.image_reader import PlacedImage
from gymfleet_kit.chat.tokens import ChatTokens
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.inference.base import Generation
from gymfleet_rollout.player import Player
from gymfleet_trainer.model.batching import sequences_from_trajectory
from gymfleet_trainer.model.scratch import CHAT_TEMPLATES, MARKERS

from tests.models import build_tokenizer, model_tokenizer
from tests.unit.rollout.test_episode import SPEC, Door, ScriptedPolicy

NATIVE = FormatSection.model_validate({"use": "tool_call", "style": "template"})
# Shows the thoughts of the last reply alone, as most templates of thinking models do.
FORGETFUL = CHAT_TEMPLATES["tools"].replace(
    "(message.reasoning_content or '')",
    "(message.reasoning_content or '' if loop.index0 == messages | length - 2 else '')",
)
assert CHAT_TEMPLATES["tools"] != FORGETFUL


def chat_of(template: str) -> ChatTokens:
    tokenizer = build_tokenizer(chat_template=template)
    tokenizer.add_tokens(list(MARKERS["tools"]))
    return ChatTokens(model_tokenizer(tokenizer))


class Policy(ScriptedPolicy):
    """Samples given texts, each ended by the token of its kind."""

    def __init__(self, chat: ChatTokens, *replies: str) -> None:
        super().__init__(*replies)
        self.chat = chat
        self.contexts: list[list[int]] = []
        self.left: list[int] = []
        """Of a reply that was stopped on the way."""

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop_token_ids: tuple[int, ...],
        images: Sequence[PlacedImage] = (),
    ) -> Generation:
        self.contexts.append(list(prompt_token_ids))
        self.calls.append((tuple(prompt_token_ids), max_tokens, sampling))
        if not self.left:
            self.left = [*self.chat._tokenizer.encode(str(self.replies.pop(0))), self.chat.turn_end_id]
        ids: list[int] = []
        while self.left and len(ids) < max_tokens and not (ids and ids[-1] in stop_token_ids):
            ids.append(self.left.pop(0))
        stopped = ids[-1] in stop_token_ids
        if not stopped and self.chat.read(ids).reply.reasoning:
            self.left = []
        spans = sampled_by(3 + len(self.calls) // 2, len(ids))
        return Generation(tuple(ids), (-0.5,) * len(ids), "stop" if stopped else "length", spans)


async def played(template: str, *replies: str, door: Door | None = None, **options: Any) -> tuple[Trajectory, Policy]:
    chat = chat_of(template)
    policy = Policy(chat, *replies)

    async def environments(_: str) -> Any:
        return SPEC

    class World:
        spec = staticmethod(environments)

    player = Player(policy, chat, door or Door(), World(), Formats(), max_episodes=4)  # type: ignore[arg-type]
    group = GroupRequest(
        run_id="run", group_id="g", task=OpenSession(env="door", task_index=0), num_samples=1, format=NATIVE,
        limits=EpisodeLimits(max_attempts=1), template=TemplateOptions(**options),
        strategy=StrategySpec(use="expert" if not replies else "independent"),
    )  # fmt: skip
    found: list[Trajectory] = []

    async def deliver(trajectories: list[Trajectory]) -> None:
        found.extend(trajectories)

    await player.play(group, [0], deliver)
    return found[0], policy


def call(action: str, thought: str = "hmm") -> str:
    return f"{thought}</think><tool_call>act<arg_key>action<arg_value>{action}</tool_call>"


def trained(chat: ChatTokens, trajectory: Trajectory) -> list[tuple[str, str]]:
    """Each training sequence as text: what the policy was shown, and of it what it learns."""
    rewards = tuple((0.0,) * len(turn.response_token_ids) for turn in trajectory.turns)
    reward = Reward(total=0.0, components={}, allocation="last", token_rewards=rewards, scorers={})
    rows = sequences_from_trajectory(ScoredTrajectory(trajectory=trajectory, reward=reward))
    decode = chat._tokenizer.decode
    return [
        (decode(list(row.token_ids)), decode([t for t, on in zip(row.token_ids, row.loss_mask, strict=True) if on]))
        for row in rows
    ]


async def test_a_call_is_an_action_and_what_answers_it_is_a_tools_message() -> None:
    trajectory, policy = await played(CHAT_TEMPLATES["tools"], call("go left"), call("open", "now"))

    assert trajectory.status is Status.COMPLETED
    assert [turn.action for turn in trajectory.turns] == ["go left", "open"]
    assert [turn.thought for turn in trajectory.turns] == ["hmm", "now"]
    assert all(turn.format_valid for turn in trajectory.turns)
    shown = policy.chat._tokenizer.decode(policy.contexts[1])
    assert shown.startswith("<|im_start|>system\nact(action): Take one action")
    assert (
        f"{call('go left')}<|im_end|>\n<|im_start|>tool\nYou did go left.<|im_end|>\n<|im_start|>assistant\n<think>"
        in shown
    )
    [(text, learned)] = trained(policy.chat, trajectory)
    assert learned == f"{call('go left')}<|im_end|>{call('open', 'now')}<|im_end|>"
    assert text.startswith("<|im_start|>system")


async def test_thoughts_are_counted_apart() -> None:
    trajectory, policy = await played(CHAT_TEMPLATES["tools"], call("open", "a b c"))

    [turn] = trajectory.turns
    assert turn.num_reasoning_tokens == len(policy.chat._tokenizer.encode("a b c</think>"))
    assert turn.num_reasoning_tokens < len(turn.response_token_ids)


async def test_thoughts_have_a_limit_of_their_own() -> None:
    door = Door()
    short, long = call("open", "hm"), call("open", "one by one by one by one")
    kept, policy = await played(CHAT_TEMPLATES["tools"], short, thinking="on", max_reasoning_tokens=12)
    cut, _ = await played(CHAT_TEMPLATES["tools"], long, short, door=door, thinking="on", max_reasoning_tokens=12)

    assert [turn.text for turn in kept.turns] == [short]
    assert [span.version for span in kept.turns[0].policy_versions] == [3, 4], "sampled in two parts"
    assert kept.turns[0].response_token_ids == (*policy.chat._tokenizer.encode(short), policy.chat.turn_end_id)
    assert [len(prompt) - len(policy.contexts[0]) for prompt in policy.contexts] == [
        0, kept.turns[0].num_reasoning_tokens,
    ]  # fmt: skip
    first = cut.turns[0]
    assert (first.action, first.reply_end, len(first.response_token_ids)) == (None, ReplyEnd.LENGTH, 12)
    assert first.num_reasoning_tokens == 12
    assert [action for _, _, action in door.actions] == ["open"], "of the second turn"


async def test_a_reply_that_thinks_nothing_is_not_cut_at_the_limit_of_thoughts() -> None:
    not_begun = CHAT_TEMPLATES["tools"].replace("assistant\\n<think>'", "assistant\\n'")
    assert not_begun != CHAT_TEMPLATES["tools"]
    reply = "<tool_call>act<arg_key>action<arg_value>open</tool_call>"
    trajectory, policy = await played(not_begun, reply, max_reasoning_tokens=2)

    [turn] = trajectory.turns
    assert (turn.text, turn.action, turn.num_reasoning_tokens) == (reply, "open", 0)
    assert len(policy.calls) == 2


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param("never ended", id="thoughts without an end"),
        pytest.param("x</think>open", id="no call"),
        pytest.param(call("open") + "<tool_call>act<arg_key>action<arg_value>open</tool_call>", id="two calls"),
        pytest.param("x</think><tool_call>act<arg_key>action<arg_value>open", id="half a call"),
        pytest.param("x</think><tool_call>jump<arg_key>action<arg_value>open</tool_call>", id="another function"),
        pytest.param("x</think><tool_call>act<arg_key>act<arg_value>open</tool_call>", id="another argument"),
    ],
)
async def test_what_is_no_call_is_no_action(reply: str) -> None:
    door = Door()
    trajectory, _ = await played(CHAT_TEMPLATES["tools"], reply, call("open"), door=door)

    assert not trajectory.turns[0].format_valid
    assert [action for _, _, action in door.actions] == ["open"], "of the second turn"
    assert trajectory.turns[0].action is None


async def test_contexts_are_replaced_where_the_template_forgets_thoughts() -> None:
    replies = [call("go left", "alpha"), call("go right", "beta"), call("open", "three")]
    kept, policy = await played(FORGETFUL, *replies, context="continued")
    replaced, other = await played(FORGETFUL, *replies, context="replaced")

    assert [turn.context for turn in kept.turns] == ["continued"] * 3
    assert [turn.context for turn in replaced.turns] == ["continued", "continued", "replaced"]
    assert "alpha" in policy.chat._tokenizer.decode(policy.contexts[2])
    last = other.chat._tokenizer.decode(other.contexts[2])
    assert "alpha" not in last
    assert "beta" in last
    assert [learned for _, learned in trained(other.chat, replaced)] == [
        "".join(f"{reply}<|im_end|>" for reply in replies[:2]), f"{replies[2]}<|im_end|>",
    ]  # fmt: skip
    assert trained(other.chat, replaced)[1][0] == last + f"{replies[2]}<|im_end|>"


async def test_thoughts_can_be_dropped() -> None:
    replies = [call("go left", "alpha"), call("open", "beta")]
    trajectory, policy = await played(CHAT_TEMPLATES["tools"], *replies, context="replaced", reasoning="dropped")

    assert [turn.context for turn in trajectory.turns] == ["continued", "replaced"]
    assert "alpha" not in policy.chat._tokenizer.decode(policy.contexts[1])
    assert "go left" in policy.chat._tokenizer.decode(policy.contexts[1])


@pytest.mark.parametrize(("thinking", "expected"), [("on", "I know</think><tool_call>"), ("off", "I know<tool_call>")])
async def test_an_expert_thinks_where_the_template_has_a_place_for_it(thinking: str, expected: str) -> None:
    trajectory, policy = await played(CHAT_TEMPLATES["tools"], thinking=thinking)

    assert trajectory.status is Status.COMPLETED, trajectory.error
    assert [turn.action for turn in trajectory.turns] == ["go left", "open"]
    assert all(turn.text.startswith(expected) for turn in trajectory.turns)
    prompts = [policy.chat._tokenizer.decode(list(turn.prompt_token_ids)) for turn in trajectory.turns]
    assert all(prompt.endswith("<think>") == (thinking == "on") for prompt in prompts)


async def test_a_template_without_a_place_for_thoughts_is_refused_before_anything_is_played() -> None:
    door = Door()
    plain = CHAT_TEMPLATES["tools"].replace("<think>", "").replace("</think>", "")
    trajectory, _ = await played(plain, call("open"), door=door, thinking="on")

    assert trajectory.status is Status.POLICY_ERROR
    assert str(trajectory.error).startswith("RefusedTemplate: thinking cannot be turned on with this chat template")
    assert not door.opened


def test_dropping_wants_contexts_that_are_replaced() -> None:
    with pytest.raises(ValueError, match='give context = "replaced" with it'):
        TemplateOptions(reasoning="dropped")
