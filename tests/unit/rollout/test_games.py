"""Games that a strategy plays: a context, a reward and a record for each seat, and no player that waits for ever."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.rollout import Budget, EpisodeLimits, Sampling, StrategySpec
from gymfleet_contracts.session import EnvironmentSpec, Game, OpenSession, Seat, Session, StepResult
from gymfleet_contracts.trajectory import FinishReason, Status, Trajectory
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.inference.base import InferenceError
from gymfleet_rollout.player import Player

from tests.fixtures.strategies import HEAD
from tests.unit.rollout.test_episode import CHAT, SPEC, Door, ScriptedPolicy, group

SELF_PLAY = StrategySpec(use="self_play")
TAKE = "Thought: one Action: take"
HM = "Thought: hm"
GAMES = HEAD.replace("    Options = Options", "    Options, facts = Options, StrategyFacts(games=True)")
WINS = 4
"""Who takes the fourth stick wins."""


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymfleet_rollout.player._RETRY_PAUSE_S", 0.0)
    monkeypatch.setattr("gymfleet_rollout.sessions._OPEN_PAUSE_S", 0.0)


class Sticks(Door):
    """Sessions of a game: `take` takes a stick, who takes the fourth one wins 1, and the other loses 0.5.

    Each stick is worth `pays` besides.
    """

    def __init__(self, pays: float = 0.0, **more: Any) -> None:
        super().__init__(**more)
        self.pays = pays
        self.taken: dict[str, int] = {}

    def _game(self, session_id: str, mover: str | None) -> Game:
        taken = self.taken[session_id]
        over = taken == WINS
        won = {"x": -0.5, "o": 1.0} if over else {"x": 0.0, "o": 0.0}
        seats = {
            name: Seat(
                observation=f"{name} sees {taken} taken.",
                reward=won[name] + self.pays * own,
                score=max(won[name], 0.0),
            )
            for name, own in (("x", (taken + 1) // 2), ("o", taken // 2))
        }
        return Game(to_move=None if over else "xo"[taken % 2], moved=mover, seats=seats)

    async def open(self, request: OpenSession, *, timeout_s: float = 0) -> Session:
        session = await super().open(request, timeout_s=timeout_s)
        self.taken[session.session_id] = 0
        return session.model_copy(
            update={"observation": "x sees 0 taken.", "game": self._game(session.session_id, None)}
        )

    async def step(self, session_id: str, index: int, action: str, *, timeout_s: float = 0) -> StepResult:
        self._maybe_fail("step")
        assert index == sum(session == session_id for session, _, _ in self.actions), "in order"
        self.actions.append((session_id, index, action))
        mover = "xo"[self.taken[session_id] % 2]
        self.taken[session_id] += action == "take"
        game = self._game(session_id, mover)
        own = game.seats[mover]
        return StepResult(
            index=index, observation=game.seats[game.to_move or mover].observation, reward=own.reward,
            score=own.score, terminated=game.to_move is None, action_valid=action == "take", game=game,
            truncated=game.to_move is not None and index + 1 >= self.turn_limit, info={"n": index},
        )  # fmt: skip


class Known:
    """The description of a game of two, or of what is none."""

    def __init__(self, *seats: str) -> None:
        self._seats = seats

    async def spec(self, _: str) -> EnvironmentSpec:
        return SPEC.model_copy(update={"seats": self._seats})


async def play(policy: ScriptedPolicy, sticks: Door, use: StrategySpec = SELF_PLAY, **changes: Any) -> list[Trajectory]:
    specs: Any = Known("x", "o") if isinstance(sticks, Sticks) else Known()
    player = Player(policy, CHAT, sticks, specs, Formats(), max_episodes=8, plugins=(use.use,))  # type: ignore[arg-type]
    wanted = group(strategy=use, **changes)
    found: list[Trajectory] = []

    async def deliver(trajectories: list[Trajectory]) -> None:
        found.extend(trajectories)

    async with asyncio.timeout(20):
        await player.play(wanted, wanted.wanted, deliver)
    return found


async def test_each_seat_is_an_episode_of_its_own() -> None:
    sticks = Sticks()
    x, o = await play(ScriptedPolicy(TAKE), sticks)

    assert [t.seat for t in (x, o)] == ["x", "o"]
    assert [t.trajectory_id for t in (x, o)] == ["run/g/0", "run/g/1"]
    assert [[turn.observation for turn in t.turns] for t in (x, o)] == [
        ["x sees 0 taken.", "x sees 2 taken."],
        ["o sees 1 taken.", "o sees 3 taken."],
    ]
    assert [(t.final_observation, t.score, t.success) for t in (x, o)] == [
        ("x sees 4 taken.", 0.0, False),
        ("o sees 4 taken.", 1.0, True),
    ]
    assert {(t.status, t.finish_reason) for t in (x, o)} == {(Status.COMPLETED, FinishReason.TERMINATED)}
    assert [action for _, _, action in sticks.actions] == ["take"] * 4
    assert sticks.closed == ["s1"]
    assert Trajectory.model_validate_json(x.model_dump_json()) == x


async def test_what_a_player_loses_by_anothers_move_counts_for_its_own_last_step() -> None:
    x, o = await play(ScriptedPolicy(TAKE), Sticks())

    assert [turn.reward for turn in x.turns] == [0.0, -0.5]
    assert [turn.reward for turn in o.turns] == [0.0, 1.0]
    assert [turn.terminated for turn in (*x.turns, *o.turns)] == [False, True, False, True]


async def test_what_was_gained_before_is_not_counted_again() -> None:
    x, o = await play(ScriptedPolicy(TAKE), Sticks(pays=0.25))

    assert [turn.reward for turn in x.turns] == [0.25, -0.25], "0.25 in all, and then 0.5 - 0.5"
    assert [turn.reward for turn in o.turns] == [0.25, 1.25], "0.25 in all, and then 0.5 + 1"


async def test_no_player_sees_the_others_tokens() -> None:
    policy = ScriptedPolicy(TAKE)
    await play(policy, Sticks())

    prompts = [CHAT._tokenizer.decode(call[0]) for call in policy.calls]
    assert ["x sees" in prompt for prompt in prompts] == [True, False, True, False]
    assert ["o sees" in prompt for prompt in prompts] == [False, True, False, True]


async def test_replies_are_drawn_apart_and_alike_again() -> None:
    policies = [ScriptedPolicy(TAKE), ScriptedPolicy(TAKE)]
    for policy in policies:
        await play(policy, Sticks(), num_samples=4, sampling=Sampling(seed=1))

    first, second = ([call[2].seed for call in policy.calls] for policy in policies)
    assert first == second
    assert len(set(first)) == 8


@pytest.mark.parametrize(("num_samples", "num_games"), [(2, 1), (3, 2), (8, 4)])
async def test_as_many_games_are_played_as_give_the_samples(num_samples: int, num_games: int) -> None:
    sticks = Sticks()
    found = await play(ScriptedPolicy(TAKE), sticks, num_samples=num_samples)

    assert [t.seat for t in found] == ["x", "o"] * num_games
    assert {t.group_size for t in found} == {2 * num_games}
    assert len(sticks.opened) == num_games


async def test_a_reply_without_an_action_leaves_the_player_to_move() -> None:
    sticks = Sticks()
    x, _ = await play(ScriptedPolicy(HM, TAKE), sticks)

    assert [turn.action for turn in x.turns] == [None, "take", "take"]
    assert [index for _, index, _ in sticks.actions] == [0, 1, 2, 3]


async def test_a_game_that_a_player_cannot_go_on_with_ends_for_all() -> None:
    """x replies without an action until its turns are used up; o, who waits, is told."""
    x, o = await play(ScriptedPolicy(TAKE, TAKE, HM), Sticks(), limits=EpisodeLimits(max_turns=3))

    assert (x.finish_reason, o.finish_reason) == (FinishReason.MAX_TURNS, FinishReason.LEFT)
    assert {x.status, o.status} == {Status.TRUNCATED}
    assert x.final_prompt_token_ids
    assert o.final_prompt_token_ids, "a critic values where o was not let go on"


async def test_a_player_that_never_had_a_turn_gives_no_episode() -> None:
    (x,) = await play(ScriptedPolicy(HM), Sticks(), limits=EpisodeLimits(max_turns=2))

    assert (x.seat, x.finish_reason, x.group_size) == ("x", FinishReason.MAX_TURNS, 1)


async def test_samples_that_are_wanted_again_are_of_games_of_their_own() -> None:
    policies = [ScriptedPolicy(TAKE), ScriptedPolicy(TAKE)]
    found = [
        await play(policy, Sticks(), samples=(sample,), replay=1, sampling=Sampling(seed=1))
        for sample, policy in enumerate(policies)
    ]

    assert [[turn.node for turn in t.turns] for (t,) in found] == [["1:x~1.0", "2:x~1.0"], ["1:x~1.1", "2:x~1.1"]]
    seeds = [call[2].seed for policy in policies for call in policy.calls]
    assert len(set(seeds)) == 8, "the second is not the first again"


async def test_the_turn_limit_of_the_environment_ends_it_for_all() -> None:
    x, o = await play(ScriptedPolicy(TAKE), Sticks(turn_limit=3))

    assert (x.finish_reason, o.finish_reason) == (FinishReason.ENV_TURN_LIMIT, FinishReason.ENV_TURN_LIMIT)
    assert [len(t.turns) for t in (x, o)] == [2, 1]


async def test_a_failure_of_one_players_engine_is_a_failure_of_the_game() -> None:
    found = await play(ScriptedPolicy(TAKE, InferenceError("down")), Sticks(), limits=EpisodeLimits(max_attempts=1))

    assert {t.status for t in found} == {Status.POLICY_ERROR}
    assert all("down" in str(t.error) for t in found)


async def test_a_budget_that_is_spent_leaves_both_episodes() -> None:
    found = await play(ScriptedPolicy(TAKE), Sticks(), budget=Budget(env_steps=3))

    assert sorted((str(t.seat), t.finish_reason, len(t.turns)) for t in found) == [
        ("o", FinishReason.BUDGET, 1),
        ("x", FinishReason.BUDGET, 1),
    ]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("await ctx.propose(await ctx.open())", "a game of x, o: sit down at a seat to play it"),
        ("await ctx.sit(await ctx.open(), 'z')", "the seat 'z' is not free; free: x, o"),
        ("root = await ctx.open(); await ctx.sit(root, 'x'); await ctx.sit(root, 'x')", "'x' is not free; free: o"),
        ("root = await ctx.open(); await ctx.sit(await ctx.sit(root, 'x'), 'o')", "not the beginning of a game"),
        ("await ctx.fork(await ctx.sit(await ctx.open(), 'x'))", "a player of a game cannot be forked"),
    ],
)
async def test_what_makes_no_sense_is_said(body: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"{GAMES}        {body}\n")
    found = await play(ScriptedPolicy(TAKE), Sticks(), StrategySpec(use=str(path)))

    assert {t.status for t in found} == {Status.POLICY_ERROR}
    assert all(message in str(t.error) for t in found), found[0].error


async def test_a_strategy_that_knows_of_no_seats_plays_no_game() -> None:
    sticks = Sticks()
    found = await play(ScriptedPolicy(TAKE), sticks, StrategySpec(use="independent"))

    told = (
        "door is a game of x, o, each with an episode of its own: play it with a strategy for games, such as self_play"
    )
    assert all(told in str(t.error) for t in found), found[0].error
    assert sticks.opened == []


async def test_what_is_no_game_is_not_played_against_itself() -> None:
    found = await play(ScriptedPolicy(TAKE), Door())

    told = "door is no game: its sessions have one player, and the strategy is for games"
    assert all(told in str(t.error) for t in found), found[0].error


async def test_who_waits_when_a_strategy_is_over_waits_no_longer(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    body = "root = await ctx.open(); asyncio.ensure_future(ctx.sit(root, 'o')); await ctx.sit(root, 'x'); 1 / 0"
    path.write_text(f"{GAMES}        {body}\n")
    sticks = Sticks()
    found = await play(ScriptedPolicy(TAKE), sticks, StrategySpec(use=str(path)))
    await asyncio.sleep(0.05)

    assert {t.status for t in found} == {Status.POLICY_ERROR}
    assert sticks.closed == ["s1"]
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
