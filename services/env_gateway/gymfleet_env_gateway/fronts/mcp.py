"""`/mcp/{env}`: each environment as an MCP server, for the official clients of both protocol generations.

The wire is the `mcp` package's own. Every request stands alone here: no session id is
issued, no stream is held open, and the lease is an argument of the tools. So any
gateway replica answers any request, also of the clients that begin with `initialize`.
"""

from typing import Final

from fastapi import FastAPI
from gymfleet_contracts import problems
from gymfleet_kit.access import is_local_page
from gymfleet_kit.problems import ServiceError
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from gymfleet_env_gateway.fronts.mcp_tools import environment_server
from gymfleet_env_gateway.state import get_gateway

# The package knows hosts by a fixed list; a gateway has many names. `_check_origin` stands in for it.
_ANY_HOST: Final = TransportSecuritySettings(enable_dns_rebinding_protection=False)


class ForeignOrigin(ServiceError):
    """A web page calls from a browser."""

    type = problems.FORBIDDEN
    title = "Web pages of other hosts may not call this server"
    status = 403


class _Endpoint:
    """The ASGI app behind `/mcp/{env}`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one POST. Raises `ServiceError` for what concerns no single message."""
        request = Request(scope, receive)
        _check_origin(request)
        tenant = get_gateway(request).access.tenant(request)
        gateway = get_gateway(request)
        spec = gateway.fleet.environment(request.path_params["env"])
        # Read before the manager's task group begins: what a body limit raises would leave it as a group.
        body = await request.body()
        manager = StreamableHTTPSessionManager(
            environment_server(spec, gateway.relay, tenant),
            json_response=True,
            stateless=True,
            security_settings=_ANY_HOST,
            max_request_body_size=max(len(body), 1),
        )
        async with manager.run():
            await manager.handle_request(scope, _replay(body, receive), send)


def _replay(body: bytes, receive: Receive) -> Receive:
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed


def _check_origin(request: Request) -> None:
    """DNS rebinding needs a browser, and browsers name the page's host in every POST. Raises `ForeignOrigin`."""
    origin = request.headers.get("origin")
    if origin is not None and not is_local_page(origin):
        raise ForeignOrigin("send no Origin header, or call from a page of this machine (http://localhost)")


def install_mcp(app: FastAPI) -> None:
    """Serve the front from `app`. GET and DELETE are answered with 405: there is no stream and no session."""
    app.router.routes.append(Route("/mcp/{env}", _Endpoint(), methods=["POST"], include_in_schema=False))
