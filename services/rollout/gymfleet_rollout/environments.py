"""The gateway's descriptions of its environments, requested once each."""

import asyncio
from functools import partial
from typing import Final

from gymfleet_client.errors import DeadlinePassed, TransportError, Unavailable
from gymfleet_client.rest import GatewayClient
from gymfleet_contracts.session import EnvironmentSpec
from gymfleet_kit.retries import Retries

_PATIENCE_S: Final = 60.0
"""Time for a gateway that died to be restarted, as when a session is opened: no attempt is used up."""


class Environments:
    """Specs by name; simultaneous callers share one request, and a failure is not cached."""

    def __init__(self, gateway: GatewayClient) -> None:
        self._gateway = gateway
        self._specs: dict[str, asyncio.Task[EnvironmentSpec]] = {}

    async def spec(self, name: str) -> EnvironmentSpec:
        """Return instructions, limits and capabilities. Waits through an outage; raises the client's errors."""
        task = self._specs.get(name)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._specs[name] = asyncio.create_task(self._ask(name))
        return await asyncio.shield(task)

    async def _ask(self, name: str) -> EnvironmentSpec:
        retries = Retries(
            "gateway.awaited", on=(Unavailable, TransportError), unless=DeadlinePassed, bound={"env": name}
        )
        return await retries.call(partial(self._gateway.environment, name), timeout_s=_PATIENCE_S)
