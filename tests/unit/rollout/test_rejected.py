"""What a search tried and did not choose, where it is asked for, and what it said of every node."""

from dataclasses import replace
from typing import Any

import pytest
from gymfleet_contracts.rollout import Budget
from gymfleet_contracts.trajectory import FinishReason, Status, Trajectory
from gymfleet_rollout.handed_in import HandedIn
from pydantic import ValidationError

from tests.fixtures.scored import make_scored
from tests.fixtures.searches import RIGHT, Path, Played, actions
from tests.unit.rollout.test_episode import LEFT, OPEN, group
from tests.unit.rollout.test_node_values import NODE

WORTH: dict[Path, float] = {
    ("go left",): 0.1,
    ("go right",): 0.2,
    ("go right", "go left"): 0.5,
    ("go right", "open"): 0.4,
}


def beam(**more: Any) -> Played:
    return Played("beam", LEFT, RIGHT, LEFT, OPEN, worth=lambda path: WORTH[path], max_turns=2, **more)


def made_of(trajectories: list[Trajectory]) -> list[tuple[Path, str]]:
    return [(actions(one), "selected" if one.selected else "rejected" if one.rejected else "") for one in trajectories]


async def test_what_was_tried_is_handed_in_behind_what_was_chosen() -> None:
    played = beam()

    found = await played.play({"width": 1, "candidates": 2}, rejected=True)

    assert made_of(found) == [
        (("go right", "go left"), "selected"), (("go left",), "rejected"), (("go right", "open"), "rejected"),
    ]  # fmt: skip
    assert [one.finish_reason for one in found] == [
        FinishReason.MAX_TURNS, FinishReason.STOPPED, FinishReason.TERMINATED,
    ]  # fmt: skip
    assert {one.group_size for one in found} == {3}
    (tree,) = played.trees
    assert [node.samples for node in tree.nodes if node.selected] == [(0,)]
    assert sorted(node.samples for node in tree.nodes if node.samples and not node.selected) == [(1,), (2,)]


async def test_nobody_gets_it_who_does_not_ask_for_it() -> None:
    found = await beam().play({"width": 1, "candidates": 2})

    assert made_of(found) == [(("go right", "go left"), "selected")]
    assert "rejected" not in found[0].model_dump()


async def test_a_turn_says_what_the_node_is_worth_that_it_leads_to() -> None:
    found = await beam().play({"width": 1, "candidates": 2}, rejected=True)

    assert [[turn.node_value for turn in one.turns] for one in found] == [[0.2, 0.5], [0.1], [0.2, 0.4]]


async def test_nodes_that_were_played_on_are_no_episodes_of_their_own() -> None:
    """Each simulation of mcts forks a node that others may have gone on from already."""
    played = Played("mcts", LEFT, RIGHT, OPEN, LEFT, RIGHT)

    found = await played.play({"simulations": 6}, rejected=True)

    assert [one.selected for one in found] == [True, *[False] * (len(found) - 1)]
    assert all(one.rejected != one.selected for one in found)
    paths = [tuple(turn.node for turn in one.turns) for one in found]
    assert len(paths) == len(set(paths)) > 2
    assert not any(path == other[: len(path)] for path in paths for other in paths if path is not other)
    (tree,) = played.trees
    inner = {node.parent for node in tree.nodes}
    assert {path[-1] for path in paths} == {node.id for node in tree.nodes if node.id not in inner and node.depth}


async def test_what_the_budget_cut_short_is_handed_in_as_far_as_it_came() -> None:
    found = await beam().play({"width": 2, "candidates": 2}, rejected=True, budget=Budget(env_steps=2))

    assert sorted(made_of(found)) == [(("go left",), "rejected"), (("go right",), "selected")]
    assert {one.finish_reason for one in found} == {FinishReason.BUDGET}


async def test_samples_that_are_wanted_again_are_what_was_chosen_alone() -> None:
    found = await beam().play({"width": 1, "candidates": 2}, rejected=True, num_samples=3, samples=(1, 2), replay=1)

    assert [(one.sample, one.status.trainable, one.rejected) for one in found] == [(1, True, False), (2, True, False)]


async def test_a_strategy_that_plays_each_sample_by_itself_rejects_nothing() -> None:
    (refused,) = await Played("ranked", LEFT).play({}, rejected=True)

    assert refused.status is Status.POLICY_ERROR
    assert "ranked plays each episode by itself and rejects none: leave out `rejected`" in (refused.error or "")


async def test_a_group_has_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymfleet_rollout.handed_in.MAX_GROUP_SIZE", 2)
    played = beam()

    found = await played.play({"width": 1, "candidates": 2}, rejected=True)

    assert [one.selected for one in found] == [True, False]
    (tree,) = played.trees
    assert tree.counts == {"rejected and left out": 1}


def test_what_was_selected_was_not_rejected() -> None:
    with pytest.raises(ValidationError, match="what a search selected it did not reject"):
        make_scored(selected=True, rejected=True)


def test_a_node_that_was_played_on_stays_one_when_it_is_forked_again() -> None:
    handed_in = HandedIn(group(rejected=True), together=True)
    node = replace(NODE, id="1", parent_id="0", depth=1)
    child = replace(NODE, id="2", parent_id="1", depth=2)
    for one in (NODE, node, child, replace(node, branch="-1.1")):
        handed_in.reached(one)

    assert handed_in.add_rejected(None) == 0
    assert handed_in.leaves == [(child, "rejected")]
