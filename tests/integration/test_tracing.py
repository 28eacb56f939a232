"""One trace from the application through the gateway to the env server, as a collector receives it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from gymfleet_client import SessionStream, SyncGatewayClient
from gymfleet_client.errors import StepOutOfOrder
from gymfleet_contracts.session import OpenSession
from opentelemetry.sdk.trace import TracerProvider

from tests.fixtures import gateway_fleet
from tests.fixtures.otlp_collector import CollectedSpan, Collector, collecting

ACTION = "an action that nobody shall read in a trace"
KEY = "a key that nobody shall read in a trace"
GATEWAY, ENV_SERVER = "gymfleet-env-gateway", "gymfleet-env-server"


@dataclass(frozen=True)
class Traced:
    """A fleet whose services export to `collector`."""

    url: str
    collector: Collector


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    directory = tmp_path_factory.mktemp("tracing")
    with collecting() as collector, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        server = gateway_fleet.env_server(directory, "maze")
        gateway = gateway_fleet.gateway(directory, [server.url], api_key=KEY)
        with gateway_fleet.running(server, gateway):
            yield Traced(gateway.url, collector)


@contextmanager
def application_span() -> Iterator[tuple[str, str]]:
    """The application's own span: its trace and its span id."""
    provider = TracerProvider()
    with provider.get_tracer("application").start_as_current_span("rollout") as mine:
        context = mine.get_span_context()
        yield f"{context.trace_id:032x}", f"{context.span_id:016x}"
    provider.shutdown()


def check_chain(spans: dict[str, CollectedSpan], parent: str, *names: str) -> None:
    """Each span is the parent of the next."""
    for name in names:
        assert spans[name].parent == parent, name
        parent = spans[name].span_id


def test_a_rest_step_is_one_trace(fleet: Traced) -> None:
    with SyncGatewayClient(fleet.url, api_key=KEY) as client:
        session = client.open(OpenSession(env="maze", task_index=0))
        with application_span() as (trace_id, span_id):
            client.step(session.session_id, 0, ACTION)

    request = "POST /v1/sessions/{session_id}/steps"
    spans = fleet.collector.trace(trace_id, request, "gateway.step", "env.step")
    check_chain(spans, span_id, request, "gateway.step", "env.step")
    assert [spans[name].service for name in (request, "gateway.step", "env.step")] == [GATEWAY, GATEWAY, ENV_SERVER]
    step = spans["gateway.step"].attributes
    assert (step["gymfleet.env"], step["gymfleet.op"], step["gymfleet.outcome"]) == ("maze", "step", "ok")


async def test_a_step_on_the_stream_is_one_trace(fleet: Traced) -> None:
    async with SessionStream(fleet.url, api_key=KEY) as client:
        session = await client.open(OpenSession(env="maze", task_index=0))
        with application_span() as (trace_id, span_id):
            await client.step(session.session_id, 0, ACTION)
            with pytest.raises(StepOutOfOrder):
                await client.step(session.session_id, 7, ACTION)
        await client.close(session.session_id)

    spans = await asyncio.to_thread(fleet.collector.trace, trace_id, "gateway.step", "gateway.step", "env.step")
    steps = [span for span in fleet.collector.spans if span.trace_id == trace_id and span.name == "gateway.step"]
    assert {step.parent for step in steps} == {span_id}
    assert sorted(step.attributes["gymfleet.outcome"] for step in steps) == ["ok", "step-out-of-order"]
    assert spans["env.step"].parent in {step.span_id for step in steps}


def test_what_the_caller_does_not_sample_and_what_probes_ask_is_not_recorded(fleet: Traced) -> None:
    with SyncGatewayClient(fleet.url, api_key=KEY) as client, application_span() as (trace_id, _):
        client.open(OpenSession(env="maze", task_index=0))
    fleet.collector.trace(trace_id, "POST /v1/sessions")

    assert not [span for span in fleet.collector.spans if span.name.startswith("GET ")]


def test_actions_and_keys_are_in_no_span(fleet: Traced) -> None:
    everything = b"".join(fleet.collector.raw)

    assert b"gymfleet.outcome" in everything
    assert b"nobody shall read" not in everything
