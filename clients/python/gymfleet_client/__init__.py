"""The Python SDK: sync and async clients over REST, sessions over one socket, Gymnasium environments."""

from gymfleet_client.errors import ClientError, DeadlinePassed, ProblemError, TransportError
from gymfleet_client.rest import GatewayClient
from gymfleet_client.stream import SessionStream
from gymfleet_client.sync import SyncGatewayClient

__all__ = [
    "ClientError",
    "DeadlinePassed",
    "GatewayClient",
    "ProblemError",
    "SessionStream",
    "SyncGatewayClient",
    "TransportError",
]
