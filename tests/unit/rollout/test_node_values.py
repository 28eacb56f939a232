"""Values of nodes: one for each transcript."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from gymfleet_contracts.observation import ImagePart
from gymfleet_contracts.rollout import Budget
from gymfleet_contracts.session import TaskRef
from gymfleet_contracts.trajectory import FinishReason
from gymfleet_rollout.budget import BudgetSpent, Spending
from gymfleet_rollout.node_values import NodeValues
from gymfleet_rollout.seen import Prompted, Seen
from gymfleet_rollout.tree import Node
from gymfleet_rollout.unended import unended

from tests.fixtures.scored import make_turn
from tests.fixtures.searches import BY_SCORE
from tests.unit.rollout.test_episode import Door, ScriptedPolicy, group

TASK = TaskRef(env="door", split="train", level="easy", task_id="easy.train.0")
NODE = Node(
    id="0", parent_id=None, depth=0, observation="A door.", score=0.0, ended=None, task=TASK, session_id="s1", index=0,
    branch="", prompt=Prompted(), num_tokens=0,
)  # fmt: skip


class Numbering:
    """Each that is asked about is worth one more than the one before."""

    num_asked = 0
    held: asyncio.Event | None = None
    """Until it is set, nothing is answered."""

    async def totals(self, requests: Any, *, timeout_s: float) -> list[float]:
        del timeout_s
        if self.held is not None:
            await self.held.wait()
        first = self.num_asked
        self.num_asked += len(requests)
        return [float(first + place) for place in range(len(requests))]


def values_of(budget: Budget | None = None) -> tuple[NodeValues, Numbering, Spending]:
    evaluator, policy = Numbering(), ScriptedPolicy("")
    parts: Any = SimpleNamespace(evaluator=evaluator, policy=policy, format=SimpleNamespace(version=1))
    spending = Spending(budget or Budget(), policy.timeout)
    door: Any = Door()
    return (
        NodeValues(parts, group(evaluator=BY_SCORE), spending, Seen(None, door, 1.0)),
        evaluator,
        spending,
    )


async def test_what_went_alike_has_one_value_that_counts_once() -> None:
    values, evaluator, spending = values_of()

    assert await values.of([NODE, replace(NODE, id="0-0.1", session_id="f1", branch="-0.1")]) == [0.0, 0.0]
    assert await values.of([NODE]) == [0.0]
    assert evaluator.num_asked == spending.evaluations == 1


async def test_what_a_play_cost_is_no_part_of_how_it_went() -> None:
    values, evaluator, _ = values_of()
    costs = {"generate_s": 9.0, "environment_s": 9.0, "num_prefilled_tokens": 9, "node": "1@0", "parent": "0@0"}
    nodes = [replace(NODE, depth=1, parent=NODE, turn=make_turn().model_copy(update=cost)) for cost in ({}, costs)]

    assert await values.of(nodes) == [0.0, 0.0]
    assert await values.of([replace(nodes[0], turn=make_turn(response=(8, 8)))]) == [1.0]
    assert evaluator.num_asked == 2


@pytest.mark.parametrize("other", [{"score": 0.5}, {"observation": "An open door."}, {"ended": FinishReason.MAX_TURNS}])
async def test_what_went_otherwise_has_its_own(other: dict[str, Any]) -> None:
    values, _, spending = values_of()

    assert await values.of([NODE, replace(NODE, **other)]) == [0.0, 1.0]
    assert spending.evaluations == 2


async def test_a_budget_counts_what_is_asked_for() -> None:
    values, evaluator, _ = values_of(Budget(evaluations=1))
    await values.of([NODE, NODE])

    assert await values.of([NODE]) == [0.0]
    with pytest.raises(BudgetSpent):
        await values.of([replace(NODE, score=0.5)])
    assert evaluator.num_asked == 1


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_branches_that_ask_for_the_same_at_once_ask_once(is_cancelled: bool) -> None:
    values, evaluator, spending = values_of()
    evaluator.held = asyncio.Event()
    first, second = asyncio.create_task(values.of([NODE])), asyncio.create_task(values.of([NODE]))
    other = asyncio.create_task(values.of([replace(NODE, score=0.5)]))
    await asyncio.sleep(0)
    assert spending.evaluations == 2, "another state does not wait"

    if is_cancelled:
        first.cancel()
        await asyncio.wait([first])
    evaluator.held.set()

    assert await other != await second
    assert is_cancelled or await first == await second
    assert evaluator.num_asked == 2, "the branch that waited asks where the first one left"


def test_the_reward_is_given_what_the_environment_sealed_for_it_at_the_beginning() -> None:
    parts: Any = SimpleNamespace(policy=ScriptedPolicy(""), format=SimpleNamespace(version=1))
    shown = (ImagePart(sha256="0" * 64, media_type="image/png"),)

    episode = unended(group(evaluator=BY_SCORE), 0, parts, replace(NODE, sealed="begin", parts=shown))

    assert (episode.sealed, episode.final_parts) == ("begin", shown)
