"""The frame of every service: problems, body limit, readiness, traces."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from fastapi import FastAPI
from gymfleet_contracts.problems import PROBLEM_MEDIA_TYPE, Problem
from gymfleet_kit.app import NotReady, create_app
from gymfleet_kit.logs import add_trace_id
from gymfleet_kit.problems import RelayedProblem, ServiceError, problem_responses
from gymfleet_kit.trace import current_trace, new_trace, traced
from prometheus_client.core import GaugeMetricFamily, Metric
from pydantic import BaseModel, ConfigDict
from structlog.testing import capture_logs

LIMIT = 1_000


class TeapotFull(ServiceError):
    type = "/problems/teapot-full"
    title = "The teapot is full"
    status = 503
    retry_after_s = 7


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    cups: int
    note: str = ""


@pytest.fixture
def app() -> FastAPI:
    ready = [False]

    async def probe() -> None:
        if not ready[0]:
            ready[0] = True
            raise NotReady("the kettle is cold")

    app = create_app("teapot", ready=probe, max_body_bytes=LIMIT)

    @app.post("/pour", responses=problem_responses(TeapotFull, NotReady))
    async def pour(body: Body) -> int:
        return body.cups

    @app.get("/full")
    async def full() -> None:
        # A hostile or careless extension does not replace what the class says.
        raise TeapotFull("no room for tea", cups=3, status=200)

    @app.get("/relayed")
    async def relayed() -> None:
        raise RelayedProblem(Problem(title="Elsewhere", status=418, detail="short and stout"))

    @app.get("/bug")
    async def bug() -> None:
        raise RuntimeError("password is hunter2")

    @app.get("/trace")
    async def trace() -> str | None:
        return current_trace()

    return app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def test_an_expected_failure_is_a_problem_with_its_extensions(client: httpx.AsyncClient) -> None:
    response = await client.get("/full")

    assert response.status_code == 503
    assert response.headers["content-type"] == PROBLEM_MEDIA_TYPE
    assert response.headers["retry-after"] == "7"
    assert response.json() == {
        "type": "/problems/teapot-full",
        "title": "The teapot is full",
        "status": 503,
        "detail": "no room for tea",
        "cups": 3,
    }


async def test_another_services_problem_is_passed_on(client: httpx.AsyncClient) -> None:
    response = await client.get("/relayed")

    assert response.status_code == 418
    assert response.json()["detail"] == "short and stout"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        pytest.param({"cups": "many"}, "/body/cups", id="wrong type"),
        pytest.param({"cups": 1, "mugs": 1}, "/body/mugs", id="unknown field"),
        pytest.param({}, "/body/cups", id="missing"),
    ],
)
async def test_a_request_that_is_not_valid_points_at_the_field(
    client: httpx.AsyncClient, body: dict[str, object], pointer: str
) -> None:
    response = await client.post("/pour", json=body)

    assert response.status_code == 422
    assert response.headers["content-type"] == PROBLEM_MEDIA_TYPE
    assert response.json()["type"] == "/problems/validation"
    assert [fault["pointer"] for fault in response.json()["errors"]] == [pointer]
    assert pointer in response.json()["detail"]


async def test_an_unknown_path_is_a_problem_too(client: httpx.AsyncClient) -> None:
    response = await client.get("/nowhere")

    assert response.status_code == 404
    assert response.headers["content-type"] == PROBLEM_MEDIA_TYPE


async def test_a_bug_says_nothing_about_the_inside_but_is_logged(client: httpx.AsyncClient) -> None:
    with capture_logs() as logs:
        response = await client.get("/bug")

    assert response.status_code == 500
    assert response.headers["content-type"] == PROBLEM_MEDIA_TYPE
    assert response.json() == {
        "type": "/problems/internal",
        "title": "Internal error",
        "status": 500,
        "detail": "see the service's log",
    }
    (entry,) = [entry for entry in logs if entry["event"] == "request.failed"]
    assert str(entry["exc_info"]) == "password is hunter2"


async def test_a_body_within_the_limit_passes(client: httpx.AsyncClient) -> None:
    assert (await client.post("/pour", json={"cups": 2, "note": "x" * (LIMIT - 100)})).json() == 2


async def test_an_announced_body_over_the_limit_is_refused_unread(client: httpx.AsyncClient) -> None:
    response = await client.post("/pour", json={"cups": 2, "note": "x" * LIMIT})

    assert response.status_code == 413
    assert response.json()["limit_bytes"] == LIMIT
    assert response.headers["content-type"] == PROBLEM_MEDIA_TYPE


@pytest.mark.parametrize("announced", [None, "10", "ten"])
async def test_a_longer_body_than_announced_is_refused(client: httpx.AsyncClient, announced: str | None) -> None:
    read = []

    def chunks() -> Iterator[bytes]:
        for n in range(1000):
            read.append(n)
            yield b"x" * 100

    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks():
            yield chunk

    headers = {"content-type": "application/json"} | ({} if announced is None else {"content-length": announced})
    response = await client.post("/pour", content=body(), headers=headers)

    assert response.status_code == 413
    assert len(read) <= LIMIT // 100 + 1, "the rest is not read"


async def test_ready_says_what_is_missing(client: httpx.AsyncClient) -> None:
    first, second = await client.get("/readyz"), await client.get("/readyz")

    assert first.status_code == 503
    assert first.json()["detail"] == "the kettle is cold"
    assert second.json() == {"status": "ready"}


async def test_metrics_say_whether_the_service_is_ready(client: httpx.AsyncClient) -> None:
    first, second = await client.get("/metrics"), await client.get("/metrics")

    assert "\ngymfleet_ready 0.0\n" in first.text
    assert "\ngymfleet_ready 1.0\n" in second.text


async def test_a_readiness_that_hangs_does_not_hold_up_the_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    async def measure() -> list[Metric]:
        return [GaugeMetricFamily("cups", "Cups in the cupboard", 3)]

    monkeypatch.setattr("gymfleet_kit.app.READY_TIMEOUT_S", 0.01)
    app = create_app("teapot", ready=hang, measure=measure)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        text = (await client.get("/metrics")).text

    assert "\ngymfleet_ready 0.0\n" in text
    assert "\ncups 3.0\n" in text


async def test_openapi_declares_problems(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()

    responses = document["paths"]["/pour"]["post"]["responses"]
    assert PROBLEM_MEDIA_TYPE in responses["422"]["content"]
    assert responses["503"]["description"] == "The teapot is full; The service is not ready"
    assert "HTTPValidationError" not in str(responses["422"]["content"][PROBLEM_MEDIA_TYPE])


async def test_the_trace_of_the_request_is_the_trace_of_its_work(client: httpx.AsyncClient) -> None:
    trace = new_trace()

    assert (await client.get("/trace", headers={"traceparent": trace})).json() == trace


@pytest.mark.parametrize("header", ["", "00-xyz", "00-" + "0" * 5000, "ff\u00e9"])
async def test_a_malformed_trace_is_replaced(client: httpx.AsyncClient, header: str) -> None:
    answer = (await client.get("/trace", headers={b"traceparent": header.encode("latin-1")})).json()

    assert answer != header
    assert len(answer) == len(new_trace())
    assert current_trace() is None


def test_a_log_line_says_under_which_trace_it_was_written() -> None:
    trace = new_trace(sampled=False)
    with traced(trace):
        inside = add_trace_id(None, "info", {"event": "tea.poured"})

    assert inside == {"event": "tea.poured", "trace_id": trace.split("-")[1]}
    assert add_trace_id(None, "info", {"event": "tea.poured"}) == {"event": "tea.poured"}
