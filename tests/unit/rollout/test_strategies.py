"""Strategies of somebody's own: trees, budgets, and what a strategy that is no good leads to."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from gymfleet_client.errors import EnvironmentFailed, ForkUnsupported
from gymfleet_contracts.reward import RewardSpec, ScoreRequest
from gymfleet_contracts.rollout import Budget, EpisodeLimits, Sampling, StrategySpec
from gymfleet_contracts.search import SearchTree
from gymfleet_contracts.trajectory import FinishReason, Status, Trajectory
from gymfleet_kit.plugins import PluginError
from gymfleet_rollout.errors import EvaluationFailed
from gymfleet_rollout.evaluator import Evaluator
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.inference.base import EngineDied
from gymfleet_rollout.player import Player
from gymfleet_rollout.strategy import STRATEGIES, strategy_of

from tests.unit.rollout.test_episode import CHAT, LEFT, OPEN, Door, ScriptedPolicy, Specs, failure, group

E = TypeVar("E", bound=Evaluator)

HEAD = """
import asyncio
from gymfleet_rollout.strategy import BudgetSpent, Strategy, StrategyFacts, StrategyOptions


class Options(StrategyOptions):
    width: int = 2


class Mine(Strategy[Options]):
    Options = Options

    async def play(self, ctx):
"""
FORKS = """
        root = await ctx.open()
        (first,) = await ctx.propose(root)
        stem = await ctx.act(root, first)
        nodes = [stem, *await ctx.fork(stem, self.options.width - 1)]
        replies = await ctx.propose(stem, self.options.width)
        for node, reply in zip(nodes, replies):
            ctx.export(await ctx.act(node, reply))
"""
PLAYS_ON = """
        node = await ctx.open()
        while not node.over:
            (reply,) = await ctx.propose(node)
            node = await ctx.act(node, reply)
        ctx.export(node)
"""
RESTARTS = """
        node = await ctx.open()
        while not node.over or node.ended == "context_length":
            if node.depth == self.options.width or node.over:
                ctx.restart(node, f"So far: {node.depth} turns. {node.observation}")
            (reply,) = await ctx.propose(node)
            node = await ctx.act(node, reply)
        ctx.export(node)
"""
BY_SAMPLE = "    Options, facts = Options, StrategyFacts(by_sample=True)"
SIDE_BY_SIDE = """
        async def one():
            node = await ctx.open()
            while not node.over:
                (reply,) = await ctx.propose(node)
                node = await ctx.act(node, reply)
            ctx.export(node)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(ctx.group.num_samples):
                tasks.create_task(one())
"""


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymfleet_rollout.player._RETRY_PAUSE_S", 0.0)
    monkeypatch.setattr("gymfleet_rollout.sessions._OPEN_PAUSE_S", 0.0)


class Table:
    """Plays groups by a file's strategy; `deliveries` are what was delivered together."""

    def __init__(
        self, path: Path, body: str, policy: ScriptedPolicy, door: Door | None = None, head: str = HEAD
    ) -> None:
        path.write_text(head + body)
        self.use = str(path)
        self.door = door or Door()
        self.policy = policy
        self.deliveries: list[list[Trajectory]] = []
        self.trees: list[SearchTree] = []
        self.order: list[str] = []
        self.player = Player(policy, CHAT, self.door, Specs(), Formats(), max_episodes=8, plugins=(self.use,))  # type: ignore[arg-type]

    async def play(self, options: dict[str, Any] | None = None, **changes: Any) -> list[Trajectory]:
        wanted = group(strategy=StrategySpec(use=self.use, options=options or {}), **changes)

        async def deliver(trajectories: list[Trajectory]) -> None:
            self.deliveries.append(trajectories)
            self.order.append("trajectories")

        async def deliver_tree(tree: SearchTree) -> None:
            self.trees.append(tree)
            self.order.append("tree")

        await self.player.play(wanted, wanted.wanted, deliver, deliver_tree)
        return [trajectory for delivery in self.deliveries for trajectory in delivery]

    def evaluate_by(self, evaluator: E) -> E:
        made: Any = self.door, Specs(), Formats()
        self.player = Player(self.policy, CHAT, *made, max_episodes=8, plugins=(self.use,), evaluator=evaluator)
        return evaluator

    @property
    def left_open(self) -> set[str]:
        made = {f"s{number + 1}" for number in range(len(self.door.opened))} | {f for _, _, f in self.door.forked}
        return made - set(self.door.closed)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mine.py"


