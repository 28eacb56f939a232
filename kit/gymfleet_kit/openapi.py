"""Complete the OpenAPI document of a service: add what FastAPI leaves out, and correct what it rounds."""

from collections.abc import Iterator
from typing import Any, Final

from fastapi import FastAPI
from gymfleet_contracts.problems import PROBLEM_MEDIA_TYPE

_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_BODY_FAILURES: Final = {"400": "The body is not JSON in UTF-8", "413": "The body is too large"}


def complete_openapi(app: FastAPI) -> None:
    """Make `app` serve a document that names every status with which the kit itself answers."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            _round_bounds(document)
            for operation in _operations(document):
                if "requestBody" in operation:
                    _declare_body_failures(operation)
        return app.openapi_schema or generate()

    app.openapi = openapi  # type: ignore[method-assign]


def _operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in document.get("paths", {}).values():
        yield from (operation for operation in path.values() if isinstance(operation, dict))


def _declare_body_failures(operation: dict[str, Any]) -> None:
    content = {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for status, description in _BODY_FAILURES.items():
        operation["responses"].setdefault(status, {"description": description, "content": content})


def _round_bounds(node: Any) -> None:
    """Make whole bounds integers again: FastAPI's model of a schema holds them as floats, and would round 2**63 up."""
    if isinstance(node, dict):
        for name in _BOUNDS:
            bound = node.get(name)
            if isinstance(bound, float) and bound.is_integer():
                node[name] = int(bound)
        for value in node.values():
            _round_bounds(value)
    elif isinstance(node, list):
        for value in node:
            _round_bounds(value)
