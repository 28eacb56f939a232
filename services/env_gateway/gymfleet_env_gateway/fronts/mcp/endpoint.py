"""Serve one request of an MCP client through the `mcp` package; the front imports this module at the first request."""

from typing import Final

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from gymfleet_env_gateway.fronts.mcp.tools import environment_server
from gymfleet_env_gateway.state import get_gateway

# The app's own rules, `gymfleet_kit.access`, are applied before it.
_ANY_HOST: Final = TransportSecuritySettings(enable_dns_rebinding_protection=False)


async def serve(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one POST. Raises `ServiceError` for failures that concern no single message."""
    request = Request(scope, receive)
    tenant = get_gateway(request).access.tenant(request)
    gateway = get_gateway(request)
    spec = gateway.registry.environment(request.path_params["env"])
    # Read before the manager's task group begins: a body limit's error would leave it as an exception group.
    body = await request.body()
    manager = StreamableHTTPSessionManager(
        environment_server(spec, gateway.proxy, tenant),
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
