"""Tree-GRPO: numbers worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from gymfleet_trainer.algorithms.tree_grpo import TreeGrpo, TreeGrpoOptions
from gymfleet_trainer.learning.algorithm import Sample, Verdict
from gymfleet_trainer.model.batching import TrainSequence
from pydantic import ValidationError
from torch import Tensor

from tests.fixtures.forked_groups import turns_to
from tests.fixtures.scored import make_scored, make_turn
from tests.unit.trainer.test_gigpo import Nothing, close, played

NODES = ("a", "aa", "ab", "aba", "abb", "b", "ba")


def leaf(sample: int, path: str, gained: float, *, group: str = "run/g", mask: str = "") -> TrainSequence:
    """The episode that ends at a node, whose parent is its name without the last letter; a root has none."""
    turns = [("", 0.0)] * (len(path) - 1) + [("", gained)]
    row = played(sample, *turns, group=group, mask=mask)
    spans = [
        replace(span, node=path[: place + 1], parent=path[:place] or f"root {path[0]}")
        for place, span in enumerate(row.turns)
    ]
    return replace(row, turns=tuple(spans))


TREES = [
    leaf(0, "aa", 1.0),
    leaf(1, "aba", 0.0, mask="...x.x"),
    leaf(2, "abb", 0.5, mask=".....x"),
    leaf(3, "ba", 0.0),
]
"""Two trees: of the first, a is shared by three leaves and ab by two; the second has one leaf."""


def advantages(*rows: TrainSequence, **options: Any) -> list[list[float]]:
    """Of each row's turns, 0 for those that another row trains."""
    options = {"normalise_by_std": False, **options}
    prepared = TreeGrpo(TreeGrpoOptions.model_validate(options)).prepare(list(rows), Nothing())  # type: ignore[arg-type]
    assert not any(row.fields["advantages"][~row.mask()].any() for row in prepared)
    return [[row.fields["advantages"][span.start].item() for span in row.turns] for row in prepared]


def test_a_shared_turn_is_worth_what_the_leaves_behind_it_are_on_average() -> None:
    # Returns 1, 0, 0.5 and 0, mean 3/8: 5/8, -3/8, 1/8 and -3/8; behind a on average 1/8, behind ab -1/8.
    found = advantages(*TREES, intra_weight=0.0)

    assert close(found, [0.125, 0.625], [0, -0.125, -0.375], [0, 0, 0.125], [-0.375, -0.375])


def test_leaves_are_compared_within_their_tree() -> None:
    # Mean 0.5 in the first: 0.5, -0.5 and 0; behind a all, behind ab -0.25 on average. The second has one leaf.
    found = advantages(*TREES, inter_weight=0.0)

    assert close(found, [0, 0.5], [0, -0.25, -0.5], [0, 0, 0], [0, 0])


def test_turns_are_compared_with_those_that_lead_on_from_the_same_node() -> None:
    # Behind aa 1, behind ab 0.25, mean 0.625; aba and abb 0 and 0.5. Nothing else leads on from the roots.
    found = advantages(*TREES, intra="siblings", inter_weight=0.0)

    assert close(found, [0, 0.375], [0, -0.375, -0.25], [0, 0, 0.25], [0, 0])


def test_both_are_added_with_their_weights() -> None:
    plain = advantages(*TREES)
    weighted = advantages(*TREES, intra_weight=2.0, inter_weight=0.5)

    assert close(plain, [0.125, 1.125], [0, -0.375, -0.875], [0, 0, 0.125], [-0.375, -0.375])
    assert close(weighted, [0.0625, 1.3125], [0, -0.5625, -1.1875], [0, 0, 0.0625], [-0.1875, -0.1875])


def test_what_is_compared_may_be_in_units_of_its_deviation() -> None:
    # In the first tree 1, 0 and 0.5: mean 0.5, deviation 0.5. Of the two ways on from a 1 and 0.25: 0.75 / sqrt(2).
    within = advantages(*TREES, inter_weight=0.0, normalise_by_std=True)
    siblings = advantages(*TREES, inter_weight=0.0, normalise_by_std=True, intra="siblings")

    assert close(within, [0, 1], [0, -0.5, -1], [0, 0, 0], [0, 0])
    half = 0.5**0.5
    assert close(siblings, [0, half], [0, -half, -half], [0, 0, half], [0, 0])


def test_nodes_of_other_groups_are_others() -> None:
    other = [leaf(0, "aa", 4.0, group="run/h"), leaf(1, "ab", 2.0, group="run/h", mask="...x")]

    found = advantages(*TREES, *other)

    assert found[:4] == advantages(*TREES)
    assert close(found[4:], [0, 2], [0, -2])


