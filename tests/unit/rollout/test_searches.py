"""What is noted of a search: its nodes, as what the policy was asked, and what nodes are worth."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from gymfleet_client.errors import EnvironmentFailed
from gymfleet_contracts.reward import EvaluatorSpec, ScoreRequest
from gymfleet_contracts.rollout import Budget, EpisodeLimits
from gymfleet_contracts.trajectory import FinishReason, Status
from gymfleet_rollout.errors import EvaluationFailed

from tests.fixtures.searches import BY_SCORE
from tests.fixtures.strategies import BY_SAMPLE, EVALUATES, EVALUATING, HEAD, PLAYS_ON, Table
from tests.unit.rollout.test_episode import CHAT, LEFT, OPEN, Door, ScriptedPolicy, failure


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymfleet_rollout.player._RETRY_PAUSE_S", 0.0)
    monkeypatch.setattr("gymfleet_rollout.sessions._OPEN_PAUSE_S", 0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mine.py"


# --- what is noted of a search


async def test_the_record_has_every_node_and_what_became_of_it(path: Path) -> None:
    body = """
        root = await ctx.open()
        forks = [root, *await ctx.fork(root, 2)]
        nodes = [await ctx.act(fork, (await ctx.propose(fork))[0]) for fork in forks]
        for visits, node in enumerate(nodes):
            ctx.note(node, value=0.0, visits=visits)
            ctx.note(node, value=node.score / 2)
        ctx.note(root, visits=3)
        ctx.export(nodes[1], selected=True)
        ctx.export(nodes[0])
"""
    table = Table(path, body, ScriptedPolicy(LEFT, OPEN, "no action here"))

    await table.play(replay=2)

    (tree,) = table.trees
    assert table.order == ["tree", "trajectories"], "a trainer that has these could miss what comes later"
    assert (tree.run_id, tree.group_id, tree.replay, tree.attempt, tree.num_left_out) == ("run", "g", 2, 1, 0)
    assert [(node.id, node.parent, node.depth, node.action) for node in tree.nodes] == [
        ("0~2.0", None, 0, None),
        ("1~2.0", "0~2.0", 1, "go left"),
        ("1-0.1~2.0", "0~2.0", 1, "open"),
        ("1-0.2~2.0", "0~2.0", 1, None),
    ]
    assert [(node.score, node.value, node.visits) for node in tree.nodes] == [
        (0.0, None, 3), (0.0, 0.0, 0), (1.0, 0.5, 1), (0.0, 0.0, 2)
    ]  # fmt: skip
    assert [(node.samples, node.selected) for node in tree.nodes] == [
        ((), False), ((1,), False), ((0,), True), ((), False)
    ]  # fmt: skip
    assert [node.ended for node in tree.nodes] == [None, FinishReason.STOPPED, FinishReason.TERMINATED, None]
    assert (tree.spent.env_steps, tree.spent.model_calls) == (2, 3)
    sampled = sum(len(CHAT.reply(reply)) for reply in (LEFT, OPEN, "no action here"))
    assert tree.spent.tokens == sampled + sum(len(prompt) for prompt, _, _ in table.policy.calls)


async def test_a_record_has_an_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymfleet_rollout.search.MAX_NODES", 3)
    table = Table(path, PLAYS_ON, ScriptedPolicy(LEFT))

    await table.play(limits=EpisodeLimits(max_turns=6))

    (tree,) = table.trees
    assert ([node.id for node in tree.nodes], tree.num_left_out) == (["0", "1", "2"], 4)


async def test_a_record_is_of_the_attempt_that_succeeded(path: Path) -> None:
    table = Table(path, PLAYS_ON, ScriptedPolicy(OPEN), Door({"step": [failure(EnvironmentFailed)]}))

    await table.play()

    (tree,) = table.trees
    assert (tree.attempt, [node.action for node in tree.nodes]) == (2, [None, "open"])
    assert tree.spent.model_calls == 2, "all attempts together"


async def test_there_is_none_of_a_failure_nor_of_episodes_that_are_played_by_themselves(path: Path) -> None:
    failing = Table(path, "        1 / 0", ScriptedPolicy(OPEN))
    await failing.play()
    apart = Table(path, PLAYS_ON, ScriptedPolicy(OPEN), head=HEAD.replace("    Options = Options", BY_SAMPLE))
    await apart.play()

    assert (failing.trees, apart.trees) == ([], [])
    assert len(apart.deliveries) == 2


# --- roles


PLANS = """
        node = await ctx.open()
        (plan,) = await ctx.propose(node, hint="Make a plan.", role="planner")
        node = ctx.answer(node, plan, f"Follow the plan: {plan.text}")
        while not node.over:
            (reply,) = await ctx.propose(node)
            node = await ctx.act(node, reply)
        ctx.export(node)