# --- trees


async def test_a_fork_shares_the_turns_before_it(path: Path) -> None:
    table = Table(path, FORKS, ScriptedPolicy(LEFT, OPEN, LEFT))

    first, second = await table.play(sampling=Sampling(seed=3))

    assert len(table.deliveries) == 1, "what was played together is delivered together"
    assert [t.trajectory_id for t in (first, second)] == ["run/g/0", "run/g/1"]
    assert first.turns[0] == second.turns[0]
    assert [[(turn.parent, turn.node) for turn in t.turns] for t in (first, second)] == [
        [("0", "1"), ("1", "2")],
        [("0", "1"), ("1", "2-1.1")],
    ]
    assert [turn.action for turn in first.turns] == ["go left", "open"]
    assert [turn.action for turn in second.turns] == ["go left", "go left"]
    assert (first.status, first.success, first.finish_reason) == (Status.COMPLETED, True, FinishReason.TERMINATED)
    assert (second.status, second.success, second.finish_reason) == (Status.TRUNCATED, False, FinishReason.STOPPED)
    assert table.door.forked == [("s1", 1, "f1")], "forked after one step"
    assert [(session, index) for session, index, _ in table.door.actions] == [("s1", 0), ("s1", 1), ("f1", 1)]
    assert not table.left_open
    seeds = [call[2].seed for call in table.policy.calls]
    assert len(set(seeds)) == 3, "each reply is drawn apart"
    again = Table(path, FORKS, ScriptedPolicy(LEFT, OPEN, LEFT))
    await again.play(sampling=Sampling(seed=3))
    assert [call[2].seed for call in again.policy.calls] == seeds


async def test_a_group_has_as_many_episodes_as_its_strategy_exports(path: Path) -> None:
    table = Table(path, FORKS, ScriptedPolicy(LEFT))

    assert [(t.sample, t.group_size) for t in await table.play({"width": 3})] == [(0, 3), (1, 3), (2, 3)]


async def test_samples_that_are_wanted_again_are_all_that_is_delivered(path: Path) -> None:
    table = Table(path, FORKS, ScriptedPolicy(LEFT))

    (only,) = await table.play(samples=(1,), replay=2)

    assert (only.sample, only.replay, only.group_size) == (1, 2, 2)
    assert [turn.node for turn in only.turns] == ["1~2", "2~2"], "no node of the tree that was played before"


async def test_a_sample_that_is_wanted_again_and_not_made_has_failed(path: Path) -> None:
    table = Table(path, PLAYS_ON, ScriptedPolicy(OPEN))

    found = await table.play(num_samples=4, samples=(3, 1), replay=2)

    assert [(t.sample, t.status) for t in found] == [(3, Status.COMPLETED), (1, Status.POLICY_ERROR)]
    assert "exported 1 episodes, 2 were wanted" in str(found[1].error)


async def test_plain_episodes_say_nothing_of_nodes(path: Path) -> None:
    head = HEAD.replace("    Options = Options", "    Options, facts = Options, StrategyFacts(by_sample=True)")
    table = Table(path, PLAYS_ON, ScriptedPolicy(OPEN), head=head)

    trajectories = await table.play()

    assert len(table.deliveries) == 2, "each by itself"
    assert "node" not in trajectories[0].model_dump_json()
    assert not {"selected", "group_size"} & trajectories[0].model_dump().keys()


async def test_what_a_search_chose_says_so(path: Path) -> None:
    table = Table(path, PLAYS_ON.replace("export(node)", "export(node, selected=True)"), ScriptedPolicy(OPEN))

    (trajectory,) = await table.play()

    assert trajectory.selected
    assert Trajectory.model_validate_json(trajectory.model_dump_json()).selected


async def test_a_hint_stands_in_the_recorded_prompt(path: Path) -> None:
    body = PLAYS_ON.replace("propose(node)", 'propose(node, hint="Try the door.")')
    hinted = await Table(path, body, ScriptedPolicy(LEFT, OPEN)).play()
    policy = ScriptedPolicy(LEFT, OPEN)
    plain = await Table(path.with_name("plain.py"), PLAYS_ON, policy).play()

    turn = hinted[0].turns[0]
    assert turn.observation == plain[0].turns[0].observation == "A door."
    assert "A door.\n\nTry the door.<|im_end|>" in CHAT._tokenizer.decode(turn.prompt_token_ids)
    assert "Try the door" not in CHAT._tokenizer.decode(plain[0].turns[0].prompt_token_ids)


