"""`kill -9` of the trainer, wherever it stands: no group is lost and none is trained twice."""

import random
import re
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
from gymfleet_contracts.streams import produced_samples
from gymfleet_kit.streams import connect, disconnect
from gymfleet_trainer.run.state import RunState
from redis import Redis

from tests.fixtures.trainer_runs import TrainerRun
from tests.fleet import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

TRAINED_GROUP = re.compile(r"reinforce\.s\d{6}-g\d{2}(-t\d+)?(-r\d+)?")


async def produced_groups(fleet: Fleet, run_id: str) -> set[str]:
    """Training groups of which the rollout service has put out a sample."""
    client = connect(fleet.redis.url)
    try:
        keys = [key.decode() async for key in client.scan_iter(match=f"gymfleet:produced:{run_id}:*", count=1000)]
    finally:
        await disconnect(client)
    return {group for key in keys if TRAINED_GROUP.fullmatch(group := key.rpartition(":")[2])}


async def leftovers(fleet: Fleet, run_id: str) -> list[bytes]:
    client = connect(fleet.redis.url)
    try:
        return [key async for key in client.scan_iter(match=f"*{run_id}*", count=1000)]
    finally:
        await disconnect(client)


def state_of(run: TrainerRun) -> RunState:
    state = run.state()
    assert state is not None
    return state


def check_accounting(run: TrainerRun, produced: set[str]) -> RunState:
    """Every produced group was trained once or dropped for a named reason; every step happened once."""
    state = state_of(run)
    assert [one.name for one in state.left][-3:] == ["before", "reinforce", "after"]
    assert len(state.trained) == len(set(state.trained)) == run.steps * 2, "each once, and as many as there are steps"
    assert not set(state.trained) & set(state.dropped)
    assert produced <= set(state.trained) | set(state.dropped), "no produced group was lost"
    assert not state.open_slots
    assert [line["step"] for line in run.metrics("rl_step")] == list(range(1, run.steps + 1))
    checkpoint = run.run_dir / "checkpoints" / (run.run_dir / "checkpoints" / "latest").read_text().strip()
    states = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    updates = [line["num_updates"] for line in run.metrics("rl_step")]  # none where no group has a signal
    assert states["rl"]["optimizer"]["num_steps"] == sum(updates) > 0, "the optimiser moved once per step"
    return state


@pytest.mark.parametrize("max_staleness", [pytest.param(0, marks=pytest.mark.long), 1])
async def test_killed_at_every_kind_of_moment(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path, max_staleness: int
) -> None:
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=4, max_staleness=max_staleness)
    moments = {
        "measuring": lambda: bool((s := run.state()) and len(s.left) == 2 and s.version),
        "trained, not in a checkpoint": lambda: len(run.metrics("rl_step")) > 0,
        "in a checkpoint, not acknowledged": lambda: bool((s := run.state()) and s.step > 1),
        "published": lambda: len(run.metrics("publish")) > 3,
    }
    produced: set[str] = set()
    for condition in moments.values():
        run.start()
        run.wait_until(condition)
        run.kill()
        if (state := run.state()) is not None:
            produced |= await produced_groups(maze_fleet, state.run_id)

    summary = run.finish()

    state = check_accounting(run, produced)
    assert summary["groups"]["trained"] == 8
    assert state.counts["resumed"] >= 3
    versions = [line["version"] for line in run.metrics("publish")]
    assert versions == sorted(set(versions)), "never a version number twice"
    assert await leftovers(maze_fleet, state.run_id) == []


async def test_groups_that_lost_weights_had_played_ahead_are_replaced(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    """Their samples come back before this life of the run has asked for them, and are never produced again."""
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=2, more="[checkpoint]\nevery_steps = 2")
    run.start()
    with Redis.from_url(maze_fleet.redis.url) as client:
        run.wait_until(lambda: (s := run.state()) is not None and len(s.left) == 3)
        ahead = produced_samples(state_of(run).run_id, "reinforce.s000002-g00")
        run.wait_until(lambda: client.scard(ahead) == 3)
    run.kill()
    assert state_of(run).step == 0, "the first step's weights were in no checkpoint"

    run.finish()

    state = check_accounting(run, set())
    assert "lost" in state.dropped["reinforce.s000002-g00"]
    assert "reinforce.s000002-g00-r1" in state.trained


