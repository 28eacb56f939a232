"""Strategies whose nodes the policy judges itself: trees and graphs of thoughts."""

import re
from typing import Any

import pytest
from gymfleet_contracts.rollout import Budget, EpisodeLimits
from gymfleet_contracts.trajectory import FinishReason, Status
from gymfleet_rollout.asking import number
from gymfleet_rollout.strategies.graph_of_thoughts import GraphOptions
from pydantic import ValidationError

from tests.fixtures.searches import RIGHT, Played, actions
from tests.unit.rollout.test_episode import LEFT, OPEN


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("7", 7), ("I say 3.5.", 3.5), ("10", 10), ("7/10", 7), ("7, so 7", 7), ("11", None), ("", None),
        ("good", None), ("3 or 4", None), ("-1", None), ("5-7", None), ("7/5", None),
    ],
)  # fmt: skip
def test_an_answer_is_a_number_by_itself(text: str, read: float | None) -> None:
    assert number(text, 10) == read


async def test_the_policy_marks_what_it_did_and_plays_on_the_best() -> None:
    # Left gets 2 and 4, right 9 and one answer that is none; of right's two both end.
    replies = [LEFT, RIGHT, "2", "4", "9", "who knows", LEFT, RIGHT, "1", "1", "8", "8"]
    played = Played("tree_of_thoughts", *replies, max_turns=2)

    (found,) = await played.play({"children": 2, "samples": 2, "width": 1})

    assert actions(found) == ("go right", "go right")
    assert found.selected
    values = {path: value for path, (value, _) in played.noted().items()}
    assert values == {
        (): None, ("go left",): pytest.approx(0.3), ("go right",): pytest.approx(0.9),
        ("go right", "go left"): pytest.approx(0.1), ("go right", "go right"): pytest.approx(0.8),
    }  # fmt: skip
    assert played.trees[0].counts == {"unreadable answers": 1}
    assert not played.scores.asked, "nobody is told what it gains"
    assert "go left: You did go left." in played.prompts()[2]


async def test_votes_count_for_one_of_all() -> None:
    played = Played("tree_of_thoughts", LEFT, RIGHT, "2", "1", "2", max_turns=1)

    (found,) = await played.play({"children": 2, "value": "votes"})

    assert actions(found) == ("go right",)
    assert played.noted()["go right",][0] == pytest.approx(2 / 3)


async def test_comparisons_are_of_all_pairs_in_both_orders() -> None:
    # Left and right: the first is better in either order. Left and open: open. Right and open: one cannot be read, and
    # right.
    replies = [LEFT, RIGHT, OPEN, "1", "1", "2", "1", "neither", "2"]
    played = Played("tree_of_thoughts", *replies, max_turns=1)

    (found,) = await played.play({"children": 3, "value": "comparisons", "samples": 2})

    assert actions(found) == ("go right",)
    values = {path[0]: value for path, (value, _) in played.noted().items() if path}
    assert values == {"go left": 0.25, "go right": 0.75, "open": 0.5}
    (tree,) = played.trees
    assert tree.counts == {"unreadable answers": 1}
    first, turned = played.prompts()[3:5]
    assert "1. go left: You did go left.\n2. go right: You did go right." in first
    assert "1. go right: You did go right.\n2. go left: You did go left." in turned


async def test_a_way_that_is_alone_needs_no_comparison() -> None:
    played = Played("tree_of_thoughts", LEFT, max_turns=1)

    await played.play({"children": 2, "value": "comparisons"})

    assert played.noted()["go left",][0] == 1.0
    assert len(played.prompts()) == 2


async def test_broad_it_votes_on_nodes_of_all_branches_at_once() -> None:
    replies = [LEFT, RIGHT, "1", "2", LEFT, RIGHT, RIGHT, LEFT, "4", "4", "1"]
    played = Played("tree_of_thoughts", *replies, max_turns=2)

    (found,) = await played.play({"children": 2, "samples": 2, "value": "votes"}, budget=Budget(model_calls=10))

    assert actions(found) == ("go right", "go left")
    assert {path: value for path, (value, _) in played.noted().items() if len(path) == 2} == {
        ("go left", "go left"): 0.0, ("go left", "go right"): 0.0, ("go right", "go right"): 0.0,
        ("go right", "go left"): 1.0,
    }  # fmt: skip
    asked = played.prompts()[8]
    assert "3. go right, then go right: You did go right." in asked
    assert "4. go right, then go left: You did go left." in asked


async def test_a_node_without_siblings_is_marked_as_any_other() -> None:
    played = Played("tree_of_thoughts", LEFT, LEFT, "3", max_turns=1)

    await played.play({"children": 2, "samples": 1, "width": 1})

    assert played.noted()["go left",][0] == pytest.approx(0.3)


async def test_deep_it_comes_back_to_the_second_best() -> None:
    # Right first: both of its ways on are pruned. Then left.
    replies = [LEFT, RIGHT, "5", "9", LEFT, RIGHT, "1", "0", OPEN, LEFT, "9", "3"]
    played = Played("tree_of_thoughts", *replies, max_turns=2)

    (found,) = await played.play({"children": 2, "samples": 1, "search": "dfs"})

    assert actions(found) == ("go left", "open")


