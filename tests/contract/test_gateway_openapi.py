"""The gateway's OpenAPI document: valid, complete, and the env server's session API word for word."""

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.openapi.models import OpenAPI
from gymfleet_env_gateway.app import build_app
from gymfleet_env_gateway.settings import GatewaySettings
from gymfleet_env_server.routes import environments
from gymfleet_kit.session_api.routes import install_session_routes
from prometheus_client import CollectorRegistry

METHODS = {"get", "post", "delete", "put", "patch"}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    settings = GatewaySettings.model_validate({"replicas": ["http://127.0.0.1:9"], "secret": "0123456789abcdef"})
    return build_app(settings, registry=CollectorRegistry()).openapi()


def operations(document: dict[str, Any], prefix: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (path, method): operation
        for path, methods in document["paths"].items()
        if path.startswith(prefix)
        for method, operation in methods.items()
        if method in METHODS
    }


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*(references(value) for value in node.values()))
    return set().union(*(references(value) for value in node)) if isinstance(node, list) else set()


def test_the_document_is_openapi_and_every_reference_resolves(document: dict[str, Any]) -> None:
    OpenAPI.model_validate(document)

    schemas = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= schemas


def test_operation_ids_are_unique(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for operation in operations(document, "/").values()]

    assert len(ids) == len(set(ids))


def test_the_session_api_is_the_env_servers(document: dict[str, Any]) -> None:
    server = FastAPI()
    server.include_router(environments.router)
    install_session_routes(server, lambda _: None, {})  # type: ignore[arg-type,return-value]

    ours, theirs = operations(document, "/v1"), operations(server.openapi(), "/v1")

    own = {("/v1/tickets", "post"), ("/v1/sessions/{session_id}/seats", "post")}
    assert ours.keys() - theirs.keys() == own, "env servers are called by gateways, which have keys and see every seat"
    assert theirs.keys() <= ours.keys()
    for call, operation in theirs.items():
        assert ours[call].get("requestBody") == operation.get("requestBody"), call
        success = {status: body for status, body in operation["responses"].items() if status.startswith("2")}
        mine = {status: body for status, body in ours[call]["responses"].items() if status.startswith("2")}
        assert {
            s: b.get("content", {}).get("application/json", {}).get("schema", {}).get("$ref") for s, b in mine.items()
        } == {
            s: b.get("content", {}).get("application/json", {}).get("schema", {}).get("$ref")
            for s, b in success.items()
        }, call
        assert set(operation["responses"]) <= set(ours[call]["responses"]), f"{call}: a problem is not declared"


def test_every_failure_is_declared_as_a_problem(document: dict[str, Any]) -> None:
    for call, operation in operations(document, "/v1").items():
        failures = {s: body for s, body in operation["responses"].items() if not s.startswith("2")}
        assert failures, call
        for body in failures.values():
            schema = body["content"]["application/problem+json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/Problem"}, call


def test_a_step_declares_what_it_can_answer(document: dict[str, Any]) -> None:
    step = operations(document, "/v1")["/v1/sessions/{session_id}/steps", "post"]

    assert set(step["responses"]) == {
        "200",
        "400",
        "401",
        "403",
        "404",
        "409",
        "410",
        "413",
        "422",
        "429",
        "500",
        "503",
        "504",
    }
