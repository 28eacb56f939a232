"""Pairs of episodes, of turns of a tree, and what is in none."""

import pytest
from gymfleet_contracts.trajectory import ScoredTrajectory, Turn
from gymfleet_trainer.learning.algorithm import Sample
from gymfleet_trainer.learning.pairs import (
    PREFERRED,
    DifferentTasks,
    Found,
    LeftOut,
    PairOptions,
    Side,
    find_pairs,
    pair_of,
)
from gymfleet_trainer.model import trees
from gymfleet_trainer.model.batching import TrainSequence, pack

from tests.fixtures.scored import make_scored, make_turn

GROUP = "collect.t000000"


def test_best_against_worst() -> None:
    found = paired(episode(0, 0.75, 11), episode(1, 1.0, 12), episode(2, 0.25, 13), episode(3, 0.5, 14))

    assert names(found) == [("1", "2")]
    assert found.pairs[0].gap == 0.75
    assert found.left_out == {LeftOut.TOO_LOW: 1, LeftOut.OVER_MAX: 4}


def test_more_pairs_of_a_task_come_by_their_gaps() -> None:
    found = paired(episode(0, 1.0, 11), episode(1, 0.8, 12), episode(2, 0.0, 13), max_pairs_per_task=2)

    assert names(found) == [("0", "2"), ("1", "2")]
    assert found.left_out == {LeftOut.OVER_MAX: 1}


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        pytest.param((0.75, 0.745), LeftOut.NO_GAP, id="closer than 0.01"),
        pytest.param((0.5, 0.5), LeftOut.NO_GAP, id="equal"),
        pytest.param((0.69, 0.0), LeftOut.TOO_LOW, id="the winner is not good enough"),
    ],
)
def test_agentgyms_rule(rewards: tuple[float, float], reason: LeftOut) -> None:
    found = paired(episode(0, rewards[0], 11), episode(1, rewards[1], 12))

    assert not found.pairs
    assert found.left_out == {reason: 1}


def test_the_rule_is_an_option_and_holds_at_its_bounds() -> None:
    assert paired(episode(0, 0.7, 11), episode(1, 0.0, 12)).pairs
    assert paired(episode(0, -0.5, 11), episode(1, -1.0, 12), min_gap=0.5, min_chosen_reward=-0.5).pairs


def test_episodes_without_a_reward_are_counted_and_so_is_a_task_with_one_alone() -> None:
    unscored = make_scored(GROUP, 1).model_copy(update={"reward": None})

    found = paired(episode(0, 1.0, 11), unscored)

    assert not found.pairs
    assert found.left_out == {LeftOut.UNSCORED: 1, LeftOut.ALONE: 1}


def test_sides_that_say_the_same_are_no_pair() -> None:
    found = paired(episode(0, 1.0, 11), episode(1, 0.0, 11))

    assert not found.pairs
    assert found.left_out == {LeftOut.SAME_REPLIES: 1}


def test_tasks_are_never_mixed_and_groups_of_one_task_are() -> None:
    other_task = of_task(episode(0, 0.0, 13, group="collect.t000001"), "elsewhere")
    other_group = episode(0, 0.0, 12, group="collect.t000002")

    found = paired(episode(0, 1.0, 11), other_task, other_group)

    (pair,) = found.pairs
    assert pair.rejected[0].token_ids[-2] == 12
    assert {row.group_id for row in pair.rows()} == {f"run-1/{GROUP}"}, "so that no update has one side alone"
    assert found.left_out == {LeftOut.ALONE: 1}


def test_sides_of_different_tasks_are_refused() -> None:
    with pytest.raises(DifferentTasks, match=r"^one and two are no pair: they are of different tasks, a and b$"):
        pair_of(Side("a", "one", 1.0, ()), Side("b", "two", 0.0, ()))


