"""Records of every shape, with which the conformance suites test plug-ins."""

from collections.abc import Sequence
from typing import Final

from gymfleet_contracts.conversation import Conversation, ConversationTask, MadeCall, Message, Record
from gymfleet_contracts.data_records import Preference, RewardRule, TaskRow
from gymfleet_contracts.session import TaskRef, Tool
from gymfleet_contracts.trajectory import (
    FinishReason,
    PolicyRef,
    Reward,
    ScoredTrajectory,
    Status,
    Trajectory,
    Turn,
    sampled_by,
    trajectory_id,
)

_THOUGHT: Final = "There is nothing else in this room. I go on."


def records() -> list[Record]:
    """Return records for filters: short, long and empty ones, solved and not, with and without a reward."""
    return [*episodes(), *conversations()]


def episodes() -> list[ScoredTrajectory]:
    """Return episodes: some have actions that the environment did not understand, or replies without an action."""
    return [
        _episode(0, ["look", "go left", "take key"], success=True),
        _episode(1, ["go left", "!jump", None, "!jump", "take key"], success=True),
        _episode(2, ["!jump"], success=False),
        _episode(3, ["look"] * 30, success=False),
        _episode(4, [], success=False, failed=True),
        _episode(0, ["look", "go left", "take key"], success=True),
    ]


def conversations() -> list[Conversation]:
    """Return conversations: one has messages that are not learned from, one is about a task."""
    return [
        _conversation(("user", "Is it raining?"), ("assistant", "No.")),
        _conversation(("system", ""), ("user", "a"), ("assistant", ""), ("tool", "b"), ("assistant", "é \U0001f511")),
        _conversation(*[("user", "again"), ("assistant", "and again " * 100)] * 20),
        Conversation(
            messages=(
                Message(role="user", content="rules"), Message(role="assistant", content="OK.", learned=False),
                Message(role="user", content="goal"), Message(role="assistant", content="go left"),
            ),
            task=ConversationTask(env="maze", task_id="1"), success=True, reward=0.5, source="sample, line 4",
        ),
        _conversation(("user", "Is it raining?"), ("assistant", "No.")),
        Conversation(
            messages=(
                Message(role="user", content="Is it raining in Ky\u014dto?"),
                Message(
                    role="assistant", content="", reasoning="I look.",
                    tool_calls=(MadeCall(name="weather", arguments={"city": "Ky\u014dto", "days": [1]}, id="c1"),),
                ),
                Message(role="tool", content="no", tool_call_id="c1", name="weather"),
                Message(role="assistant", content="It is dry."),
            ),
            tools=(Tool(name="weather", description="Looks.", parameters={"type": "object", "properties": {}}),),
        ),
    ]  # fmt: skip


def preferences() -> list[Preference]:
    """Return preferences: one has several messages, and is about a task."""
    asked = Message(role="user", content="?")
    yes, no = Message(role="assistant", content="yes"), Message(role="assistant", content="")
    return [
        Preference(prompt=(asked,), chosen=(yes,), rejected=(no,)),
        Preference(
            prompt=(Message(role="system", content="rules"), asked), chosen=(yes, asked, no), rejected=(no,),
            task=ConversationTask(env="maze", task_id="1"), source="sample, line 5",
        ),
    ]  # fmt: skip


def rows() -> list[TaskRow]:
    """Return tasks without replies: one with a gold answer, and one of an environment."""
    asked = Message(role="user", content="How much is 1 + 1?")
    return [
        TaskRow(
            prompt=(asked,), data_source="sums", ability="math", reward_model=RewardRule(ground_truth={"sum": [2]}),
            extra_info={"index": 0, "split": "train"},
        ),
        TaskRow(task=ConversationTask(env="maze", split="test", task_id="1"), source="sample, line 6"),
    ]  # fmt: skip


def _conversation(*messages: tuple[str, str]) -> Conversation:
    return Conversation.model_validate({"messages": [{"role": role, "content": text} for role, text in messages]})


def _episode(task: int, actions: Sequence[str | None], *, success: bool, failed: bool = False) -> ScoredTrajectory:
    """Return an episode; an action that begins with `!` is one that was not understood."""
    group_id = f"sample.t{task:06d}"
    turns = tuple(_turn(place, action) for place, action in enumerate(actions))
    status = Status.ENV_ERROR if failed else Status.COMPLETED
    trajectory = Trajectory(
        trajectory_id=trajectory_id("sample", group_id, 0), run_id="sample", group_id=group_id, sample=0,
        purpose="collect", task=TaskRef(env="maze", split="train", level="small", task_id=str(task)),
        policy=PolicyRef(model="sample", version_min=1, version_max=1), format="react", format_version=1, turns=turns,
        status=status, success=success, score=float(success),
        finish_reason=FinishReason.ERROR if failed else FinishReason.TERMINATED,
        error="the server went away" if failed else None,
    )  # fmt: skip
    token_rewards = tuple((0.0,) * len(turn.response_token_ids) for turn in turns)
    reward = Reward(
        total=float(success), components={}, allocation="last_token", token_rewards=token_rewards, scorers={}
    )
    return ScoredTrajectory(trajectory=trajectory, reward=None if failed else reward)


def _turn(place: int, action: str | None) -> Turn:
    valid = action is not None and not action.startswith("!")
    return Turn(
        observation=f"You are in room {place}.", prompt_token_ids=(1, 2), response_token_ids=(3,),
        response_logprobs=(-0.5,), policy_versions=sampled_by(1, 1),
        text="Hm." if action is None else f"Thought: {_THOUGHT}\nAction: {action}", thought=_THOUGHT, action=action,
        format_valid=action is not None, action_valid=valid,
    )  # fmt: skip
