"""Strategies of somebody's own: trees, contexts, and what a strategy that is no good leads to."""

import asyncio
import re
from pathlib import Path

import pytest
from gymfleet_client.errors import EnvironmentFailed, ForkUnsupported
from gymfleet_contracts.rollout import EpisodeLimits, Sampling, StrategySpec
from gymfleet_contracts.trajectory import FinishReason, Status, Trajectory
from gymfleet_kit.plugins import PluginError
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.inference.base import EngineDied
from gymfleet_rollout.player import Player
from gymfleet_rollout.strategy import STRATEGIES, strategy_of

from tests.fixtures.strategies import (
    FORKS,
    HEAD,
    PLAYS_ON,
    RESTARTS,
    SIDE_BY_SIDE,
    Table,
)
from tests.unit.rollout.test_episode import CHAT, LEFT, OPEN, Door, ScriptedPolicy, Specs, failure, group


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymfleet_rollout.player._RETRY_PAUSE_S", 0.0)
    monkeypatch.setattr("gymfleet_rollout.sessions._OPEN_PAUSE_S", 0.0)


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
    assert [turn.node for turn in only.turns] == ["1~2.1", "2~2.1"], "no node of the tree that was played before"


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
        (
            StrategySpec(use="nothing"),
            "there is no strategy 'nothing'; known: beam, best_of_n, dfsdt, expert, forks, ",
        ),
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
