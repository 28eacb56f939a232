"""An episode as a conversation of observations and replies."""

from gymfleet_contracts.conversation import Conversation, ConversationTask, Message
from gymfleet_contracts.trajectory import ScoredTrajectory

from gymfleet_kit.data.converter import UnusableRecord

FAILED = "failed"
"""The label of an episode that did not solve its task."""
EXPLORED = "explored"
"""The label of an episode of a search that the search did not select."""


def conversation_of(scored: ScoredTrajectory) -> Conversation:
    """Return the conversation of an episode: observations are the user's, and the replies are learned from.

    The rules before the first observation are in an episode only as tokens, and not in the conversation. Raises
    `UnusableRecord` for an episode without replies, or one ended by the machinery: it says nothing about the policy.
    """
    episode = scored.trajectory
    if not episode.status.trainable:
        raise UnusableRecord(f"{episode.trajectory_id}: an episode with status {episode.status.value}")
    if not episode.turns:
        raise UnusableRecord(f"{episode.trajectory_id}: an episode without replies")
    said = ((("user", turn.observation), ("assistant", turn.text)) for turn in episode.turns)
    searched = any(turn.node is not None for turn in episode.turns)
    task = episode.task
    return Conversation(
        messages=tuple(Message(role=role, content=text) for pair in said for role, text in pair),  # type: ignore[arg-type]
        task=ConversationTask(env=task.env, split=task.split, task_id=task.task_id), success=episode.success,
        reward=scored.reward.total if scored.reward is not None else None, id=episode.trajectory_id,
        labels=(
            *((FAILED,) if not episode.success else ()), *((EXPLORED,) if searched and not episode.selected else ()),
        ),
    )  # fmt: skip