async def test_the_engine_sees_the_tokens_of_the_path(path: Path) -> None:
    table = Table(path, FORKS, ScriptedPolicy(LEFT))

    trajectories = await table.play()

    for trajectory, (prompt, _, _) in zip(trajectories, table.policy.calls[1:], strict=True):
        first, second = trajectory.turns
        assert prompt == (*first.prompt_token_ids, *first.response_token_ids, *second.prompt_token_ids)


# --- contexts


async def test_a_context_can_be_replaced(path: Path) -> None:
    table = Table(path, RESTARTS, ScriptedPolicy(LEFT))

    (trajectory,) = await table.play(limits=EpisodeLimits(max_turns=4))

    assert [turn.context for turn in trajectory.turns] == ["continued", "continued", "replaced", "continued"]
    assert [len(turns) for turns in trajectory.sequences()] == [2, 2]
    asked = iter(prompt for prompt, _, _ in table.policy.calls)
    for turns in trajectory.sequences():
        context: tuple[int, ...] = ()
        for turn in turns:
            context += turn.prompt_token_ids
            assert next(asked) == context
            context += turn.response_token_ids
    assert "So far: 2 turns. You did go left.<|im_end|>" in CHAT._tokenizer.decode(trajectory.turns[2].prompt_token_ids)
    assert trajectory.turns[2].observation == "You did go left.", "the environment's own words"
    head, _, _ = CHAT._tokenizer.decode(trajectory.turns[0].prompt_token_ids).partition("A door.")
    assert CHAT._tokenizer.decode(trajectory.turns[2].prompt_token_ids).startswith(head), "with the instructions"


async def test_a_full_context_can_be_replaced_and_each_sequence_has_the_room_of_one(path: Path) -> None:
    limits = EpisodeLimits(max_turns=8, max_context_tokens=240)
    table = Table(path, RESTARTS, ScriptedPolicy(LEFT))

    (trajectory,) = await table.play({"width": 99}, limits=limits)

    assert (trajectory.finish_reason, len(trajectory.turns)) == (FinishReason.MAX_TURNS, 8)
    lengths = [sum(len(t.prompt_token_ids) + len(t.response_token_ids) for t in s) for s in trajectory.sequences()]
    assert len(lengths) > 1
    assert max(lengths) <= 240 < sum(lengths)


async def test_a_restart_at_the_beginning_replaces_nothing(path: Path) -> None:
    table = Table(path, RESTARTS, ScriptedPolicy(OPEN))

    (trajectory,) = await table.play({"width": 0})

    assert [turn.context for turn in trajectory.turns] == ["continued"]
    assert "So far: 0 turns" in CHAT._tokenizer.decode(trajectory.turns[0].prompt_token_ids)


async def test_an_episode_that_ends_at_a_restart_keeps_the_state_in_which_it_was_cut(path: Path) -> None:
    body = RESTARTS.replace("            (reply,)", "            if node.replacement: break\n            (reply,)")
    (restarted,) = await Table(path, body, ScriptedPolicy(LEFT)).play()
    (plain,) = await Table(path, PLAYS_ON, ScriptedPolicy(LEFT)).play(limits=EpisodeLimits(max_turns=2))

    assert restarted.finish_reason is FinishReason.STOPPED
    assert restarted.final_prompt_token_ids == plain.final_prompt_token_ids


async def test_a_fork_has_the_context_of_its_sequence_alone(path: Path) -> None:
    body = """
        node = await ctx.open()
        for _ in range(3):
            if node.depth == 1:
                ctx.restart(node, "Afresh.")
            (reply,) = await ctx.propose(node)
            node = await ctx.act(node, reply)
        (fork,) = await ctx.fork(node)
        (reply,) = await ctx.propose(fork)
        ctx.export(await ctx.act(fork, reply))
"""
    table = Table(path, body, ScriptedPolicy(LEFT))

    (trajectory,) = await table.play()

    own = trajectory.sequences()[1]
    before = [token for turn in own[:-1] for token in (*turn.prompt_token_ids, *turn.response_token_ids)]
    assert table.policy.calls[-1][0] == (*before, *own[-1].prompt_token_ids)


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
        ("0~2", None, 0, None),
        ("1~2", "0~2", 1, "go left"),
        ("1-0.1~2", "0~2", 1, "open"),
        ("1-0.2~2", "0~2", 1, None),
    ]
    assert [(node.score, node.value, node.visits) for node in tree.nodes] == [
        (0.0, None, 3), (0.0, 0.0, 0), (1.0, 0.5, 1), (0.0, 0.0, 2)
    ]  # fmt: skip
    assert [(node.samples, node.selected) for node in tree.nodes] == [
        ((), False), ((1,), False), ((0,), True), ((), False)
    ]  # fmt: skip
    assert [node.ended for node in tree.nodes] == [None, FinishReason.STOPPED, FinishReason.TERMINATED, None]
    assert (tree.spent.env_steps, tree.spent.model_calls) == (2, 3)
    assert tree.spent.tokens == sum(len(CHAT.reply(reply)) for reply in (LEFT, OPEN, "no action here"))


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