def test_episodes_that_were_played_each_by_itself_are_compared_as_by_grpo() -> None:
    rows = [played(0, ("", 0.0), ("", 1.0)), played(1, ("", 0.0))]

    for intra in ("tree", "siblings"):
        assert close(advantages(*rows, intra=intra), [0.5, 0.5], [-0.5])


def test_an_episode_of_several_rows_is_one() -> None:
    first = leaf(0, "aa", 0.0)
    begin = replace(first, token_ids=[1] * 2, loss_mask=[False, True], behaviour_logprobs=[0.0] * 2,
                    token_rewards=[0.0] * 2, turns=first.turns[:1])  # fmt: skip
    (end,) = (replace(span, start=1, end=2) for span in first.turns[1:])
    rest = replace(begin, token_rewards=[0.0, 1.0], turns=(end,))

    found = advantages(begin, rest, leaf(1, "ab", 0.0, mask="...x"))

    assert close(found, [0], [1], [0, -1])


def test_turns_that_are_compared_within_their_tree_are_told_from_the_others() -> None:
    def told(intra: str) -> list[list[float]]:
        algorithm = TreeGrpo(TreeGrpoOptions.model_validate({"intra": intra}))
        prepared = algorithm.prepare(list(TREES), Nothing())  # type: ignore[arg-type]
        return [[row.fields["branched_turns"][span.start].item() for span in row.turns] for row in prepared]

    assert told("tree") == [[1, 1], [0, 1, 1], [0, 0, 1], [0, 0]]
    assert told("siblings") == [[0, 1], [0, 1, 1], [0, 0, 1], [0, 0]], "nothing else leads on from the root"


class Models(Nothing):
    """Whose policy is `kl` nat from the reference on each token that a row trains."""

    def __init__(self, kl: float) -> None:
        self.kl = kl

    def logprobs(self, rows: list[TrainSequence]) -> list[Tensor]:
        return [self.kl * row.mask().double() for row in rows]

    def reference_logprobs(self, rows: list[TrainSequence]) -> list[Tensor]:
        return [torch.zeros(len(row.token_ids)).double() for row in rows]


def test_the_kl_of_a_shared_turn_counts_for_every_leaf_behind_it() -> None:
    # Two turns of 0.25 nat each way, whichever row trains the first: the difference of the returns is that of rewards.
    rows = [leaf(0, "aa", 1.0), leaf(1, "ab", 0.0, mask="...x")]
    options = {"normalise_by_std": False, "kl": {"coefficient": 1.0, "placement": "reward", "estimator": "k1"}}

    prepared = TreeGrpo(TreeGrpoOptions.model_validate(options)).prepare(rows, Models(0.25))  # type: ignore[arg-type]

    found = [[row.fields["advantages"][span.start].item() for span in row.turns] for row in prepared]
    assert close(found, [0, 1], [0, -1])


def test_each_turn_of_a_tree_is_trained_once() -> None:
    turns = {
        node: make_turn().model_copy(update={"parent": node[:-1] or "root", "node": node}) for node in NODES
    }  # fmt: skip
    paths = [turns_to(leaf, turns) for leaf in ("aa", "aba", "abb", "ba")]
    group = [Sample(make_scored("g", sample, turns=path), 0) for sample, path in enumerate(paths)]

    rows = TreeGrpo(TreeGrpoOptions()).rows(group)

    trained = [[row.loss_mask[span.start] for span in row.turns] for row in rows]
    assert trained == [[True, True], [False, True, True], [False, False, True], [True, True]]


def test_an_episode_that_is_alone_is_dropped() -> None:
    algorithm = TreeGrpo(TreeGrpoOptions())

    assert algorithm.select([make_scored()]) is Verdict.DROP
    assert algorithm.select([make_scored(sample=sample) for sample in range(2)]) is Verdict.KEEP


def test_without_any_weight_there_is_no_advantage() -> None:
    with pytest.raises(ValidationError, match="intra_weight and inter_weight are both 0, which leaves no advantage"):
        TreeGrpoOptions(intra_weight=0.0, inter_weight=0.0)
    TreeGrpoOptions(intra_weight=0.0)


def test_trained_tokens_are_of_turns() -> None:
    with pytest.raises(ValueError, match="2 trained tokens are of no turn, and tree_grpo gives credit by turn"):
        advantages(replace(leaf(0, "aa", 1.0), turns=()))
