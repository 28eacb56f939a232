"""Spans: what is recorded, under which parent, with which outcome; and that nothing happens when tracing is off."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from gymfleet_client._trace import current_traceparent
from gymfleet_kit import telemetry
from gymfleet_kit.app import create_app
from gymfleet_kit.session_problems import EpisodeOver, UnknownSession
from gymfleet_kit.telemetry import configure_tracing, export_to, span
from gymfleet_kit.trace import current_trace, enter_trace, new_trace, traced, working
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span
from prometheus_client import CollectorRegistry

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID = "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE_ID}-{PARENT_ID}-01"
NOT_SAMPLED = f"00-{TRACE_ID}-{PARENT_ID}-00"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    monkeypatch.setattr(telemetry, "_provider", None)
    exporter = InMemorySpanExporter()
    provider = export_to(SimpleSpanProcessor(exporter), "teapot")
    yield exporter
    provider.shutdown()


def ids(recorded: ReadableSpan) -> tuple[str, str, str | None]:
    """Trace, span and parent, in hexadecimal."""
    assert recorded.context is not None
    parent = None if recorded.parent is None else f"{recorded.parent.span_id:016x}"
    return f"{recorded.context.trace_id:032x}", f"{recorded.context.span_id:016x}", parent


def test_a_span_continues_the_trace_and_names_itself_as_the_next_parent(exporter: InMemorySpanExporter) -> None:
    with span("gateway.step", SAMPLED, env="maze", session="s1", op="step") as work:
        trace = work.trace

    (recorded,) = exporter.get_finished_spans()
    trace_id, span_id, parent = ids(recorded)
    assert (trace_id, parent) == (TRACE_ID, PARENT_ID)
    assert trace == f"00-{TRACE_ID}-{span_id}-01"
    assert recorded.name == "gateway.step"
    assert recorded.resource.attributes["service.name"] == "gymfleet-teapot"
    assert dict(recorded.attributes or {}) == {
        "gymfleet.env": "maze",
        "gymfleet.session": "s1",
        "gymfleet.op": "step",
        "gymfleet.outcome": "ok",
    }


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        pytest.param(EpisodeOver("done with s3cret"), "episode-over", id="a problem is named by its type"),
        pytest.param(ValueError("s3cret"), "ValueError", id="a bug by its class, not by its words"),
        pytest.param(asyncio.CancelledError(), "cancelled", id="cancelled"),
    ],
)
def test_what_leaves_the_block_is_the_outcome(
    exporter: InMemorySpanExporter, error: BaseException, outcome: str
) -> None:
    with pytest.raises(type(error)), span("work", SAMPLED):
        raise error

    (recorded,) = exporter.get_finished_spans()
    assert (recorded.attributes or {})["gymfleet.outcome"] == outcome
    assert recorded.status.status_code is StatusCode.ERROR
    assert "s3cret" not in recorded.to_json()


def test_a_span_can_end_with_an_answer_that_comes_by_call(exporter: InMemorySpanExporter) -> None:
    answers: list[object] = []
    good, bad = span("env.step", SAMPLED), span("env.step", SAMPLED)

    good.ending(answers.append)("result")
    failure = UnknownSession("none")
    bad.ending(answers.append)(failure)
    bad.end()

    assert answers == ["result", failure]
    outcomes = [(recorded.attributes or {})["gymfleet.outcome"] for recorded in exporter.get_finished_spans()]
    assert outcomes == ["ok", "unknown-session"]


@pytest.mark.parametrize(
    ("trace", "passed_on"),
    [
        pytest.param(None, "", id="no trace"),
        pytest.param("", "", id="an empty field"),
        pytest.param(NOT_SAMPLED, NOT_SAMPLED, id="not sampled: passed on as it is"),
        pytest.param("x" * 10_000 + "1", "", id="not a traceparent: goes no further"),
        pytest.param(f"00-{'0' * 32}-{PARENT_ID}-01", "", id="the invalid id"),
        pytest.param(SAMPLED + "\n", "", id="a trailing newline"),
    ],
)
def test_what_is_not_recorded(exporter: InMemorySpanExporter, trace: str | None, passed_on: str) -> None:
    answers: list[str] = []
    with span("work", trace) as work:
        work.ending(answers.append)("result")

    assert (work.trace, answers) == (passed_on, ["result"])
    assert exporter.get_finished_spans() == ()


def test_when_tracing_is_off_a_trace_is_only_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_provider", None)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    configure_tracing("teapot")

    with span("work", SAMPLED) as work:
        assert work.trace == SAMPLED
    assert new_trace().endswith("-00"), "nobody recorded anything: a service after us has no parent to look for"
    with traced(SAMPLED):
        assert not get_current_span().get_span_context().is_valid


def test_working_makes_its_span_the_parent_of_what_is_called_from_it(exporter: InMemorySpanExporter) -> None:
    with traced(SAMPLED):
        with working("gateway.step", env="maze"):
            inside = current_trace()
            with pytest.raises(EpisodeOver), working("inner"):
                raise EpisodeOver("over")
        after = current_trace()

    inner, outer = exporter.get_finished_spans()
    assert inside == f"00-{TRACE_ID}-{ids(outer)[1]}-01"
    assert (ids(outer)[2], ids(inner)[2]) == (PARENT_ID, ids(outer)[1])
    assert (inner.attributes or {})["gymfleet.outcome"] == "episode-over"
    assert after == SAMPLED


def test_working_without_a_trace_changes_nothing(exporter: InMemorySpanExporter) -> None:
    with working("gateway.step", env="maze"):
        assert current_trace() is None
    with traced(NOT_SAMPLED), working("gateway.step"):
        assert current_trace() == NOT_SAMPLED

    assert exporter.get_finished_spans() == ()


async def test_a_task_enters_the_trace_of_its_call() -> None:
    async def serve(trace: str) -> str | None:
        enter_trace(trace)
        return current_trace()

    served = await asyncio.gather(*(asyncio.create_task(serve(trace)) for trace in (SAMPLED, "", "nonsense")))

    assert served == [SAMPLED, None, None]
    assert current_trace() is None


async def ask(method: str, path: str, trace: str | None = None) -> httpx.Response:
    app = create_app("teapot", registry=CollectorRegistry())

    @app.post("/pots/{pot}")
    @app.get("/pots/{pot}")
    async def pour(pot: str) -> str:
        if pot == "broken":
            raise UnknownSession("no such pot")
        return current_trace() or ""

    headers = {} if trace is None else {"traceparent": trace}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.request(method, path, headers=headers)


async def test_a_request_is_a_span_named_after_its_route(exporter: InMemorySpanExporter) -> None:
    answer = (await ask("POST", "/pots/s3cret-session", SAMPLED)).json()

    (recorded,) = exporter.get_finished_spans()
    trace_id, span_id, parent = ids(recorded)
    assert (trace_id, parent) == (TRACE_ID, PARENT_ID)
    assert answer == f"00-{TRACE_ID}-{span_id}-01", "what the handler passes on"
    assert (recorded.name, recorded.kind) == ("POST /pots/{pot}", SpanKind.SERVER)
    assert (recorded.attributes or {})["http.response.status_code"] == 200
    assert "s3cret" not in recorded.to_json()


async def test_a_refused_request_has_its_status(exporter: InMemorySpanExporter) -> None:
    await ask("POST", "/pots/broken", SAMPLED)

    (recorded,) = exporter.get_finished_spans()
    assert (recorded.attributes or {})["http.response.status_code"] == 404


async def test_who_begins_a_trace(exporter: InMemorySpanExporter) -> None:
    answer = (await ask("POST", "/pots/1")).json()
    (root,) = exporter.get_finished_spans()
    assert root.parent is None
    assert answer.startswith(f"00-{ids(root)[0]}-")

    exporter.clear()
    await ask("POST", "/pots/1", NOT_SAMPLED)
    read = (await ask("GET", "/pots/1")).json()
    await ask("GET", "/healthz")
    assert exporter.get_finished_spans() == (), "the caller decides; probes and reads begin nothing"
    assert read.endswith("-00")


def test_the_sampler_of_the_environment_decides_for_new_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_provider", None)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    provider = export_to(SimpleSpanProcessor(InMemorySpanExporter()), "teapot")

    flags = {new_trace()[-2:] for _ in range(64)}

    assert flags == {"00", "01"}
    assert new_trace(sampled=True).endswith("-01")
    provider.shutdown()


def test_work_under_a_trace_is_visible_to_opentelemetry_and_to_the_sdk(exporter: InMemorySpanExporter) -> None:
    with traced(SAMPLED):
        assert current_traceparent() == SAMPLED
    assert current_traceparent() == ""


def test_the_sdk_sends_the_applications_own_span() -> None:
    provider = TracerProvider()
    with provider.get_tracer("application").start_as_current_span("rollout") as mine:
        context = mine.get_span_context()
        sent = current_traceparent()

    assert sent.startswith(f"00-{context.trace_id:032x}-{context.span_id:016x}-")
    assert int(sent[-2:], 16) & 1, "sampled"
    provider.shutdown()


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
def test_an_endpoint_without_the_packages_is_one_clear_line(variable: str) -> None:
    code = (
        "import sys; sys.modules['opentelemetry.exporter.otlp.proto.http.trace_exporter'] = None\n"
        "from gymfleet_kit.telemetry import configure_tracing; configure_tracing('teapot')"
    )
    environment = {variable: "http://127.0.0.1:1"}

    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"{variable} is set" in done.stderr
    assert "gymfleet[otel]" in done.stderr


@pytest.mark.parametrize("off", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_the_standard_switches_hold(monkeypatch: pytest.MonkeyPatch, off: dict[str, str]) -> None:
    monkeypatch.setattr(telemetry, "_provider", None)
    for name, value in {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", **off}.items():
        monkeypatch.setenv(name, value)

    configure_tracing("teapot")

    assert telemetry._provider is None


def test_nothing_of_opentelemetry_is_imported_when_tracing_is_off() -> None:
    code = "import gymfleet_kit.app, gymfleet_client, sys; print([m for m in sys.modules if m.startswith('opentel')])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout.strip() == "[]", done.stderr
    assert logging.getLogger("opentelemetry").handlers == []