EVALUATING = HEAD.replace("    Options = Options", "    Options, facts = Options, StrategyFacts(evaluates=True)")
EVALUATES = """
        root = await ctx.open()
        forks = [root, *await ctx.fork(root, 1)]
        (value,) = await ctx.evaluate([root])
        nodes = [await ctx.act(fork, (await ctx.propose(fork))[0]) for fork in forks]
        values = await ctx.evaluate(nodes)
        ctx.note(nodes[1], value=0.5)  # instead of what the reward service says
        best = max(zip(values, range(2)))[1]
        node = nodes[best]
        while not node.over:
            (reply,) = await ctx.propose(node)
            node = await ctx.act(node, reply)
        ctx.export(node)
"""


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
    spec = RewardSpec(allocation="uniform_positive")

    (trajectory,) = await table.play(evaluator=spec, budget=Budget(evaluations=3))

    asked = [request.trajectory for request in values.asked]
    assert [one.finish_reason for one in asked] == [
        FinishReason.STOPPED, FinishReason.STOPPED, FinishReason.TERMINATED
    ]  # fmt: skip
    assert [(one.status, one.score) for one in asked] == [
        (Status.TRUNCATED, 0.0), (Status.TRUNCATED, 0.0), (Status.COMPLETED, 1.0)
    ]  # fmt: skip
    assert asked[2].turns == trajectory.turns, "the same tokens"
    assert asked[1].final_observation == "You did go left."
    assert {request.reward for request in values.asked} == {spec}
    assert table.trees[0].spent.evaluations == 3
    assert {node.id: node.value for node in table.trees[0].nodes if node.depth < 2} == {
        "0": 0.0,
        "1": 1.0,
        "1-0.1": 0.5,
    }


async def test_evaluations_are_counted_before_they_are_asked_for(path: Path) -> None:
    table = Table(path, EVALUATES, ScriptedPolicy(LEFT), head=EVALUATING)
    values = table.evaluate_by(Values())

    trajectories = await table.play(evaluator=RewardSpec(), budget=Budget(evaluations=2))

    assert len(values.asked) == 1, "two more would be three"
    assert {t.finish_reason for t in trajectories} == {FinishReason.BUDGET}


async def test_a_value_that_fails_is_a_failure_and_no_zero(path: Path) -> None:
    table = Table(path, EVALUATES, ScriptedPolicy(LEFT, LEFT, OPEN), head=EVALUATING)
    table.evaluate_by(Values(EvaluationFailed("judge: away")))
    (again,) = await table.play(evaluator=RewardSpec())
    assert (again.status, again.attempt) == (Status.COMPLETED, 2)

    hides = EVALUATES.replace("        (value,) = await ctx.evaluate([root])", HIDDEN)
    hiding = Table(path, hides, ScriptedPolicy(LEFT, LEFT, OPEN), head=EVALUATING)
    hiding.evaluate_by(Values(EvaluationFailed("judge: away")))
    (failed, _) = await hiding.play(evaluator=RewardSpec(), limits=EpisodeLimits(max_attempts=1))
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
        (RewardSpec(), None, "valued by the reward service: set GYMFLEET_ROLLOUT_REWARD_URL"),
        (None, Values(), r"valued by the reward service: say how in `evaluator`, in a recipe \[rollout.evaluator\]"),
    ],
)
async def test_without_an_evaluator_nothing_is_played(
    path: Path, evaluator: RewardSpec | None, by: Values | None, reason: str
) -> None:
    table = Table(path, EVALUATES, ScriptedPolicy(LEFT), head=EVALUATING)
    if by is not None:
        table.evaluate_by(by)

    trajectories = await table.play(evaluator=evaluator)

    assert [t.status for t in trajectories] == [Status.POLICY_ERROR] * 2
    assert all(re.search(reason, str(t.error)) for t in trajectories)
    assert table.door.opened == []


