"""What is made of a vLLM server's answers. Real servers: tests/conformance/test_inference_backends.py."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from gymfleet_contracts.rollout import Sampling
from gymfleet_rollout.inference.base import Continuation, GenerationRequest, InferenceError
from gymfleet_rollout.inference.server import ServerEngine


class ScriptedServer:
    """Answers every generation with one choice, once it may."""

    def __init__(self) -> None:
        self.finish_reason = "stop"
        self.may_answer = asyncio.Event()
        self.asked = asyncio.Event()
        self.num_sampled = 0

    async def generate(self, _: web.Request) -> web.Response:
        self.asked.set()
        await self.may_answer.wait()
        logprobs = {"content": [{"logprob": -1.0}, {"logprob": -2.0}]}
        choice = {"finish_reason": self.finish_reason, "token_ids": [4, 5], "logprobs": logprobs}
        return web.json_response({"choices": [choice]})

    async def metrics(self, _: web.Request) -> web.Response:
        self.num_sampled += 7
        lines = (
            "# TYPE vllm:generation_tokens counter",
            f'vllm:generation_tokens_total{{engine="0",model_name="m"}} {float(self.num_sampled)}',
            f'vllm:generation_tokens_total{{engine="1",model_name="m"}} {2.5e1}',
            'vllm:prompt_tokens_total{engine="0",model_name="m"} 1e+06',
        )
        return web.Response(text="\n".join(lines) + "\n")

    async def abort(self, _: web.Request) -> web.Response:
        self.finish_reason = "abort"
        self.may_answer.set()
        return web.Response()

    async def control(self, _: web.Request) -> web.Response:
        return web.Response()


@pytest.fixture
def server() -> ScriptedServer:
    return ScriptedServer()


@pytest.fixture
async def replica(server: ScriptedServer) -> AsyncIterator[ServerEngine]:
    app = web.Application()
    app.router.add_post("/inference/v1/generate", server.generate)
    app.router.add_get("/metrics", server.metrics)
    app.router.add_post("/abort_requests", server.abort)
    app.router.add_post("/pause", server.control)
    app.router.add_post("/resume", server.control)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    replica = ServerEngine(f"http://{host}:{port}", weights_path=Path("unused"), concurrency=4)
    replica.max_model_len = 100
    yield replica
    await replica.close()
    server.may_answer.set()
    await runner.cleanup()


def ask(replica: ServerEngine, told: list[int] | None = None) -> "asyncio.Task[Continuation]":
    request = GenerationRequest((1, 2), 9, Sampling(), (5,), cache_salt="0")
    return asyncio.create_task(replica.generate(request, None if told is None else told.append))


@pytest.mark.parametrize("reason", ["stop", "length"])
async def test_how_a_reply_ended_is_kept(replica: ServerEngine, server: ScriptedServer, reason: str) -> None:
    server.finish_reason = reason
    server.may_answer.set()

    assert await ask(replica) == Continuation([4, 5], [-1.0, -2.0], reason)  # type: ignore[arg-type]


async def test_an_interruption_from_here_keeps_the_tokens_there_are(
    replica: ServerEngine, server: ScriptedServer
) -> None:
    task = ask(replica)
    await asyncio.wait_for(server.asked.wait(), 10)

    await replica.interrupt()

    assert await task == Continuation([4, 5], [-1.0, -2.0], None)


async def test_an_abort_that_nobody_here_asked_for_is_a_failure(replica: ServerEngine, server: ScriptedServer) -> None:
    server.finish_reason = "abort"
    server.may_answer.set()

    with pytest.raises(InferenceError, match="ended a request with 'abort'"):
        await ask(replica)


async def test_a_long_reply_gives_signs_of_life(
    replica: ServerEngine, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymfleet_rollout.inference.server._COUNT_TOKENS_S", 0.005)
    told: list[int] = []
    task = ask(replica, told)

    async with asyncio.timeout(10):
        while len(told) < 3:  # noqa: ASYNC110 - the event is another task's list
            await asyncio.sleep(0.005)
    assert not task.done()
    server.may_answer.set()
    await task

    assert told == [7] * len(told), "what came since it was last asked"


async def test_without_a_reply_on_its_way_nothing_is_asked(
    replica: ServerEngine, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymfleet_rollout.inference.server._COUNT_TOKENS_S", 0.001)
    server.may_answer.set()
    await ask(replica)
    await asyncio.sleep(0.05)

    assert server.num_sampled == 0, "a check of health is no sign of life"