"""
WITH_ROLES = HEAD.replace("    Options = Options", "    Options, facts = Options, StrategyFacts(roles=('planner',))")


async def test_a_turn_says_as_what_the_policy_was_asked(path: Path) -> None:
    table = Table(path, PLANS, ScriptedPolicy("First left.", OPEN), head=WITH_ROLES)

    (trajectory,) = await table.play()

    plan, move = trajectory.turns
    assert [(turn.role, turn.action) for turn in trajectory.turns] == [("planner", None), ("agent", "open")]
    assert (plan.format_valid, plan.action_valid) == (True, True), "no action was asked for"
    assert move.observation == "Follow the plan: First left."
    assert "Follow the plan: First left.<|im_end|>" in CHAT._tokenizer.decode(move.prompt_token_ids)
    assert [action for _, _, action in table.door.actions] == ["open"]
    assert (trajectory.status, trajectory.score) == (Status.COMPLETED, 1.0)


# --- values


class Values:
    """An evaluator whose values are what the script says, or the number of turns."""

    def __init__(self, *script: float | Exception) -> None:
        self.script = list(script)
        self.asked: list[ScoreRequest] = []

    async def totals(self, requests: Sequence[ScoreRequest], *, timeout_s: float) -> list[float]:
        del timeout_s
        self.asked += requests
        if self.script and isinstance(self.script[0], Exception):
            raise self.script.pop(0)  # type: ignore[misc]
        return [float(len(request.trajectory.turns)) for request in requests]


async def test_nodes_are_valued_as_if_the_strategy_had_stopped_there(path: Path) -> None:
    table = Table(path, EVALUATES, ScriptedPolicy(LEFT, OPEN), head=EVALUATING)
    values = table.evaluate_by(Values())
    spec = EvaluatorSpec.model_validate({"allocation": "uniform_positive", "length": {}})

    (trajectory,) = await table.play(evaluator=spec, budget=Budget(evaluations=3))

    asked = [request.trajectory for request in values.asked]
    assert [one.finish_reason for one in asked] == [
        FinishReason.STOPPED, FinishReason.STOPPED, FinishReason.TERMINATED
    ]  # fmt: skip
    assert [(one.status, one.score) for one in asked] == [
        (Status.TRUNCATED, 0.0), (Status.TRUNCATED, 0.0), (Status.COMPLETED, 1.0)
    ]  # fmt: skip
    unvalued = [turn.model_copy(update={"node_value": None}) for turn in trajectory.turns]
    assert [*asked[2].turns] == unvalued, "the same tokens"
    assert asked[1].final_observation == "You did go left."
    (reward,) = {request.reward for request in values.asked}
    assert (reward.used, reward.allocation) == ({"length": "length"}, "uniform_positive"), "and not the score"
    assert table.trees[0].spent.evaluations == 3
    assert {node.id: node.value for node in table.trees[0].nodes if node.depth < 2} == {
        "0": 0.0,
        "1": 1.0,
        "1-0.1": 0.5,
    }


async def test_evaluations_are_counted_before_they_are_asked_for(path: Path) -> None:
    table = Table(path, EVALUATES, ScriptedPolicy(LEFT), head=EVALUATING)
    values = table.evaluate_by(Values())

    trajectories = await table.play(evaluator=BY_SCORE, budget=Budget(evaluations=1))

    assert len(values.asked) == 1, "the other two went alike, and one more would be two"
    assert {t.finish_reason for t in trajectories} == {FinishReason.BUDGET}


async def test_a_value_that_fails_is_a_failure_and_no_zero(path: Path) -> None:
    table = Table(path, EVALUATES, ScriptedPolicy(LEFT, LEFT, OPEN), head=EVALUATING)
    table.evaluate_by(Values(EvaluationFailed("judge: away")))
    (again,) = await table.play(evaluator=BY_SCORE)
    assert (again.status, again.attempt) == (Status.COMPLETED, 2)

    hides = EVALUATES.replace("        (value,) = await ctx.evaluate([root])", HIDDEN)
    hiding = Table(path, hides, ScriptedPolicy(LEFT, LEFT, OPEN), head=EVALUATING)
    hiding.evaluate_by(Values(EvaluationFailed("judge: away")))
    (failed, _) = await hiding.play(evaluator=BY_SCORE, limits=EpisodeLimits(max_attempts=1))
    assert (failed.status, failed.error) == (Status.POLICY_ERROR, "EvaluationFailed: judge: away")


HIDDEN = """
        try:
            (value,) = await ctx.evaluate([root])
        except Exception:
            value = 0.0
"""


@pytest.mark.parametrize(
    ("evaluator", "by", "reason"),
    [
        (BY_SCORE, None, "valued by the reward service: set GYMFLEET_ROLLOUT_REWARD_URL"),
        (None, Values(), r"valued by the reward service: say how in `evaluator`, in a recipe \[rollout.evaluator\]"),
    ],
)
async def test_without_an_evaluator_nothing_is_played(
    path: Path, evaluator: EvaluatorSpec | None, by: Values | None, reason: str
) -> None:
    table = Table(path, EVALUATES, ScriptedPolicy(LEFT), head=EVALUATING)
    if by is not None:
        table.evaluate_by(by)

    trajectories = await table.play(evaluator=evaluator)

    assert [t.status for t in trajectories] == [Status.POLICY_ERROR] * 2
    assert all(re.search(reason, str(t.error)) for t in trajectories)
    assert table.door.opened == []