# --- budgets


@pytest.mark.parametrize(
    ("budget", "turns"),
    [
        pytest.param(Budget(env_steps=3), 3, id="steps"),
        pytest.param(Budget(model_calls=3), 3, id="replies"),
        pytest.param(Budget(tokens=3 * len(CHAT.reply(LEFT))), 3, id="tokens"),
        pytest.param(Budget(tokens=3 * len(CHAT.reply(LEFT)) - 1), 3, id="the last reply is cut"),
        pytest.param(Budget(), 6, id="none: as far as the turns go"),
    ],
)
async def test_a_budget_that_is_spent_ends_the_episode(path: Path, budget: Budget, turns: int) -> None:
    table = Table(path, PLAYS_ON, ScriptedPolicy(LEFT))

    (trajectory,) = await table.play(budget=budget, limits=EpisodeLimits(max_turns=6))

    assert (trajectory.status, len(trajectory.turns)) == (Status.TRUNCATED, turns)
    assert trajectory.finish_reason is (FinishReason.MAX_TURNS if budget == Budget() else FinishReason.BUDGET)
    assert trajectory.error is None
    assert len(table.door.actions) <= (budget.env_steps or 6)
    assert len(table.policy.calls) <= (budget.model_calls or 6)
    assert trajectory.num_response_tokens <= (budget.tokens or 10_000)
    assert trajectory.final_prompt_token_ids, "the recipe cut it"
    assert not table.left_open


async def test_the_episodes_of_a_group_share_its_budget(path: Path) -> None:
    table = Table(path, SIDE_BY_SIDE, ScriptedPolicy(LEFT))

    trajectories = await table.play(num_samples=3, budget=Budget(env_steps=7))

    assert len(table.door.actions) == 7
    assert [t.finish_reason for t in trajectories] == [FinishReason.BUDGET] * 3
    assert sum(turn.action_valid for t in trajectories for turn in t.turns) == 7
    assert not table.left_open


async def test_samples_that_are_played_apart_share_it_too(path: Path) -> None:
    door = Door()
    player = Player(ScriptedPolicy(LEFT), CHAT, door, Specs(), Formats(), max_episodes=8)  # type: ignore[arg-type]
    played: list[Trajectory] = []

    async def deliver(trajectories: list[Trajectory]) -> None:
        played.extend(trajectories)

    await player.play(group(num_samples=3, budget=Budget(model_calls=7)), [0, 1, 2], deliver)

    assert sum(len(t.turns) for t in played) == 7
    assert {t.finish_reason for t in played} == {FinishReason.BUDGET}


async def test_an_episode_that_the_budget_lets_nobody_begin_is_a_failure_with_its_reason() -> None:
    """Not an exception that ends the worker, and no episode without a turn."""
    player = Player(ScriptedPolicy(LEFT), CHAT, Door(), Specs(), Formats(), max_episodes=1)  # type: ignore[arg-type]
    played: list[Trajectory] = []

    async def deliver(trajectories: list[Trajectory]) -> None:
        played.extend(trajectories)

    await player.play(group(num_samples=2, budget=Budget(seconds=1e-9)), [0, 1], deliver)

    assert [t.status for t in played] == [Status.POLICY_ERROR] * 2
    assert {t.error for t in played} == {
        "StrategyError: the budget was spent before an episode began (seconds: all 1e-09 are spent)"
    }


async def test_tokens_are_never_exceeded_by_replies_under_way(path: Path) -> None:
    table = Table(path, SIDE_BY_SIDE, ScriptedPolicy(LEFT))

    trajectories = await table.play(num_samples=4, budget=Budget(tokens=100))

    assert sum(t.num_response_tokens for t in trajectories) == 100


async def test_time_is_a_budget_too(path: Path) -> None:
    table = Table(path, PLAYS_ON, ScriptedPolicy(LEFT, "Thought: x Action: hang"))

    (trajectory,) = await table.play(budget=Budget(seconds=0.1))

    assert (trajectory.status, trajectory.finish_reason) == (Status.TRUNCATED, FinishReason.BUDGET)
    assert len(trajectory.turns) == 1
    assert not table.left_open


