"""The record of a search refuses what is no tree."""

from typing import Any

import pytest
from gymfleet_contracts.search import MAX_NODES, SearchTree
from pydantic import ValidationError

from tests.fixtures.trajectories import make_trajectory


def node(name: str, parent: str | None, **more: Any) -> dict[str, Any]:
    return {"id": name, "parent": parent, "depth": 0, "action": None, "score": 0.0, "ended": None, **more}


def tree(*nodes: dict[str, Any]) -> dict[str, Any]:
    task = make_trajectory().task.model_dump()
    spent = {"env_steps": 1, "model_calls": 2, "tokens": 3, "seconds": 0.5}
    return {"run_id": "r", "group_id": "g", "task": task, "strategy": "s", "nodes": nodes, "spent": spent}


def test_a_tree_is_read() -> None:
    read = SearchTree.model_validate(tree(node("0", None), node("1", "0", value=0.5, visits=2), node("0@1", None)))

    assert [one.parent for one in read.nodes] == [None, "0", None], "an episode that was opened anew is a root too"


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        pytest.param([node("0", None), node("0", None)], "node 0 is there twice", id="twice"),
        pytest.param([node("1", "0"), node("0", None)], "parent of node 1, 0, does not come before it", id="order"),
        pytest.param([node(str(n), None) for n in range(MAX_NODES + 1)], "at most 1024 items", id="too many"),
        pytest.param([node("0", None, value=float("nan"))], "finite number", id="a value that is none"),
        pytest.param([node("0", None, action="x" * 501)], "at most 500 characters", id="a long action"),
    ],
)
def test_what_is_no_tree_is_refused(nodes: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        SearchTree.model_validate(tree(*nodes))
