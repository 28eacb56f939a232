"""Moves replayed in an environment, as a conversation to learn from."""

from collections.abc import Sequence

from gymfleet_client.sync import SyncGatewayClient
from gymfleet_contracts.conversation import Conversation, ConversationTask, Message
from gymfleet_contracts.rollout import Move
from gymfleet_contracts.session import OpenSession, TaskRef
from gymfleet_contracts.trajectory import AGENT
from gymfleet_kit.formats import CheckedFormat


def replayed(
    client: SyncGatewayClient, task: TaskRef, moves: Sequence[Move], reply_format: CheckedFormat, instructions: str
) -> Conversation | None:
    """Play moves in a new session of a task, up to its end, and return the conversation.

    Messages of roles other than the agent's are not learned from; returns None if there are no others before the end.
    Raises the client's errors.
    """
    opened = OpenSession(env=task.env, split=task.split, level=task.level, task_id=task.task_id, seed=task.seed)
    session = client.open(opened)
    try:
        above = (instructions.strip(), reply_format.instructions, session.observation)
        observation, score = "\n\n".join(part for part in above if part), session.score
        messages: list[Message] = []
        for index, move in enumerate(moves):
            learned = None if move.role == AGENT else False
            said = reply_format.render(move.thought, move.action)
            messages += [
                Message(role="user", content=observation), Message(role="assistant", content=said, learned=learned)
            ]  # fmt: skip
            result = client.step(session.session_id, index, move.action)
            observation, score = result.observation, result.score
            if result.terminated or result.truncated:
                break
    finally:
        client.close(session.session_id)
    if not any(message.teaches for message in messages):
        return None
    named = ConversationTask(env=task.env, split=task.split, task_id=task.task_id)
    return Conversation(messages=tuple(messages), task=named, success=score >= 1.0, reward=score)
