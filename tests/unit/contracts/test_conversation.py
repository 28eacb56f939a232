"""What a conversation may be, and which of its messages are learned from."""

from typing import Any

import pytest
from gymfleet_contracts.conversation import MAX_MESSAGES, RECORDS, Conversation, Message
from gymfleet_contracts.trajectory import ScoredTrajectory
from pydantic import ValidationError

from tests.fixtures.scored import make_scored

ASKED = {"role": "user", "content": "Is it raining?"}
TOOL = {"name": "weather", "description": "", "parameters": {"type": "object"}}
SAID = {"role": "assistant", "content": "No."}


def conversation(*messages: dict[str, Any], **more: Any) -> Conversation:
    return Conversation.model_validate({"messages": messages, **more})


def test_the_assistants_messages_are_learned_unless_it_is_said_otherwise() -> None:
    found = conversation({"role": "system", "content": ""}, ASKED, SAID | {"learned": False}, ASKED, SAID)

    assert [message.teaches for message in found.messages] == [False, False, False, False, True]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        pytest.param({}, "messages: Field required", id="nothing"),
        pytest.param({"messages": [ASKED]}, "at least 2 items", id="a question alone"),
        pytest.param(
            {"messages": [SAID, ASKED, SAID]}, "the first message is the assistant's", id="a reply to nothing"
        ),
        pytest.param({"messages": [ASKED, ASKED]}, "none of its messages is learned from", id="no reply"),
        pytest.param(
            {"messages": [ASKED, SAID | {"learned": False}]}, "none of its messages is learned", id="unlearned"
        ),
        pytest.param({"messages": [ASKED | {"learned": True}, SAID]}, "not one of 'user'", id="a question learned"),
        pytest.param(
            {"messages": [ASKED | {"role": "gpt"}, SAID]}, "messages.0.role: Input should be", id="a strange role"
        ),
        pytest.param({"messages": [ASKED, SAID | {"mood": "x"}]}, "messages.1.mood: Extra inputs", id="a strange key"),
        pytest.param({"messages": [ASKED, SAID | {"name": "x"}]}, "name: only a tool's message", id="a reply answers"),
        pytest.param(
            {"messages": [ASKED | {"tool_calls": [{"name": "x"}]}, SAID]}, "tool_calls: only an assistant's", id="asked"
        ),
        pytest.param(
            {"messages": [ASKED, SAID | {"tool_calls": [{"name": "two words"}]}]}, "tool_calls.0.name", id="no name"
        ),
        pytest.param({"messages": [ASKED, SAID], "tools": [TOOL, TOOL]}, "tools: two are called weather", id="twice"),
        pytest.param({"messages": [ASKED, SAID], "score": 1}, "score: Extra inputs", id="a strange key at the top"),
        pytest.param({"messages": [ASKED, SAID], "reward": float("nan")}, "reward: Input should be a finite", id="nan"),
        pytest.param({"messages": [ASKED, SAID], "success": 1}, "success: Input should be a valid boolean", id="1"),
        pytest.param({"messages": [ASKED, SAID | {"content": "\ud800"}]}, "unicode string", id="half a character"),
        pytest.param({"messages": [ASKED, SAID | {"content": "x" * 1_000_001}]}, "at most 1000000", id="too long"),
        pytest.param({"messages": [ASKED, SAID] * (MAX_MESSAGES // 2 + 1)}, f"at most {MAX_MESSAGES}", id="too many"),
        pytest.param(
            {"messages": [ASKED, SAID], "task": {"env": "maze", "split": "all", "task_id": "1"}},
            "task.split",
            id="split",
        ),
    ],
)
def test_what_is_no_conversation(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Conversation.model_validate(given)

    places = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in caught.value.errors()]
    assert told in "; ".join(places)


def test_a_line_of_a_file_is_an_episode_or_a_conversation() -> None:
    records = [make_scored(), conversation(ASKED, SAID, success=True, source="here")]

    read = [RECORDS.validate_json(record.model_dump_json()) for record in records]

    assert read == records
    assert [type(record) for record in read] == [ScoredTrajectory, Conversation]
    assert Message.model_validate(SAID).teaches


def test_what_a_message_says_as_one_text_has_its_thoughts_and_calls() -> None:
    called = Message.model_validate(
        SAID | {"reasoning": "I look.", "tool_calls": [{"name": "weather", "arguments": {"city": "Kyōto"}}]}
    )

    assert called.text == (
        'I look.\nNo.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Kyōto"}}\n</tool_call>'
    )
    assert Message.model_validate(SAID).text == "No."
    assert set(Message.model_validate(SAID).model_dump()) == {"role", "content", "learned"}, "what is not said"