async def test_a_strategy_may_catch_it_and_export_what_it_has(path: Path) -> None:
    body = """
        node = await ctx.open()
        try:
            while not node.over:
                (reply,) = await ctx.propose(node)
                node = await ctx.act(node, reply)
        except BudgetSpent:
            ctx.export(node, selected=True)
"""
    (trajectory,) = await Table(path, body, ScriptedPolicy(LEFT)).play(budget=Budget(env_steps=2))

    assert (trajectory.selected, trajectory.finish_reason) == (True, FinishReason.BUDGET)


# --- what is no good


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param("        raise RuntimeError('no\\nidea')", "failed: RuntimeError: no idea", id="raises"),
        pytest.param("        await ctx.open()", "exported no episode of the group", id="nothing"),
        pytest.param("        yield 1", "play must be `async def`, without `yield`", id="a generator"),
        pytest.param("        ctx.export(None)", "failed: AttributeError", id="no node"),
        pytest.param(PLAYS_ON + "        ctx.export(node)", "node 1 was exported already", id="twice"),
        pytest.param(
            PLAYS_ON.replace("node = await ctx.act", "await ctx.act"), "node 0 was played on: fork it", id="acts twice"
        ),
        pytest.param(
            PLAYS_ON + "        await ctx.propose(node)", "the episode is over at node 1: terminated", id="goes on"
        ),
        pytest.param(
            PLAYS_ON.replace("act(node, reply)", "act(await ctx.act(node, reply), reply)"),
            "a reply to node 0 cannot be acted upon at node 1", id="another node's reply",
        ),
        pytest.param(
            "        ctx.note(await ctx.open(), value=float('nan'))", "value nan of node 0 is not finite", id="value"
        ),
        pytest.param(
            "        await ctx.evaluate([await ctx.open()])", "where the strategy says facts.evaluates", id="values"
        ),
        pytest.param("        ctx.note(await ctx.open(), visits=-1)", "node 0 cannot have -1 visits", id="visits"),
        pytest.param(
            "        await ctx.propose(await ctx.open(), role='planer')",
            "the role 'planer' is not in facts.roles; known: agent", id="unknown role",
        ),
        pytest.param("        ctx.restart(await ctx.open(), 'x ' * 9999)", "tokens, the context 4096", id="too long"),
        pytest.param(PLAYS_ON + "        ctx.restart(node, 'x')", "node 1 was exported already", id="restarts"),
        pytest.param(
            "        node = await ctx.open()\n        ctx.restart(node, 'x')\n"
            "        await ctx.propose(node, hint='y')",
            "put the hint into that", id="two texts",
        ),
        pytest.param("        await ctx.demonstrate(await ctx.open())", "the expert replies only where", id="expert"),
        pytest.param(
            '        ctx.write(await ctx.open(), "I go", "left")', "replies are written only where", id="writes itself"
        ),
    ],
)  # fmt: skip
async def test_a_mistake_is_one_line_in_failed_samples(path: Path, body: str, reason: str) -> None:
    policy = ScriptedPolicy(LEFT if "act(await" in body else OPEN)
    table = Table(path, body, policy)

    trajectories = await table.play()

    assert [(t.sample, t.status, t.attempt) for t in trajectories] == [
        (0, Status.POLICY_ERROR, 1), (1, Status.POLICY_ERROR, 1)
    ]  # fmt: skip
    assert all(reason in str(t.error) and "\n" not in str(t.error) for t in trajectories)
    assert not table.left_open


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (StrategySpec(use="nothing"), "there is no strategy 'nothing'; known: expert, independent, script; or give"),
        (StrategySpec(use="os:path"), "this service was not given the strategy 'os:path'"),
        (StrategySpec(use="/etc/shadow.py"), "this service was not given the strategy '/etc/shadow.py'"),
        (
            StrategySpec(options={"widht": 1}),
            r"rollout\.strategy\.widht: Extra .* \(the options of independent: none\)",
        ),
    ],
)
async def test_one_that_cannot_be_used_fails_its_samples(spec: StrategySpec, reason: str) -> None:
    door = Door()
    player = Player(ScriptedPolicy(LEFT), CHAT, door, Specs(), Formats(), max_episodes=8)  # type: ignore[arg-type]
    played: list[Trajectory] = []

    async def deliver(trajectories: list[Trajectory]) -> None:
        played.extend(trajectories)

    await player.play(group(strategy=spec), [0, 1], deliver)

    assert [(t.sample, t.status, t.finish_reason) for t in played] == [
        (sample, Status.POLICY_ERROR, FinishReason.ERROR) for sample in (0, 1)
    ]
    assert all(re.search(reason, str(t.error)) for t in played)
    assert door.opened == []
    with pytest.raises(PluginError, match=reason):
        strategy_of(STRATEGIES.offered(spec.use, ()), spec)


