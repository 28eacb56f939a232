"""What a group may cost."""

import asyncio
from pathlib import Path

import pytest
from gymfleet_contracts.rollout import Budget, EpisodeLimits
from gymfleet_contracts.trajectory import FinishReason, Status, Trajectory
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.player import Player

from tests.fixtures.strategies import PLAYS_ON, SIDE_BY_SIDE, Table
from tests.unit.rollout.test_episode import CHAT, LEFT, OPEN, Door, ScriptedPolicy, Specs, group


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymfleet_rollout.player._RETRY_PAUSE_S", 0.0)
    monkeypatch.setattr("gymfleet_rollout.sessions._OPEN_PAUSE_S", 0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mine.py"


# --- budgets


@pytest.mark.parametrize(
    ("budget", "turns"),
    [
        pytest.param(Budget(env_steps=3), 3, id="steps"),
        pytest.param(Budget(model_calls=3), 3, id="replies"),
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
    assert trajectory.final_prompt_token_ids, "the recipe cut it"
    assert not table.left_open


@pytest.mark.parametrize(
    ("caches", "left", "lengths"),
    [
        pytest.param(False, 0, [0, 0, 0], id="enough for three"),
        pytest.param(False, -1, [0, 0, -1], id="the last reply is cut"),
        pytest.param(False, 1, [0, 0, 0], id="a token is not enough for a fourth prompt"),
        pytest.param(False, -len(CHAT.reply(LEFT)), [0, 0], id="no token is left for the third reply"),
        pytest.param(True, 0, [0, 0, 0, 0, 0, -9], id="what is cached costs nothing, and the next prompt might"),
    ],
)
async def test_tokens_are_those_of_replies_and_of_prompts_that_were_computed(
    path: Path, caches: bool, left: int, lengths: list[int]
) -> None:
    """The budget is what three turns cost without a cache, and `left` more."""
    free = Table(path, PLAYS_ON, ScriptedPolicy(LEFT))
    (three,) = await free.play(limits=EpisodeLimits(max_turns=3))
    needed = sum(turn.num_prefilled_tokens + len(turn.response_token_ids) for turn in three.turns)
    table = Table(path, PLAYS_ON, ScriptedPolicy(LEFT))
    table.policy.caches = caches

    (trajectory,) = await table.play(budget=Budget(tokens=needed + left), limits=EpisodeLimits(max_turns=9))

    whole = len(CHAT.reply(LEFT))
    prompts = [len(prompt) for prompt, _, _ in free.policy.calls]
    assert needed == sum(prompts) + 3 * whole
    assert [len(turn.response_token_ids) - whole for turn in trajectory.turns] == lengths
    assert trajectory.finish_reason is FinishReason.BUDGET
    (tree,) = table.trees
    assert tree.spent.tokens == sum(lengths) + len(lengths) * whole + (0 if caches else sum(prompts[: len(lengths)]))


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


async def test_an_episode_that_was_opened_and_not_begun_is_none(path: Path) -> None:
    together = Table(path, SIDE_BY_SIDE, ScriptedPolicy(LEFT))
    door = Door()
    player = Player(ScriptedPolicy(LEFT), CHAT, door, Specs(), Formats(), max_episodes=8)  # type: ignore[arg-type]
    apart: list[Trajectory] = []

    async def deliver(trajectories: list[Trajectory]) -> None:
        apart.extend(trajectories)

    await player.play(group(budget=Budget(env_steps=1)), [0, 1], deliver)
    (only,) = await together.play(num_samples=2, budget=Budget(env_steps=1))

    assert (only.finish_reason, len(only.turns), only.group_size) == (FinishReason.BUDGET, 1, 1)
    assert sorted((one.status, len(one.turns)) for one in apart) == [(Status.POLICY_ERROR, 0), (Status.TRUNCATED, 1)]
    assert {one.error for one in apart} == {
        None, "StrategyError: the budget was spent before an episode began (env_steps: 2 would exceed 1)",
    }  # fmt: skip
    assert sorted(door.closed) == ["s1", "s2"]


async def test_tokens_are_never_exceeded_by_replies_under_way(path: Path) -> None:
    table = Table(path, SIDE_BY_SIDE, ScriptedPolicy(LEFT))

    trajectories = await table.play(num_samples=4, budget=Budget(tokens=1500))

    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    assert 1200 < sum(turn.num_prefilled_tokens + len(turn.response_token_ids) for turn in turns) <= 1500
    assert {trajectory.finish_reason for trajectory in trajectories} == {FinishReason.BUDGET}


async def test_time_is_a_budget_too(path: Path) -> None:
    table = Table(path, PLAYS_ON, ScriptedPolicy(LEFT, "Thought: x Action: hang"))

    (trajectory,) = await table.play(budget=Budget(seconds=0.1))

    assert (trajectory.status, trajectory.finish_reason) == (Status.TRUNCATED, FinishReason.BUDGET)
    assert len(trajectory.turns) == 1
    assert not table.left_open


async def test_a_group_has_all_its_time_after_it_has_waited_for_room() -> None:
    door = Door()
    policy = ScriptedPolicy("Thought: x Action: hang", OPEN)
    player = Player(policy, CHAT, door, Specs(), Formats(), max_episodes=1)  # type: ignore[arg-type]
    played: list[Trajectory] = []

    async def deliver(trajectories: list[Trajectory]) -> None:
        played.extend(trajectories)

    async def let_go(after_s: float) -> None:
        await asyncio.sleep(after_s)
        door.hang.set()

    timed = group(group_id="timed", budget=Budget(seconds=2))
    await asyncio.gather(player.play(group(), [0], deliver), player.play(timed, [0], deliver), let_go(2.1))

    assert [t.status for t in played] == [Status.COMPLETED] * 2


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
