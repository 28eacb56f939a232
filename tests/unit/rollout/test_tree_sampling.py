"""Trees of samples: where episodes branch, what is shared, what a budget leaves of them."""

from typing import Any

import pytest
from gymfleet_contracts.rollout import Budget
from gymfleet_contracts.trajectory import FinishReason, Status, Trajectory
from gymfleet_rollout.strategy_checks import examine

from tests.fixtures.searches import RIGHT, Played, actions
from tests.unit.rollout.test_episode import LEFT, OPEN


def nodes(trajectory: Trajectory) -> list[str | None]:
    return [trajectory.turns[0].parent, *(turn.node for turn in trajectory.turns)]


def test_it_keeps_what_a_strategy_promises() -> None:
    assert examine("tree_sampling") == []


async def test_episodes_share_their_turns_up_to_where_they_branch() -> None:
    played = Played("tree_sampling", LEFT, RIGHT, LEFT, LEFT, RIGHT)

    trajectories = await played.play({"at": [1]})

    assert [actions(one) for one in trajectories] == [
        ("go left", "go right", "go left"), ("go left", "go left", "go right"),
    ]  # fmt: skip
    assert [nodes(one) for one in trajectories] == [["0", "1", "2", "3"], ["0", "1", "2-1.1", "3-1.1"]]
    assert trajectories[0].turns[0] == trajectories[1].turns[0]
    assert {(one.selected, one.group_size, one.status) for one in trajectories} == {(False, 2, Status.TRUNCATED)}
    assert [(parent, index) for parent, index, _ in played.door.forked] == [("s1", 1)]
    (tree,) = played.trees
    assert (tree.spent.env_steps, tree.spent.evaluations) == (5, 0), "the first was taken once, and nothing was valued"


async def test_every_path_branches_at_each_of_the_turns() -> None:
    trajectories = await Played("tree_sampling", LEFT).play({"at": [2, 0], "branches": 3})

    assert len(trajectories) == 9
    assert len({one.turns[-1].node for one in trajectories}) == 9
    assert len({one.turns[0].node for one in trajectories}) == 3
    assert len({one.turns[1].node for one in trajectories}) == 3


async def test_each_episode_that_was_asked_for_is_a_tree() -> None:
    trajectories = await Played("tree_sampling", LEFT).play({"at": [1]}, num_samples=2)

    assert [one.turns[0].parent for one in trajectories] == ["0", "0", "0@1", "0@1"]


async def test_where_it_branches_is_drawn_for_each_tree_and_the_same_again() -> None:
    options = {"within": 8, "drawn": 2}

    async def depths() -> list[list[str]]:
        played = Played("tree_sampling", LEFT, max_turns=9)
        trajectories = await played.play(options, num_samples=6)
        assert len(trajectories) == 6 * 4
        roots = [f"0@{number}" if number else "0" for number in range(6)]
        return [
            sorted({(one.turns[-1].node or "").partition("-")[2].partition(".")[0]
                    for one in trajectories if one.turns[0].parent == root} - {""})
            for root in roots
        ]  # fmt: skip

    first = await depths()

    assert len({tuple(own) for own in first}) > 1, "trees differ"
    assert await depths() == first


async def test_an_episode_that_is_over_does_not_branch() -> None:
    (trajectory,) = await Played("tree_sampling", OPEN).play({"at": [1, 2]})

    assert (trajectory.finish_reason, trajectory.group_size) == (FinishReason.TERMINATED, 1)


@pytest.mark.parametrize(
    ("budget", "paths"),
    [
        (Budget(env_steps=4), [("go left", "go left", "go left"), ("go left", "go left")]),
        (Budget(env_steps=1), [("go left",)]),
    ],
)
async def test_what_the_budget_ends_where_branches_begin_is_one_episode(budget: Budget, paths: list[Any]) -> None:
    trajectories = await Played("tree_sampling", LEFT).play({"at": [1]}, budget=budget)

    assert sorted((actions(one) for one in trajectories), key=len, reverse=True) == paths
    assert trajectories[-1].finish_reason is FinishReason.BUDGET


async def test_more_leaves_than_a_group_may_have_are_refused_before_anything_is_played() -> None:
    played = Played("tree_sampling", LEFT)

    (refused, *_) = await played.play({"at": [0, 1, 2], "branches": 9}, num_samples=2)

    assert "2 trees that branch 3 times into 9 have 1458 leaves, above 1024: branch less" in (refused.error or "")
    assert played.door.opened == []
    assert len(await Played("tree_sampling", LEFT).play({"drawn": 9, "within": 1, "branches": 9}, num_samples=2)) == 18