@pytest.mark.long
async def test_killed_at_random_moments(maze_fleet: Fleet, tiny_model: Path, tmp_path: Path) -> None:
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=4, more="[checkpoint]\nevery_steps = 2")
    generator = random.Random()
    produced: set[str] = set()
    for _ in range(4):
        run.start()
        run.wait_until(lambda: bool(run.metrics("publish")))
        run.wait_for(generator.uniform(0.0, 2.0))
        run.kill()
        if (state := run.state()) is not None:
            produced |= await produced_groups(maze_fleet, state.run_id)

    run.finish()

    check_accounting(run, produced)


CHOOSY = """
from gymfleet_trainer.algorithms.grpo import Grpo
from gymfleet_trainer.learning.algorithm import Verdict


class Choosy(Grpo):
    def select(self, group):
        name = group[0].trajectory.group_id
        if "g00" in name:
            return Verdict.KEEP if "-t2" in name else Verdict.ANOTHER
        return Verdict.DROP if "s000002" in name else Verdict.KEEP
"""


@pytest.mark.parametrize("max_staleness", [pytest.param(0, marks=pytest.mark.long), 1])
async def test_killed_while_groups_are_replaced(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path, max_staleness: int
) -> None:
    path = tmp_path / "choosy.py"
    path.write_text(CHOOSY)
    run = TrainerRun(
        maze_fleet, tmp_path, tiny_model, steps=3, max_staleness=max_staleness, algorithm=str(path), sft=""
    )
    produced: set[str] = set()

    def dropped(number: int) -> bool:
        return len(run.metrics("group_dropped")) >= number

    for seen in range(1, 7, 2):
        run.start()
        run.wait_until(partial(dropped, seen))
        run.kill()
        if (state := run.state()) is not None:
            produced |= await produced_groups(maze_fleet, state.run_id)

    summary = run.finish()

    state = state_of(run)
    names = {name.removeprefix("reinforce.").split("-r")[0] for name in state.trained}
    assert names == {"s000001-g00-t2", "s000001-g01", "s000002-g00-t2", "s000003-g00-t2", "s000003-g01"}
    assert len(state.trained) == len(set(state.trained)) == summary["groups"]["trained"] == 5
    assert not set(state.trained) & set(state.dropped)
    assert produced <= set(state.trained) | set(state.dropped), "no produced group was lost"
    kinds = Counter(reason.split(":")[0] for reason in state.dropped.values())
    assert (kinds["redrawn"], kinds["unselected"]) == (6, 1)
    assert (summary["groups"]["redrawn"], summary["groups"]["unselected"]) == (6, 1)
    assert [line["step"] for line in run.metrics("rl_step")] == [1, 2, 3]
    assert sum(line["groups_redrawn"] for line in run.metrics("rl_step")) == 6
    assert not state.open_slots
    assert await leftovers(maze_fleet, state.run_id) == []


async def test_a_restarted_rollout_service_gets_the_weights_again(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=6)
    run.start()
    run.wait_until(lambda: len(run.metrics("rl_step")) >= 2)
    maze_fleet.rollout.stop(signal.SIGKILL)
    maze_fleet.rollout.start()
    maze_fleet.rollout.wait_ready()

    assert run.wait() == 0, run.tail()

    state = check_accounting(run, set())
    reasons = Counter(reason.split(":")[0] for reason in state.dropped.values())
    assert set(reasons) <= {"stale", "failed"}, "what the base model wrote meanwhile was not trained on"
    for line in run.metrics("eval"):
        assert line["num_episodes"] == 5


async def test_a_killed_redis_comes_back_and_the_run_goes_on(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=5)
    run.start()
    run.wait_until(lambda: len(run.metrics("rl_step")) >= 1)
    maze_fleet.redis.stop(signal.SIGKILL)
    run.wait_for(0.5)
    maze_fleet.redis.start()

    assert run.wait() == 0, run.tail()

    state = check_accounting(run, set())
    assert await leftovers(maze_fleet, state.run_id) == []
