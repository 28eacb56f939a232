"""Environments written with `async def`: who may be one, how they are called, and how many at once."""

import asyncio
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from gymfleet_env_server.catalogue import EnvironmentUnavailable, load_entry
from gymfleet_env_server.shards.coroutines import CallCancelled, Settled, own_cpu_s, settle
from gymfleet_env_server.shards.threads import SessionThreads

from tests.unit.env_server.test_threads import WAIT_S, Silent, finish

AWAITING = "tests.fixtures.awaiting_environment:Awaiting"
SOURCE = """
from gymfleet_envs.environment import {base}, Outcome
from gymfleet_envs.tasks import GeneratedTasks

class Mixed({base}[int]):
    name, version, summary, instructions, max_turns = "mixed", "1", "Mixed", "Mixed.", 3

    @classmethod
    def task_source(cls, data):
        counts = dict(train=50, validation=5, test=5)
        draw = lambda rng, level: rng.randrange(10**6)
        return GeneratedTasks(cls.name, draw, str, levels=("only",), default_level="only", counts=counts)

    {reset} reset(self, task, seed):
        return "ready"

    {step} step(self, action):
        return Outcome("done")
"""


@pytest.mark.parametrize(
    ("base", "reset", "step", "cure"),
    [
        ("Environment", "def", "async def", "step of Mixed is async def; derive from AsyncEnvironment"),
        ("AsyncEnvironment", "def", "async def", "reset of Mixed is not async def; make it async def reset"),
    ],
)
def test_methods_are_all_coroutines_or_none(tmp_path: Path, base: str, reset: str, step: str, cure: str) -> None:
    path = tmp_path / "mixed.py"
    path.write_text(SOURCE.format(base=base, reset=reset, step=step))

    with pytest.raises(EnvironmentUnavailable, match=cure):
        load_entry(str(path), {})


def test_without_a_server_each_call_returns_when_its_coroutine_has_ended() -> None:
    entry = load_entry(AWAITING, {})
    one, other = entry.make(), entry.make()
    assert isinstance(one, Settled)

    assert one.reset(1, 0) == other.reset(1, 0) == "ready"
    assert [one.step("alone 0.01").observation, other.step("alone 0.01").observation] == ["alone"] * 2
    copy = one.snapshot()
    assert (copy.step("x").observation, one.step("y").observation) == ("alone x", "alone y")
    assert one.state_digest() == "alone y"
    assert one.expert() is None
    with pytest.raises(CallCancelled):
        one.step("cancel")
    one.close()
    assert entry.kind.tells_state()
    assert entry.spec.capabilities.expert


def test_so_many_jobs_at_once_as_the_environment_takes_and_none_has_a_thread() -> None:
    threads = SessionThreads(100, Silent(), {"small": 2}, awaiting=("small", "wide"))
    gate, log = asyncio.Event(), []

    async def meet(name: str) -> None:
        log.append(name)
        await gate.wait()

    def submit(name: str, env: str) -> None:
        threads.submit(name, lambda: threads.apart(lambda: settle(meet(name))), env)

    before = threading.active_count()
    with threads.lock:
        for number in range(50):
            submit(f"wide {number}", "wide")
        for number in range(3):
            submit(f"small {number}", "small")
    wait_until = time.monotonic() + WAIT_S
    while len(log) < 52 and time.monotonic() < wait_until:
        time.sleep(0.01)
    assert sorted(log) == sorted([*(f"wide {number}" for number in range(50)), "small 0", "small 1"])
    assert threading.active_count() <= before + 1

    settle(_open(gate))
    finish(threads)
    assert log[-1] == "small 2"


async def _open(gate: asyncio.Event) -> None:
    gate.set()


def test_processor_time_is_that_of_the_job_and_what_it_awaits() -> None:
    threads = SessionThreads(10, Silent(), awaiting=("env",))
    spent: dict[str, float] = {}

    async def burn(seconds: float) -> None:
        for _ in range(10):
            until = time.thread_time() + seconds / 10
            while time.thread_time() < until:
                pass
            await asyncio.sleep(0)

    def job(name: str, seconds: float) -> None:
        began = own_cpu_s()
        threads.apart(lambda: settle(burn(seconds)))
        spent[name] = own_cpu_s() - began

    with threads.lock:
        for name, seconds in (("much", 0.2), ("little", 0.02)):
            threads.submit(name, partial(job, name, seconds), "env")
    finish(threads)

    assert 0.2 <= spent["much"] < 0.22, "the other's time is not its own"
    assert 0.02 <= spent["little"] < 0.04
