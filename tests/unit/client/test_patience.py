"""What the client does with a 429, over REST and over the stream: nothing was executed, so it comes again in time."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from gymfleet_client import GatewayClient, SessionStream, SyncGatewayClient
from gymfleet_client import _patience as module
from gymfleet_client.errors import EnvironmentFull, ProblemError, QuotaExceeded, RateLimited, Unauthorized
from gymfleet_contracts.frames import ReplyFrame, decode_request, encode
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.session import OpenSession
from websockets.asyncio.server import ServerConnection, serve

SESSION: dict[str, Any] = {
    "session_id": "s", "task": {"env": "maze", "split": "train", "level": "l", "task_id": "1"},
    "observation": "o", "lease_s": 1.0, "expires_in_s": 1.0,
}  # fmt: skip
MAZE = OpenSession(env="maze", task_index=0)
Open = Callable[[OpenSession, float], Awaitable[object]]


def too_many(kind: str = "environment-full", **extensions: float) -> dict[str, Any]:
    return {"type": f"/problems/{kind}", "title": "not now", "status": 429, **extensions}


class Gateway:
    """Answers each open with the next of the given problems, then with a session."""

    def __init__(self, *problems: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        self.problems = list(problems)
        self.headers = headers or {}
        self.requests: list[dict[str, Any]] = []

    def answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        self.requests.append(request)
        return self.problems.pop(0) if self.problems else None

    def http(self, request: httpx.Request) -> httpx.Response:
        problem = self.answer(OpenSession.model_validate_json(request.content).model_dump())
        if problem is None:
            return httpx.Response(201, json=SESSION)
        return httpx.Response(problem["status"], json=problem, headers=self.headers)

    async def stream(self, connection: ServerConnection) -> None:
        async for data in connection:
            assert isinstance(data, bytes)
            frame = decode_request(data)
            problem = self.answer(frame.body)
            await connection.send(
                encode(ReplyFrame(frame.id, problem=problem) if problem else ReplyFrame(frame.id, SESSION))
            )


@asynccontextmanager
async def rest(gateway: Gateway) -> AsyncIterator[Open]:
    transport = httpx.MockTransport(gateway.http)
    async with httpx.AsyncClient(base_url="http://gateway", transport=transport) as http:
        client = GatewayClient("http://gateway", http=http, max_concurrency=1)
        yield lambda request, timeout_s: client.open(request, timeout_s=timeout_s)


@asynccontextmanager
async def sync(gateway: Gateway) -> AsyncIterator[Open]:
    with httpx.Client(base_url="http://gateway", transport=httpx.MockTransport(gateway.http)) as http:
        client = SyncGatewayClient("http://gateway", http=http)

        async def open_(request: OpenSession, timeout_s: float) -> object:
            return client.open(request, timeout_s=timeout_s)

        yield open_


@asynccontextmanager
async def stream(gateway: Gateway) -> AsyncIterator[Open]:
    async with serve(gateway.stream, "127.0.0.1", 0) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        async with SessionStream(f"http://127.0.0.1:{port}") as client:
            yield lambda request, timeout_s: client.open(request, timeout_s=timeout_s)


EVERY_WAY = pytest.mark.parametrize("way", [rest, sync, stream])
Way = Callable[[Gateway], Any]


@EVERY_WAY
async def test_a_429_is_repeated_when_its_time_has_come(way: Way) -> None:
    gateway = Gateway(too_many(retry_after_s=0.01), too_many("rate-limited", retry_after_s=0.02))

    async with way(gateway) as open_:
        await open_(MAZE, 20.0)

    assert len(gateway.requests) == 3


@EVERY_WAY
@pytest.mark.parametrize(
    ("problem", "error", "retry_after_s"),
    [
        pytest.param(too_many("quota-exceeded", retry_after_s=30.0), QuotaExceeded, 30.0, id="not within the timeout"),
        pytest.param(too_many("rate-limited"), RateLimited, None, id="no word of when"),
        pytest.param({**too_many(retry_after_s=0.01), "status": 503}, EnvironmentFull, 0.01, id="no 429"),
        pytest.param({**too_many("unauthorized"), "status": 401}, Unauthorized, None, id="no key"),
        pytest.param(too_many("rate-limited", retry_after_s=-1.0), RateLimited, None, id="nonsense"),
    ],
)
async def test_anything_else_is_told_at_once(
    way: Way, problem: dict[str, Any], error: type[ProblemError], retry_after_s: float | None
) -> None:
    gateway = Gateway(problem)

    async with way(gateway) as open_:
        with pytest.raises(error) as caught:
            await open_(MAZE, 20.0)

    assert caught.value.retry_after_s == retry_after_s
    assert len(gateway.requests) == 1


@EVERY_WAY
async def test_an_open_waits_again_for_as_long_as_the_caller_can(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20 s, 16 are for waiting. Each try takes 11 s: 16 are left at first, then 5, then none."""
    now = 0.0

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now

    monkeypatch.setattr(module, "time", Clock)
    monkeypatch.setattr("random.uniform", lambda *_: 0.0)
    gateway = Gateway(*(too_many(retry_after_s=0.01) for _ in range(3)))
    answer = gateway.answer

    def slowly(request: dict[str, Any]) -> dict[str, Any] | None:
        nonlocal now
        now += 11.0
        return answer(request)

    monkeypatch.setattr(gateway, "answer", slowly)
    async with way(gateway) as open_:
        with pytest.raises(EnvironmentFull):
            await open_(MAZE, 20.0)

    assert [request["wait_s"] for request in gateway.requests] == [16.0, 5.0]


@pytest.mark.parametrize(
    ("took_s", "pause_s"),
    [
        pytest.param(9.0, 1.0, id="9 s, 1 s and 9 s: within 20"),
        pytest.param(9.5, None, id="9.5 s, 1 s and 9.5 s: the caller would not learn what came of the last try"),
    ],
)
def test_another_call_is_repeated_only_if_a_try_as_long_fits(
    took_s: float, pause_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("random.uniform", lambda *_: 0.0)
    patience = module.Patience(20.0)

    now[0] = took_s

    assert patience.pause_s(RateLimited(Problem(title="not now", status=429), retry_after_s=1.0)) == pause_s


@EVERY_WAY
async def test_the_gateway_is_told_how_long_the_caller_can_wait(way: Way) -> None:
    gateway = Gateway()

    async with way(gateway) as open_:
        await open_(MAZE, 20.0)
        await open_(MAZE.model_copy(update={"wait_s": 0.0}), 20.0)

    assert [request["wait_s"] for request in gateway.requests] == [16.0, 0.0]


async def test_a_header_alone_will_do_for_a_proxy_on_the_way() -> None:
    gateway = Gateway({"title": "slow down", "status": 429}, headers={"Retry-After": "0"})

    async with rest(gateway) as open_:
        await open_(MAZE, 20.0)

    assert len(gateway.requests) == 2
