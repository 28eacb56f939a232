"""What a vLLM server is asked, and what its answers mean. Real ones: tests/conformance/test_inference_backends.py."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from gymfleet_contracts.rollout import Sampling
from gymfleet_rollout.inference.base import Continuation, EngineDown, GenerationRequest, InferenceError
from gymfleet_rollout.inference.server import ServerEngine


class ScriptedServer:
    """Answers every generation with one choice, once it may."""

    def __init__(self) -> None:
        self.finish_reason = "stop"
        self.may_answer = asyncio.Event()
        self.asked = asyncio.Event()
        self.num_sampled = 0
        self.usage: dict[str, Any] | None = None

    async def generate(self, _: web.Request) -> web.Response:
        self.asked.set()
        await self.may_answer.wait()
        logprobs = {"content": [{"logprob": -1.0}, {"logprob": -2.0}]}
        choice = {"finish_reason": self.finish_reason, "token_ids": [4, 5], "logprobs": logprobs}
        return web.json_response({"choices": [choice], "usage": self.usage})

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


@pytest.mark.parametrize(
    ("usage", "num_cached"),
    [
        pytest.param({"prompt_tokens": 96, "prompt_tokens_details": {"cached_tokens": 64}}, 64, id="told"),
        pytest.param({"prompt_tokens": 96, "prompt_tokens_details": {"cached_tokens": None}}, 0, id="none known"),
        pytest.param({"prompt_tokens": 96}, 0, id="started without prompt tokens' details"),
        pytest.param(None, 0, id="no usage"),
    ],
)
async def test_what_was_cached_is_told(
    replica: ServerEngine, server: ScriptedServer, usage: dict[str, Any] | None, num_cached: int
) -> None:
    server.usage = usage
    server.may_answer.set()

    assert (await ask(replica)).num_cached_tokens == num_cached


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


class AdapterServer:
    """Notes what it is asked, and answers as vLLM does where adapters come and go."""

    def __init__(self, *, rank: int = 8, takes: bool = True) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.known: set[str] = set()
        self.label = ""
        self.rank = rank
        self.takes = takes

    def asked(self, path: str) -> list[Any]:
        return [body for call, body in self.calls if call == path]

    async def answer(self, request: web.Request) -> web.Response:
        text = await request.text()
        body = json.loads(text) if text else None
        self.calls.append((request.path, body))
        answer: dict[str, Callable[[Any], web.Response]] = {
            "/v1/models": lambda _: web.json_response({"data": [{"id": "m", "max_model_len": 100}]}),
            "/collective_rpc": lambda _: web.json_response({"results": [{"max_lora_rank": self.rank, "model": "m"}]}),
            "/reset_prefix_cache": lambda _: web.json_response({"success": True}),
            "/update_weight_version": self._labelled,
            "/v1/load_lora_adapter": self._load,
            "/v1/unload_lora_adapter": self._unload,
            "/inference/v1/generate": self._generate,
        }
        return answer.get(request.path, lambda _: web.Response())(body)

    def _labelled(self, body: Any) -> web.Response:
        self.label = body["new_version"]
        return web.Response()

    def _load(self, body: Any) -> web.Response:
        if not self.takes:
            return web.Response(status=404)
        if "lora_name" not in body:
            return web.Response(status=400)
        self.known.add(body["lora_name"])
        return web.Response()

    def _unload(self, body: Any) -> web.Response:
        if body["lora_name"] not in self.known:
            return web.Response(status=404)
        self.known.remove(body["lora_name"])
        return web.Response()

    def _generate(self, body: Any) -> web.Response:
        if body["model"] is not None and body["model"] not in self.known:
            return web.Response(status=404)
        choice = {
            "finish_reason": "length", "token_ids": [4], "logprobs": {"content": [{"logprob": 0.0}]},
            "weight_versions": [{"version": self.label}],
        }  # fmt: skip
        return web.json_response({"choices": [choice]})


@asynccontextmanager
async def serving(server: AdapterServer, *, rank: int = 8) -> AsyncIterator[ServerEngine]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    replica = ServerEngine(
        f"http://{host}:{port}", weights_path=Path("/base"), concurrency=4, start_timeout_s=5, lora_rank=rank
    )
    try:
        yield replica
    finally:
        await replica.close()
        await runner.cleanup()


async def test_requests_name_the_newest_adapter_and_the_one_before_it_stays() -> None:
    async with serving(server := AdapterServer()) as replica:
        await replica.start()
        await ask(replica)
        for version in ("v1", "v2", "v3", "v3"):
            await replica.load(Path("/weights") / version)
            await ask(replica)

    loaded = [body for body in server.asked("/v1/load_lora_adapter") if body]
    names = [body["lora_name"] for body in loaded]
    assert [body["lora_path"] for body in loaded] == [f"/weights/{name}" for name in ("v1", "v2", "v3", "v3")]
    assert len(set(names)) == 4, "a new name for each load"
    assert [name.partition(".")[0] for name in names] == ["v1", "v2", "v3", "v3"]
    assert [body["model"] for body in server.asked("/inference/v1/generate")] == [None, None, *names]
    assert server.known == set(names[-2:])
    assert [body["method"] for body in server.asked("/collective_rpc")] == ["describe_policy"], "no weights are loaded"
    assert len(server.asked("/reset_prefix_cache")) == 5


async def test_the_model_of_the_start_is_named_by_nothing() -> None:
    async with serving(server := AdapterServer()) as replica:
        await replica.start()
        await replica.load(Path("/weights/v1"))
        await replica.load(Path("/base"))
        await ask(replica)

    assert server.asked("/inference/v1/generate")[-1]["model"] is None


async def test_a_server_that_forgot_its_adapter_was_restarted() -> None:
    async with serving(server := AdapterServer()) as replica:
        await replica.start()
        await replica.load(Path("/weights/v1"))
        server.known.clear()

        with pytest.raises(EngineDown, match="does not know the adapter that it was given: it was restarted"):
            await ask(replica)
        await replica.load(Path("/weights/v1"))
        assert (await ask(replica)).token_ids == [4]


@pytest.mark.parametrize(
    ("server", "complaint"),
    [
        (AdapterServer(rank=4), "adapters of rank 4 at most, and 8 is wanted; start it with --enable-lora"),
        (AdapterServer(rank=0), "adapters of rank 0 at most"),
        (AdapterServer(takes=False), "start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
    ],
)
async def test_a_server_that_was_not_started_for_adapters_is_refused(server: AdapterServer, complaint: str) -> None:
    async with serving(server) as replica:
        with pytest.raises(InferenceError, match=complaint):
            await replica.start()


async def test_without_adapters_weights_are_loaded_as_ever() -> None:
    async with serving(server := AdapterServer(rank=0), rank=0) as replica:
        await replica.start()
        await replica.load(Path("/weights/v1"))

    bodies = server.asked("/collective_rpc")
    assert [body["kwargs"].get("weights_path") for body in bodies] == [None, "/base", "/weights/v1"]
    assert not server.asked("/v1/load_lora_adapter")
