"""What the gateway says of its environments, asked once each."""

import asyncio

from gymfleet_client.rest import GatewayClient
from gymfleet_contracts.session import EnvironmentSpec


class Environments:
    """Specs by name; callers who ask at the same time share one request, and a failure is not kept."""

    def __init__(self, gateway: GatewayClient) -> None:
        self._gateway = gateway
        self._specs: dict[str, asyncio.Task[EnvironmentSpec]] = {}

    async def spec(self, name: str) -> EnvironmentSpec:
        """Instructions, limits and capabilities. Raises the client's errors."""
        task = self._specs.get(name)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._specs[name] = asyncio.create_task(self._gateway.environment(name))
        return await asyncio.shield(task)
