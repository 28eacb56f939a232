"""Strategies that know which actions are possible: what they carry out, what they keep, what they count."""

from typing import Any

import pytest
from gymfleet_contracts.rollout import StrategySpec
from gymfleet_contracts.trajectory import Status, Trajectory
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.player import Player

from benchmarks.playing import episodes
from tests.unit.rollout.test_episode import CHAT, LEFT, OPEN, ScriptedPolicy, group
from tests.unit.rollout.test_episode import Specs as Unlisted
from tests.unit.rollout.test_shown import Listing, Specs

JUMP = "Thought: up Action: jump"


async def played(use: str, *replies: str, **options: Any) -> tuple[Trajectory, Listing, ScriptedPolicy]:
    door, policy = Listing(), ScriptedPolicy(*replies)
    player = Player(policy, CHAT, door, Specs(), Formats(), max_episodes=8)  # type: ignore[arg-type]
    (trajectory,) = await episodes(player, group(strategy=StrategySpec(use=use, options=options)), [1])
    assert trajectory.status is Status.COMPLETED, trajectory.error
    return trajectory, door, policy


def done(door: Listing) -> list[str]:
    return [action for _, _, action in door.actions]


async def test_a_rejected_reply_is_answered_and_stays_in_the_episode() -> None:
    trajectory, door, _ = await played("masked", JUMP, "Thought: x Action: Go  LEFT", OPEN)

    assert done(door) == ["Go  LEFT", "open"]
    assert [turn.action for turn in trajectory.turns] == [None, "Go  LEFT", "open"]
    assert trajectory.turns[1].observation == "This is not possible now. Possible actions: go left, open"
    assert all(turn.response_logprobs for turn in trajectory.turns)


async def test_a_rejected_reply_may_be_discarded() -> None:
    trajectory, door, policy = await played("masked", JUMP, JUMP, LEFT, OPEN, rejected="discarded")

    assert done(door) == ["go left", "open"]
    assert [turn.text for turn in trajectory.turns] == [LEFT, OPEN]
    assert len(policy.calls) == 4, "each reply was asked for"


async def test_the_last_try_is_carried_out() -> None:
    _, door, _ = await played("masked", JUMP, JUMP, OPEN, tries=2)

    assert done(door) == ["jump", "open"]


async def test_free_text_is_never_rejected() -> None:
    _, door, _ = await played("masked", JUMP, OPEN, also=["ju"])

    assert done(door) == ["jump", "open"]


async def test_where_the_environment_does_not_know_nothing_is_rejected() -> None:
    _, door, _ = await played("masked", LEFT, LEFT, JUMP, OPEN)

    assert done(door) == ["go left", "go left", "jump", "open"]


async def test_the_likeliest_admissible_action_is_taken() -> None:
    trajectory, door, _ = await played("ranked", JUMP, JUMP, LEFT, OPEN, OPEN, OPEN, LEFT, JUMP, candidates=4)

    assert done(door) == ["go left", "open"], "the first of two that are equally likely, then the more frequent"
    assert trajectory.selected, "it is no sample of the policy"


async def test_the_action_that_most_replies_ask_for_comes_first() -> None:
    _, door, _ = await played("ranked", JUMP, JUMP, LEFT, LEFT, OPEN, *[OPEN] * 5, candidates=5)

    assert done(door) == ["go left", "open"], "jump is not possible, and open was drawn once"


@pytest.mark.parametrize("use", ["masked", "ranked"])
async def test_an_environment_that_lists_nothing_is_refused(use: str) -> None:
    door, policy = Listing(), ScriptedPolicy(*[LEFT] * 4)
    player = Player(policy, CHAT, door, Unlisted(), Formats(), max_episodes=8)  # type: ignore[arg-type]

    (trajectory,) = await episodes(player, group(strategy=StrategySpec(use=use)), [1])

    assert trajectory.status is Status.POLICY_ERROR
    assert f"does not list the actions that are possible, and {use} chooses by the list" in (trajectory.error or "")
    assert (door.opened, policy.calls) == ([], []), "before anything is played"
