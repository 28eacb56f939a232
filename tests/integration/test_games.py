"""Games that several sessions share, through a gateway that recovers them: seats, turns, secrets, and self-play."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from gymfleet_client import GatewayClient, SessionStream
from gymfleet_client.errors import (
    EnvironmentFailed,
    EpisodeOver,
    Forbidden,
    NotYourTurn,
    ProblemError,
    StepOutOfOrder,
    UnknownSession,
)
from gymfleet_contracts.rollout import StrategySpec
from gymfleet_contracts.session import Game, OpenSession, Session
from gymfleet_contracts.trajectory import Trajectory
from gymfleet_rollout.environments import Environments
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.player import Player

from tests.fixtures import gateway_fleet
from tests.fixtures.gateway_fleet import ServiceProcess
from tests.fixtures.paths import ROOT
from tests.fixtures.redis_server import RedisServer
from tests.fleet import script
from tests.unit.rollout.test_episode import CHAT, ScriptedPolicy, group

PAGE = (ROOT / "docs/games.md").read_text(encoding="utf-8")
NIM, CLIENT = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
CARDS = OpenSession(env="cards", task_index=0, state_keys=True)


@dataclass(frozen=True)
class Fleet:
    server: ServiceProcess
    gateway: ServiceProcess

    def kill_shard(self) -> None:
        """`kill -9` of the process that holds the sessions."""
        for child in psutil.Process(self.server.pid).children():
            os.kill(child.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    logs = tmp_path_factory.mktemp("fleet")
    nim = logs / "nim.py"
    nim.write_text(NIM)
    kinds = [f"tests.fixtures.game_environments:{name}" for name in ("Cards", "AwaitingCards")]
    with RedisServer(tmp_path_factory.mktemp("redis")) as redis:
        server = gateway_fleet.env_server(logs, str(nim), *kinds)
        gateway = gateway_fleet.gateway(logs, [server.url], redis_url=redis.url)
        with gateway_fleet.running(server, gateway):
            yield Fleet(server, gateway)


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[str]:
    """A gateway to an environment that is no game."""
    server = gateway_fleet.env_server(tmp_path, "tests.fixtures.declaring_environment:Post")
    gateway = gateway_fleet.gateway(tmp_path, [server.url])
    with gateway_fleet.running(server, gateway):
        yield gateway.url


@pytest.fixture
async def rest(fleet: Fleet) -> AsyncIterator[GatewayClient]:
    async with GatewayClient(fleet.gateway.url) as client:
        yield client


def game_of(session: Session) -> Game:
    assert session.game is not None
    return session.game


def test_the_guides_game_is_short() -> None:
    assert len(NIM.splitlines()) < 60


async def test_each_player_sees_its_own_seat_alone(rest: GatewayClient) -> None:
    game = await rest.open(CARDS)
    cards = game.info["cards"]
    assert isinstance(cards, list)
    seats = await rest.seats(game.session_id)
    left, right = [await rest.get(seats[name]) for name in ("left", "right")]

    assert (left.observation, right.observation) == (f"You have {cards[0]}.", f"You have {cards[1]}.")
    assert [list(game_of(view).seats) for view in (left, right)] == [["left"], ["right"]]
    assert (left.session_id, right.session_id) == (seats["left"], seats["right"])
    for view in (left, right):
        assert (view.info, view.state_key) == ({}, None), "what is said of the whole game is not for a player"
    result = await rest.step(seats["left"], 0, "no move")
    assert (result.info, result.state_key, result.observation) == ({}, None, left.observation)
    assert result.game is not None
    assert list(result.game.seats) == ["left"]


async def test_players_move_in_turn(rest: GatewayClient) -> None:
    game = await rest.open(CARDS)
    seats = await rest.seats(game.session_id)

    with pytest.raises(NotYourTurn, match="left is to move, not right") as refused:
        await rest.step(seats["right"], 0, "say yes")
    assert refused.value.problem.model_extra == {"to_move": "left", "expected": 0}
    assert (await rest.get(game.session_id)).index == 0, "it changed nothing"
    first = await rest.step(seats["left"], 0, "say yes")
    assert await rest.step(seats["left"], 0, "say yes") == first, "a repeat gets the same answer"
    with pytest.raises(NotYourTurn, match="left moved then, not right"):
        await rest.step(seats["right"], 0, "say yes")  # not even another's step again
    with pytest.raises(StepOutOfOrder):
        await rest.step(seats["right"], 7, "say yes")
    last = await rest.step(seats["right"], 1, "say yes")
    assert last.terminated
    ends = [await rest.get(seats[name]) for name in ("left", "right")]
    assert [end.score for end in ends] == [1 - last.score, last.score]
    assert [game_of(end).to_move for end in ends] == [None, None]
    with pytest.raises(EpisodeOver):
        await rest.step(seats["left"], 2, "say yes")


async def test_a_seat_may_look_and_act_and_nothing_else(rest: GatewayClient) -> None:
    game = await rest.open(CARDS)
    seat = (await rest.seats(game.session_id))["left"]

    for call in (rest.fork(seat), rest.renew(seat), rest.expert(seat), rest.seats(seat)):
        with pytest.raises(Forbidden, match="seat left may look and act"):
            await call
    await rest.close(seat)
    assert (await rest.get(seat)).index == 0, "whoever opened the game closes it"
    await rest.close(game.session_id)
    with pytest.raises(UnknownSession):
        await rest.get(seat)
    with pytest.raises(UnknownSession):
        await rest.get(seat.replace("~left", "~right"))


async def test_seats_are_the_gateways_to_give(rest: GatewayClient, fleet: Fleet) -> None:
    spec = await rest.environment("cards")
    assert spec.seats == ("left", "right")
    async with httpx.AsyncClient(base_url=fleet.server.url, trust_env=False) as server:
        session = (await server.post("/v1/sessions", json={"env": "cards", "task_index": 0})).json()
        assert (await server.post(f"/v1/sessions/{session['session_id']}/seats")).status_code == 404


async def test_seats_are_asked_of_games(plain: str) -> None:
    async with GatewayClient(plain) as rest:
        session = await rest.open(OpenSession(env="post", task_index=0))
        with pytest.raises(ProblemError, match="post has no seats: its sessions have one player") as refused:
            await rest.seats(session.session_id)
    assert (refused.value.problem.type, refused.value.problem.status) == ("/problems/no-seats", 409)


@pytest.mark.parametrize("env", ["cards", "awaiting_cards", "nim"])
async def test_a_game_whose_process_dies_goes_on_at_all_its_seats(fleet: Fleet, rest: GatewayClient, env: str) -> None:
    game = await rest.open(OpenSession(env=env, task_index=1))
    seats = await rest.seats(game.session_id)
    first, second = seats.values()
    action = "take 1" if env == "nim" else "say yes"
    await rest.step(first, 0, action)
    before = await rest.get(second)

    fleet.kill_shard()

    after = await rest.get(second)
    assert (after.observation, after.index, game_of(after)) == (before.observation, 1, game_of(before))
    assert after.session_id == second
    fleet.kill_shard()
    result = await rest.step(second, 1, action)
    assert result.index == 1
    assert result.game is not None
    assert result.game.moved == next(name for name, seat in seats.items() if seat == second)


async def test_a_player_that_makes_the_game_fail_ends_it_for_all(rest: GatewayClient) -> None:
    game = await rest.open(CARDS)
    seats = await rest.seats(game.session_id)

    with pytest.raises(EnvironmentFailed):
        await rest.step(seats["left"], 0, "peek")
    with pytest.raises(ProblemError):
        await rest.step(seats["right"], 1, "say yes")


async def test_two_players_over_streams_of_their_own(fleet: Fleet) -> None:
    async with GatewayClient(fleet.gateway.url) as rest:
        game = await rest.open(OpenSession(env="nim", task_index=0))
        seats = await rest.seats(game.session_id)

    async def play(name: str) -> float:
        async with SessionStream(fleet.gateway.url) as stream, GatewayClient(fleet.gateway.url) as look:
            while True:
                state = await look.get(seats[name])
                if state.terminated or state.truncated:
                    return state.score
                if game_of(state).to_move == name:
                    await stream.step(seats[name], state.index, "take 1")

    async with asyncio.timeout(30):
        assert sorted(await asyncio.gather(play("first"), play("second"))) == [0.0, 1.0]


async def test_the_policy_plays_against_itself(fleet: Fleet) -> None:
    async with SessionStream(fleet.gateway.url) as stream, GatewayClient(fleet.gateway.url) as specs:
        policy = ScriptedPolicy("Thought: one Action: take 1")
        player = Player(policy, CHAT, stream, Environments(specs), Formats(), max_episodes=8)
        task = OpenSession(env="nim", task_index=0)
        wanted = group(task=task, num_samples=4, strategy=StrategySpec(use="self_play"))
        found: list[Trajectory] = []

        async def deliver(trajectories: list[Trajectory]) -> None:
            found.extend(trajectories)

        await player.play(wanted, wanted.wanted, deliver)

    assert [t.seat for t in found] == ["first", "second"] * 2, found[0].error
    assert sorted(t.score for t in found) == [0.0, 0.0, 1.0, 1.0]
    assert all(sum(turn.reward for turn in t.turns) == t.score for t in found)


def test_a_person_plays_all_seats(fleet: Fleet) -> None:
    command = [script("gymfleet"), "envs", "play", "nim", "--url", fleet.gateway.url]
    moves = "take 9\n" + "take 1\n" * 20
    played = subprocess.run(command, input=moves, capture_output=True, text=True, timeout=60, check=False)

    assert played.returncode == 0, played.stderr
    turns = re.findall(r"(first|second) is to move", played.stdout)
    assert turns[:4] == ["first", "first", "second", "first"], "who takes no stick is asked again"
    assert re.search(r"over · turn \d+ · first [01], second [01]", played.stdout)
    shown = subprocess.run(
        [*command[:2], "show", *command[3:]], capture_output=True, text=True, timeout=60, check=False
    )
    assert re.search(r"players +first, second", shown.stdout)


async def test_what_the_page_shows_runs(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "client.py"
    path.write_text(CLIENT.replace("http://localhost:8200", fleet.gateway.url))
    process = await asyncio.create_subprocess_exec(sys.executable, str(path), stdout=asyncio.subprocess.PIPE)
    told = (await process.communicate())[0].decode()

    assert process.returncode == 0
    assert "sticks are left" in told
    assert "first is to move, not second" in told
