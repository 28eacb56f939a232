"""The thread beside the event loop: hand-over, interruption, death. The engine here is a counter."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from gymfleet_contracts.rollout import Sampling
from gymfleet_contracts.weights import WeightsOnGpu
from gymfleet_rollout.inference.base import (
    Continuation,
    EngineConfig,
    EngineDied,
    GenerationRequest,
    InferenceError,
    WeightsRejected,
)
from gymfleet_rollout.inference.embedded import EmbeddedEngine
from gymfleet_rollout.inference.engine import StepOutput

SAMPLING = Sampling()


class CountingCore:
    """Each step gives every request one token: its own number in the order of arrival."""

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}
        self.wanted: dict[str, int] = {}
        self.aborted: list[str] = []
        self.loaded: list[Path] = []
        self.did: list[str] = []
        self.num_steps = 0
        self.closed = False
        self.gate = threading.Event()
        self.gate.set()
        self.has_request = threading.Event()
        self.fail = False
        self.reason = "length"

    def add(self, request: GenerationRequest) -> str:
        request_id = str(len(self.requests))
        self.requests[request_id] = self.wanted[request_id] = request.max_tokens
        self.has_request.set()
        return request_id

    def step(self) -> list[StepOutput]:
        self.gate.wait(10)
        if self.fail:
            raise RuntimeError("out of memory")
        self.num_steps += 1
        outputs: list[StepOutput] = []
        for request_id, left in list(self.requests.items()):
            if left > 0 and request_id not in self.aborted:
                self.requests[request_id] = left - 1
                ended = self.reason if left == 1 else None
                cached = 32 if left == self.wanted[request_id] else 0
                outputs.append(StepOutput(request_id, [int(request_id)], [-1.0], ended, cached))
        return outputs

    def abort(self, request_ids: Sequence[str]) -> None:
        self.aborted += request_ids

    def load(self, weights_path: Path, on_gpu: WeightsOnGpu | None = None) -> None:
        assert on_gpu is None
        if weights_path.name == "bad":
            raise ValueError("no such tensor")
        self.loaded.append(weights_path)

    def sleep(self) -> None:
        assert len(self.aborted) == len(self.requests), "no request is left when it falls asleep"
        self.did.append("sleep")

    def wake(self) -> None:
        self.did.append("wake")

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def core() -> CountingCore:
    return CountingCore()


@pytest.fixture
async def replica(core: CountingCore) -> AsyncIterator[EmbeddedEngine]:
    replica = EmbeddedEngine(EngineConfig(model=Path("unused"), max_model_len=1000), build=lambda config: core)
    await replica.start()
    yield replica
    core.gate.set()
    await replica.close()


async def test_tokens_are_told_of_as_they_are_sampled(replica: EmbeddedEngine, core: CountingCore) -> None:
    told: list[int] = []
    many = threading.Event()

    def on_tokens(number: int) -> None:
        told.append(number)
        if len(told) >= 5:
            core.gate.clear()  # the reply is far from its end
            many.set()

    task = asyncio.create_task(replica.generate(GenerationRequest((1,), 900, SAMPLING, (), "0"), on_tokens))
    assert await asyncio.to_thread(many.wait, 10)

    assert not task.done()
    assert sum(told) == len(told) >= 5
    task.cancel()


def ask(replica: EmbeddedEngine, max_tokens: int) -> "asyncio.Task[Continuation]":
    return asyncio.create_task(replica.generate(GenerationRequest((1, 2), max_tokens, SAMPLING, (), "0")))


async def arrival(core: CountingCore) -> None:
    """Wait until the engine has a request, whose first step waits at the gate."""
    assert await asyncio.to_thread(core.has_request.wait, 10)


async def test_each_request_gets_its_own_tokens(replica: EmbeddedEngine) -> None:
    answers = await asyncio.gather(*(ask(replica, 1 + place % 7) for place in range(100)))

    assert [answer.token_ids for answer in answers] == [[place] * (1 + place % 7) for place in range(100)]
    assert {answer.num_cached_tokens for answer in answers} == {32}, "it was told with the first token"
    assert replica.num_in_flight == 0


async def test_an_idle_engine_does_not_turn(replica: EmbeddedEngine, core: CountingCore) -> None:
    await ask(replica, 3)
    steps = core.num_steps

    await asyncio.sleep(0.05)

    assert core.num_steps == steps == 3


async def test_it_sleeps_between_two_steps(replica: EmbeddedEngine, core: CountingCore) -> None:
    task = ask(replica, 900)
    await asyncio.sleep(0)
    await replica.interrupt()
    await replica.sleep()
    await replica.wake()

    assert core.did == ["sleep", "wake"]
    assert (await task).finish_reason is None
    assert (await ask(replica, 2)).finish_reason == "length"


async def test_an_interruption_keeps_what_there_is(replica: EmbeddedEngine, core: CountingCore) -> None:
    core.gate.clear()
    task = ask(replica, 900)
    await asyncio.sleep(0)
    await arrival(core)
    interruption = asyncio.create_task(replica.interrupt())
    await asyncio.sleep(0)
    core.gate.set()

    await interruption
    answer = await task

    assert answer.finish_reason is None
    assert answer.token_ids == [0] * core.num_steps
    assert len(answer.logprobs) == core.num_steps
    assert core.aborted == ["0"]


async def test_a_cancelled_request_is_aborted_in_the_engine(replica: EmbeddedEngine, core: CountingCore) -> None:
    core.gate.clear()
    task = ask(replica, 900)
    other = ask(replica, 3)
    await arrival(core)

    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    core.gate.set()

    assert (await other).token_ids == [1, 1, 1]
    assert core.aborted == ["0"]


async def test_weights_that_cannot_be_loaded_do_not_end_the_engine(replica: EmbeddedEngine, core: CountingCore) -> None:
    with pytest.raises(WeightsRejected, match="no such tensor"):
        await replica.load(Path("bad"))

    await replica.load(Path("good"))
    assert core.loaded == [Path("good")]
    assert (await ask(replica, 2)).token_ids == [0, 0]


async def test_a_request_that_does_not_fit_is_refused_alone(replica: EmbeddedEngine) -> None:
    with pytest.raises(InferenceError, match="max_model_len"):
        await ask(replica, 999)

    assert (await ask(replica, 998 - 900)).finish_reason == "length"


@pytest.mark.parametrize("reason", ["abort", "error"])
async def test_a_reply_that_the_engine_did_not_finish_is_a_failure_of_that_request(
    replica: EmbeddedEngine, core: CountingCore, reason: str
) -> None:
    core.reason = reason
    with pytest.raises(InferenceError, match=f"ended a request with '{reason}'"):
        await ask(replica, 3)

    core.reason = "stop"
    assert (await ask(replica, 3)).finish_reason == "stop", "the engine lives on"


async def test_the_engines_death_fails_everything_by_name(replica: EmbeddedEngine, core: CountingCore) -> None:
    core.gate.clear()
    tasks = [ask(replica, 5) for _ in range(3)]
    await asyncio.sleep(0.02)
    tasks.append(ask(replica, 5))  # not yet admitted
    await asyncio.sleep(0)
    core.fail = True
    core.gate.set()

    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(result) for result in results] == [EngineDied] * 4
    assert "RuntimeError: out of memory" in str(results[0])
    for call in (replica.check(), replica.load(Path("good")), replica.interrupt(), ask(replica, 1)):
        with pytest.raises(EngineDied):
            await call
    await replica.close()
    assert core.closed


async def test_an_engine_that_dies_of_a_call_tells_the_caller(replica: EmbeddedEngine, core: CountingCore) -> None:
    def wake() -> None:
        raise RuntimeError("a part is still asleep")

    core.wake = wake  # type: ignore[method-assign]

    async with asyncio.timeout(10):
        with pytest.raises(EngineDied, match="RuntimeError: a part is still asleep"):
            await replica.wake()
        await replica.close()
    assert core.closed


async def test_an_engine_that_cannot_start_says_why() -> None:
    def build(config: EngineConfig) -> CountingCore:
        raise OSError("no config.json")

    replica = EmbeddedEngine(EngineConfig(model=Path("unused")), build=build)

    with pytest.raises(EngineDied, match=r"OSError: no config\.json"):
        await replica.start()


async def test_closing_fails_what_waits(replica: EmbeddedEngine, core: CountingCore) -> None:
    core.gate.clear()
    task = ask(replica, 900)
    await asyncio.sleep(0.02)
    closing = asyncio.create_task(replica.close())
    await asyncio.sleep(0.02)
    core.gate.set()
    await closing

    with pytest.raises(EngineDied, match="closed"):
        await task