async def test_a_failure_of_the_machinery_plays_the_whole_group_anew(path: Path) -> None:
    table = Table(path, SIDE_BY_SIDE, ScriptedPolicy(OPEN), Door({"step": [failure(EnvironmentFailed)]}))

    trajectories = await table.play()

    assert [(t.sample, t.status, t.attempt) for t in trajectories] == [(n, Status.COMPLETED, 2) for n in (0, 1)]
    assert not table.left_open


async def test_an_environment_that_cannot_be_forked_is_no_reason_to_try_again(path: Path) -> None:
    table = Table(path, FORKS, ScriptedPolicy(LEFT), Door({"fork": [failure(ForkUnsupported)]}))

    trajectories = await table.play()

    assert [(t.status, t.attempt) for t in trajectories] == [(Status.ENV_ERROR, 1)] * 2
    assert not table.left_open


async def test_a_dead_engine_is_nobodys_sample(path: Path) -> None:
    table = Table(path, SIDE_BY_SIDE, ScriptedPolicy(EngineDied("gone")))

    with pytest.raises(EngineDied):
        await table.play()

    assert (table.deliveries, table.left_open) == ([], set())


async def test_a_cancelled_group_closes_its_sessions(path: Path) -> None:
    table = Table(path, SIDE_BY_SIDE, ScriptedPolicy("Thought: x Action: hang"))
    task = asyncio.create_task(table.play(num_samples=3))
    async with asyncio.timeout(5):
        while len(table.policy.calls) < 3:  # noqa: ASYNC110 - the script has no event for it
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert len(table.door.opened) == 3
    assert not table.left_open


SWALLOWS = """
        node = await ctx.open()
        (reply,) = await ctx.propose(node)
        try:
            await ctx.act(node, reply)
        except (asyncio.CancelledError, Exception):
            pass
        ctx.export(node)
"""


async def test_a_deadline_or_a_cancellation_that_a_strategy_swallows_makes_no_sample(path: Path) -> None:
    table = Table(path, SWALLOWS, ScriptedPolicy("Thought: x Action: hang"))
    (late, _) = await table.play(limits=EpisodeLimits(episode_timeout_s=0.05, max_attempts=1))
    assert (late.status, "episode_timeout_s" in str(late.error)) == (Status.TIMEOUT, True)

    stopped = Table(path, SWALLOWS, ScriptedPolicy("Thought: x Action: hang"))
    task = asyncio.create_task(stopped.play())
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert (stopped.deliveries, stopped.left_open) == ([], set())


async def test_a_failure_that_a_strategy_swallows_is_one_all_the_same(path: Path) -> None:
    table = Table(path, SWALLOWS, ScriptedPolicy(OPEN), Door({"step": [failure(EnvironmentFailed)]}))

    trajectories = await table.play(limits=EpisodeLimits(max_attempts=1))

    assert [t.status for t in trajectories] == [Status.ENV_ERROR] * 2


async def test_what_a_strategy_leaves_running_opens_nothing_more(path: Path) -> None:
    body = (
        """
        asyncio.create_task(ctx.open())
"""
        + PLAYS_ON
    )
    table = Table(path, body, ScriptedPolicy(OPEN))

    await table.play()
    await asyncio.sleep(0.01)

    assert len(table.door.opened) == 2
    assert not table.left_open


async def test_groups_that_are_played_together_wait_for_room_for_all_of_their_episodes(path: Path) -> None:
    table = Table(path, SIDE_BY_SIDE, ScriptedPolicy("Thought: x Action: hang"))
    tasks = [asyncio.create_task(table.play(num_samples=5)) for _ in range(3)]
    await asyncio.sleep(0.05)

    num_open = len(table.door.opened) - len(table.door.closed)
    table.policy.replies = [OPEN]
    table.door.hang.set()
    await asyncio.gather(*tasks)

    assert num_open == 5, "another five would exceed max_episodes = 8"
    assert len(table.door.opened) == 15