async def test_deep_an_episode_that_ends_badly_is_a_try_too() -> None:
    played = Played("tree_of_thoughts", LEFT, RIGHT, "8", "9", LEFT, RIGHT, "0", "1", max_turns=2)

    (found,) = await played.play({"children": 2, "samples": 1, "search": "dfs", "tries": 2})

    assert actions(found) == ("go right", "go right"), "the better of two bad ones"
    assert len(played.door.actions) == 4, "two tries were asked for, and the other branch would be a third"


async def test_ways_on_that_are_listed_are_taken_one_by_one() -> None:
    played = Played("tree_of_thoughts", "- go left\n- go right\n- go up\n- go left", LEFT, RIGHT, "1", "2", max_turns=1)

    (found,) = await played.play({"children": 2, "samples": 1, "generate": "proposed"})

    assert actions(found) == ("go right",)
    assert "Do this now: go left" in played.prompts()[1]
    assert "Do this now: go right" in played.prompts()[2]
    assert len(played.policy.calls) == 5


async def test_candidates_go_through_the_operations() -> None:
    replies = [LEFT, RIGHT, "3", "8", "Thought: more Action: go up", "Thought: both Action: open"]
    operations = [
        {"do": "generate", "count": 2}, {"do": "score"}, {"do": "keep_best", "count": 1}, {"do": "refine"},
        {"do": "aggregate"},
    ]  # fmt: skip
    played = Played("graph_of_thoughts", *replies)

    (found,) = await played.play({"operations": operations})

    assert actions(found) == ("open",)
    assert [action for _, _, action in played.door.actions] == ["open"], "nothing else is tried"
    prompts = played.prompts()
    assert "go right" in prompts[4]
    assert "go left" not in prompts[4], "only the best is bettered"
    assert "- Thought: more Action: go up" in prompts[5]


async def test_without_an_answer_the_first_candidate_is_carried_out() -> None:
    operations = [{"do": "generate", "count": 2}, {"do": "score"}]
    played = Played("graph_of_thoughts", OPEN, LEFT, "hm", "hm")

    (found,) = await played.play({"operations": operations})

    assert actions(found) == ("open",)


@pytest.mark.parametrize(
    ("operations", "told"),
    [
        (["score"], "operations.0: there is nothing to score: generate comes first"),
        (["generate", "keep_best"], "operations.1: keep_best needs marks: score comes before it"),
        (["generate", "score", "refine", "keep_best"], "operations.3: keep_best needs marks: score comes before it"),
    ],
)
def test_operations_without_what_they_work_on_are_refused(operations: list[str], told: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(told)):
        GraphOptions.model_validate({"operations": [{"do": one} for one in operations]})


async def test_deep_it_goes_back_where_the_context_has_no_room_for_the_question() -> None:
    long_way = "Thought: right it is, of that I am as sure as I have ever been of anything Action: go right"
    right_first = [LEFT, long_way, "5", "9"]
    free = Played("tree_of_thoughts", *right_first, LEFT, RIGHT, "1", "0", max_turns=2)
    await free.play({"children": 2, "samples": 1, "search": "dfs"})
    question = len(free.policy.calls[6][0])

    played = Played("tree_of_thoughts", *right_first, LEFT, RIGHT, OPEN, LEFT, "9", "3", max_turns=2)
    limits = EpisodeLimits(max_turns=2, max_attempts=1, max_context_tokens=question)
    (found,) = await played.play({"children": 2, "samples": 1, "search": "dfs"}, limits=limits)

    assert actions(found) == ("go left", "open")
    assert played.trees[0].counts == {"hints without room": 2}, "a question for each child"


async def test_without_room_for_the_first_question_there_is_no_episode() -> None:
    free = Played("tree_of_thoughts", LEFT, RIGHT, "2", "4", max_turns=1)
    await free.play({"children": 2, "samples": 1})
    question = len(free.policy.calls[2][0])

    played = Played("tree_of_thoughts", LEFT, RIGHT, max_turns=1)
    limits = EpisodeLimits(max_turns=1, max_attempts=1, max_context_tokens=question)
    (failed,) = await played.play({"children": 2, "samples": 1}, limits=limits)

    assert (failed.status, failed.turns) == (Status.POLICY_ERROR, ())
    assert "the hint leaves no room for a reply" in str(failed.error)


@pytest.mark.parametrize("options", [{}, {"value": "votes"}, {"search": "dfs"}], ids=["marks", "votes", "deep"])
async def test_where_the_budget_allows_no_marks_what_has_ended_is_handed_in(options: dict[str, Any]) -> None:
    played = Played("tree_of_thoughts", LEFT, OPEN, max_turns=2)

    (found,) = await played.play({"children": 2, "samples": 1, **options}, budget=Budget(model_calls=2))

    assert (actions(found), found.finish_reason) == (("open",), FinishReason.TERMINATED)


async def test_an_episode_that_was_marked_is_handed_in_when_the_budget_ends_its_depth() -> None:
    played = Played("tree_of_thoughts", LEFT, RIGHT, "5", "4", OPEN, RIGHT, "9", "3", max_turns=3)

    (found,) = await played.play({"children": 2, "samples": 1, "width": 2}, budget=Budget(model_calls=9))

    assert actions(found) == ("go left", "open")