def test_what_both_begin_with_is_their_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply that both gave first is part of it; the reply in which they part is learned as a whole."""
    monkeypatch.setattr(trees, "SHORTEST", 1)
    first = make_turn((1, 2), (3, 4))
    won = make_scored(GROUP, 0, turns=(first, make_turn((5,), (6, 7, 9)), make_turn((8,), (4,))))
    lost = make_scored(GROUP, 1, turns=(first, make_turn((5,), (6, 8, 9))), total=0.0)

    (pair,) = paired(won, lost).pairs

    assert pair.num_shared == 5
    assert trained(pair.chosen[0]) == [6, 7, 9, 4]
    assert trained(pair.rejected[0]) == [6, 8, 9]
    batch = pack(pair.rows(), 100)[0]
    assert (batch.num_tokens, batch.num_computed) == (10 + 8, 6 + 4 + 2), "what both begin with is computed once"


def test_a_reply_that_ends_where_the_other_goes_on() -> None:
    """The shorter side has nothing behind what both say: there is no pair."""
    first = make_turn((1, 2), (3, 4))
    found = paired(
        make_scored(GROUP, 0, turns=(first, make_turn((5,), (6,)))), make_scored(GROUP, 1, turns=(first,), total=0.0)
    )

    assert found.left_out == {LeftOut.SAME_REPLIES: 1}


def test_a_replaced_context_gives_a_side_several_rows() -> None:
    first, replaced = make_turn((1, 2), (3, 4)), make_turn((5,), (6,)).model_copy(update={"context": "replaced"})
    lost = make_scored(
        GROUP, 1, turns=(first, make_turn((5,), (7,)).model_copy(update={"context": "replaced"})), total=0.0
    )

    (pair,) = paired(make_scored(GROUP, 0, turns=(first, replaced)), lost).pairs

    assert [trained(row) for row in (*pair.chosen, *pair.rejected)] == [[6], [7]], "the first row is the same in both"


def test_rows_of_a_pair_say_which_side_they_are_of() -> None:
    (pair,) = paired(episode(0, 1.0, 11), episode(1, 0.0, 12)).pairs

    rows = pair.rows()

    assert len({row.unit for row in rows}) == 1
    assert [row.fields[PREFERRED].tolist() for row in rows] == [[1.0] * 5, [0.0] * 5]


def test_steps_are_compared_where_a_tree_branches() -> None:
    """Node a leads on to aa (rewards 1 and 0.5) and ab (0.25): aa is better by 0.5, and nothing behind it counts."""
    a, aa, ab = node("a", 3), node("aa", 4), node("ab", 5)
    found = paired(
        make_scored(GROUP, 0, turns=(a, aa, node("aaa", 6)), total=1.0),
        make_scored(GROUP, 1, turns=(a, aa, node("aab", 7)), total=0.5),
        make_scored(GROUP, 2, turns=(a, ab, node("aba", 8)), total=0.25),
        level="steps", max_pairs_per_task=2,
    )  # fmt: skip

    assert [(trained(pair.chosen[0]), trained(pair.rejected[0])) for pair in found.pairs] == [([4], [5]), ([6], [7])]
    assert [pair.gap for pair in found.pairs] == [0.5, 0.5]
    assert [len(row.token_ids) for row in found.pairs[0].rows()] == [4, 4]
    assert found.pairs[0].num_shared == 3
    assert not found.left_out


def test_steps_may_be_compared_by_what_a_search_said_of_them() -> None:
    """The search thinks more of ab than of aa, whatever came of them, and nothing of ac."""
    a, aa, ab, ac = node("a", 3), valued("aa", 4, 0.25), valued("ab", 5, 0.75), node("ac", 6)
    found = paired(
        make_scored(GROUP, 0, turns=(a, aa), total=1.0),
        make_scored(GROUP, 1, turns=(a, ab, node("aba", 7)), total=0.0),
        make_scored(GROUP, 2, turns=(a, ab, node("abb", 8)), total=0.0, rejected=True),
        make_scored(GROUP, 3, turns=(a, ac), total=1.0),
        level="valued_steps", max_pairs_per_task=9,
    )  # fmt: skip

    (pair,) = found.pairs
    assert (trained(pair.chosen[0]), trained(pair.rejected[0]), pair.gap) == ([5], [4], 0.5)
    assert not found.left_out


def test_trees_of_two_runs_are_two_whatever_their_groups_and_nodes_are_called() -> None:
    """Each run played one child of the node a: nothing leads on from it in two ways."""
    one = make_scored(GROUP, 0, turns=(node("a", 3), node("aa", 4)), total=1.0)
    other = make_scored(GROUP, 0, run_id="run-2", turns=(node("a", 3), node("ab", 5)), total=0.0)

    assert paired(one, other, level="steps").left_out == {LeftOut.ALONE: 1}


@pytest.mark.parametrize("level", ["episodes", "steps"])
def test_sides_that_reply_to_different_prompts_are_no_pair(level: str) -> None:
    hinted = node("b", 4).model_copy(update={"prompt_token_ids": (1, 2)})
    better, worse = make_scored(GROUP, 0, turns=(node("a", 3),)), make_scored(GROUP, 1, turns=(hinted,), total=0.0)

    found = paired(better, worse, level=level)

    assert not found.pairs
    assert found.left_out == {LeftOut.OTHER_PROMPT: 1}


def test_what_is_no_pair_for_its_prompt_takes_no_pairs_place() -> None:
    other = make_scored(GROUP, 1, turns=(make_turn(prompt=(4,), response=(12,)),), total=0.0)

    found = paired(episode(0, 1.0, 11), other, episode(2, 0.5, 13))

    assert names(found) == [("0", "2")]


def test_steps_need_a_tree() -> None:
    found = paired(episode(0, 1.0, 11), episode(1, 0.0, 12), level="steps")

    assert not found.pairs
    assert found.left_out == {LeftOut.ALONE: 1}


def paired(*episodes: ScoredTrajectory, **options: object) -> Found:
    return find_pairs([Sample(scored, 0) for scored in episodes], PairOptions.model_validate(options))


def episode(sample: int, reward: float, says: int, *, group: str = GROUP) -> ScoredTrajectory:
    """One turn of three prompt tokens and the reply (`says`, 9)."""
    return make_scored(group, sample, turns=(make_turn(response=(says, 9)),), total=reward)


def node(name: str, says: int) -> Turn:
    """A turn of one prompt token and one reply token that leads to a node."""
    return make_turn((1,), (says,)).model_copy(update={"node": name, "parent": name[:-1] or None})


def valued(name: str, says: int, value: float) -> Turn:
    return node(name, says).model_copy(update={"node_value": value})


def of_task(scored: ScoredTrajectory, task_id: str) -> ScoredTrajectory:
    task = scored.trajectory.task.model_copy(update={"task_id": task_id})
    return scored.model_copy(update={"trajectory": scored.trajectory.model_copy(update={"task": task})})


def names(found: Found) -> list[tuple[str, str]]:
    """The samples of each pair."""
    return [tuple(side.rpartition("/")[2] for side in pair.name.split(">")) for pair in found.pairs]  # type: ignore[misc]


def trained(row: TrainSequence) -> list[int]:
    return [token for token, learned in zip(row.token_ids, row.loss_mask, strict=True) if learned]
