"""`/mcp/{env}`: each environment as an MCP server, for the official clients of both protocol generations.

The wire is the `mcp` package's own. Every request stands alone here: no session id is
issued, no stream is held open, and the lease is an argument of the tools. So any
gateway replica answers any request, also of the clients that begin with `initialize`.
"""

from typing import Final

from fastapi import FastAPI
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from gymfleet_env_gateway.fronts.mcp_tools import environment_server
from gymfleet_env_gateway.state import get_gateway

# The app's own rules, `gymfleet_kit.access`, stand before it.
_ANY_HOST: Final = TransportSecuritySettings(enable_dns_rebinding_protection=False)


class _Endpoint:
    """The ASGI app behind `/mcp/{env}`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one POST. Raises `ServiceError` for what concerns no single message."""
        request = Request(scope, receive)
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


def install_mcp(app: FastAPI) -> None:
    """Serve the front from `app`. GET and DELETE are answered with 405: there is no stream and no session."""
    app.router.routes.append(Route("/mcp/{env}", _Endpoint(), methods=["POST"], include_in_schema=False))
