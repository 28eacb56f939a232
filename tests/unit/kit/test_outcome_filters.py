"""Filters by success, reward and format: what each option keeps, and what becomes of what nobody knows."""

from typing import Any

import pytest
from gymfleet_contracts.conversation import Conversation, Record
from gymfleet_kit.data import samples
from gymfleet_kit.data.filter import Refused, opening
from gymfleet_kit.data.filtering import filter_of
from gymfleet_kit.plugins import PluginError


def replied(
    *texts: str, success: bool | None = None, reward: float | None = None, learned: bool = True
) -> Conversation:
    messages = [
        message
        for text in texts
        for message in (
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": text, "learned": None if learned else text != texts[0]},
        )
    ]
    return Conversation.model_validate(
        {"messages": messages, "success": success, "reward": reward, "source": "x.jsonl, line 7"}
    )


def kept(given: Any, records: list[Record]) -> list[int]:
    found = {id(record) for record in filter_of(given, table="filters.0").kept(records)}
    return [place for place, record in enumerate(records) if id(record) in found]


EPISODES = samples.episodes()
OUTCOMES: list[Record] = [
    replied("a", success=True), replied("a", success=False), replied("a"), EPISODES[0], EPISODES[2], EPISODES[4],
]  # fmt: skip
"""Of conversations, then of episodes: solved, failed, and nobody knows."""


@pytest.mark.parametrize(
    ("options", "places"),
    [
        ({}, [0, 3]),
        ({"success": False}, [1, 4]),
        ({"unknown": "keep"}, [0, 2, 3, 5]),
        ({"success": False, "unknown": "keep"}, [1, 2, 4, 5]),
    ],
)
def test_success(options: dict[str, Any], places: list[int]) -> None:
    assert kept({"use": "success", **options}, OUTCOMES) == places


WORTH: list[Record] = [replied("a", reward=-1.0), replied("a", reward=0.5), replied("a"), EPISODES[0], EPISODES[4]]
"""-1, 0.5, none, 1 and none."""


@pytest.mark.parametrize(
    ("options", "places"),
    [
        ({}, [0, 1, 3]),
        ({"min_reward": 0.5}, [1, 3]),
        ({"max_reward": 0.5}, [0, 1]),
        ({"min_reward": 0.0, "max_reward": 0.9}, [1]),
        ({"min_reward": 1.0, "unknown": "keep"}, [2, 3, 4]),
    ],
)
def test_reward(options: dict[str, Any], places: list[int]) -> None:
    assert kept({"use": "reward", **options}, WORTH) == places


@pytest.mark.parametrize(
    ("use", "told"), [("success", "does not say whether the task was solved"), ("reward", "has no reward")]
)
def test_what_nobody_knows_can_be_refused_by_name(use: str, told: str) -> None:
    with pytest.raises(Refused, match=rf"^the filter {use}: x\.jsonl, line 7 {told}; give unknown"):
        kept({"use": use, "unknown": "refuse"}, [replied("a")])


GOOD, SLOPPY, NONE = "Thought: t\nAction: look", "so\nAction: look", "Hello."
FORMATS: list[Record] = [replied(GOOD, GOOD), replied(GOOD, SLOPPY), replied(GOOD, NONE), replied(NONE), EPISODES[4]]


@pytest.mark.parametrize(
    ("options", "places"),
    [
        ({}, [0]),
        ({"min_share": 0.5}, [0, 1, 2]),
        ({"strict": False}, [0, 1]),
        ({"strict": False, "min_share": 0.5}, [0, 1, 2]),
        ({"format": "plain", "strict": False}, [0, 1, 2, 3]),
        ({"format": {"use": "tags", "action_tag": "act"}}, []),
    ],
)
def test_format(options: dict[str, Any], places: list[int]) -> None:
    assert kept({"use": "format", **options}, FORMATS) == places


def test_only_what_is_learned_from_has_to_follow_the_format() -> None:
    assert kept("format", [replied(NONE, GOOD, learned=False), replied(NONE, GOOD)]) == [0]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"use": "format", "format": "yaml"},
            "the filter format cannot be made: PluginError: there is no format 'yaml'",
        ),
        ({"use": "format", "format": {"use": "tags", "tag": "x"}}, "tag: Extra inputs are not permitted"),
        ({"use": "format", "min_share": 0}, "filters.0.min_share: Input should be greater than 0"),
        ({"use": "reward", "min_reward": 2.0, "max_reward": 1.0}, "min_reward (2.0) exceeds max_reward (1.0)"),
    ],
)
def test_a_mistake_in_the_options_is_a_line(given: Any, told: str) -> None:
    with pytest.raises(PluginError) as caught:
        filter_of(given, table="filters.0")

    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_opening_is_what_the_first_learned_reply_answers() -> None:
    assert opening(samples.conversations()[3]) == "goal"
    assert opening(samples.conversations()[0]) == "Is it raining?"
    assert opening(EPISODES[0]) == "You are in room 0."
    assert opening(EPISODES[4]) == ""
