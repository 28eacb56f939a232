"""Routes for the hot path: declared and documented with FastAPI, but called without it if it adds nothing.

FastAPI spends some hundred microseconds of a request on resolving dependencies and on
contexts for generators that few endpoints have. A direct route does only what its endpoint
needs, and passes requests that it cannot read to FastAPI, so that refusals look the same everywhere.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_JSON: Final = b"application/json"
Dependency = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The arguments that a call of the endpoint needs, by parameter name."""

    request: str | None
    path: tuple[str, ...]
    body: str | None
    read: Callable[[bytes], Any]
    dependencies: tuple[tuple[str, str, Dependency], ...]
    """For each dependency: its name in the endpoint, the name of its own parameter, and itself."""


class DirectRoute(APIRoute):
    """Call the endpoint directly if it is simple enough; otherwise behave like any other route.

    A simple endpoint is a coroutine that returns a `Response` and takes strings of the path, at most one JSON
    body, the request, and results of coroutines that depend only on the request. Use it as a router's `route_class`.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **settings: Any) -> None:
        super().__init__(path, endpoint, **settings)
        plan = _plan(self.dependant, endpoint)
        self.direct = plan is not None
        if plan is not None:
            self.app = _direct(endpoint, plan, self.app)


def direct_first(app: FastAPI) -> None:
    """Put the direct routes before all others, because a request is matched against one after the other."""
    app.router.routes.sort(key=lambda route: not (isinstance(route, DirectRoute) and route.direct))


def _direct(endpoint: Callable[..., Any], plan: _Plan, otherwise: ASGIApp) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        arguments: dict[str, Any] = {}
        if plan.body is not None:
            content = await _content(receive)
            if content is None:  # the caller has gone
                return
            try:
                if not _is_json(scope):
                    raise ValueError
                arguments[plan.body] = plan.read(content)
            except ValueError:  # pydantic's errors are ValueErrors, too
                await otherwise(scope, _again(content, receive), send)  # FastAPI says what is wrong with it
                return
        request = Request(scope, receive, send)
        for name in plan.path:
            arguments[name] = scope["path_params"][name]
        for name, own, dependency in plan.dependencies:
            arguments[name] = await dependency(**{own: request})
        if plan.request is not None:
            arguments[plan.request] = request
        response: Response = await endpoint(**arguments)
        await response(scope, receive, send)

    return app


def _plan(dependant: Dependant, endpoint: Callable[..., Any]) -> _Plan | None:
    """Return the plan of a call, or None for an endpoint that needs FastAPI."""
    hints = inspect.get_annotations(endpoint)
    if not inspect.iscoroutinefunction(endpoint) or hints.get("return") is not Response or _wants_more(dependant):
        return None
    if any(hints.get(field.name) is not str for field in dependant.path_params):
        return None
    dependencies = []
    for inner in dependant.dependencies:
        own = inner.request_param_name or inner.http_connection_param_name
        simple = own is not None and not (inner.path_params or inner.body_params or inner.dependencies)
        if not simple or _wants_more(inner) or not inspect.iscoroutinefunction(inner.call):
            return None
        dependencies.append((str(inner.name), str(own), inner.call))
    body, read = _body(dependant, hints)
    if len(dependant.body_params) > 1 or (dependant.body_params and body is None):
        return None
    names = tuple(field.name for field in dependant.path_params)
    return _Plan(dependant.request_param_name, names, body, read, tuple(dependencies))


def _wants_more(dependant: Dependant) -> bool:
    """Return whether the endpoint takes arguments that only FastAPI can provide."""
    fields = dependant.query_params or dependant.header_params or dependant.cookie_params
    given = dependant.response_param_name or dependant.background_tasks_param_name
    return bool(fields or given or dependant.security_scopes_param_name or dependant.websocket_param_name)


def _body(dependant: Dependant, hints: Mapping[str, Any]) -> tuple[str | None, Callable[[bytes], Any]]:
    for field in dependant.body_params:
        if field.field_info.is_required():
            return field.name, TypeAdapter(hints[field.name]).validate_json
    return None, bytes


def _is_json(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        if name == b"content-type":
            return bool(value == _JSON or value.partition(b";")[0].strip() == _JSON)
    return False


async def _content(receive: Receive) -> bytes | None:
    """Return the body, or None if the caller disconnected before its end."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _again(content: bytes, receive: Receive) -> Receive:
    """Return a `receive` that begins with the body, which has already been read."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": content, "more_body": False}

    return replayed
