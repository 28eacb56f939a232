"""Specs of environments: asked once, and through an outage of the gateway."""

import httpx
from gymfleet_client import GatewayClient
from gymfleet_contracts.session import EnvironmentSpec
from gymfleet_env_server.catalogue import load_entry
from gymfleet_rollout.environments import Environments

SPEC: EnvironmentSpec = load_entry("maze", {}).spec


class Gateway:
    """Refuses connections at first; counts the requests."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.asked = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        if self.asked <= self.refusals:
            raise httpx.ConnectError("refused", request=request)
        return httpx.Response(200, content=SPEC.model_dump_json(), headers={"content-type": "application/json"})


def environments(gateway: Gateway) -> Environments:
    http = httpx.AsyncClient(transport=httpx.MockTransport(gateway), base_url="http://gateway")
    return Environments(GatewayClient("http://gateway", http=http))


async def test_a_gateway_that_is_being_restarted_is_waited_for() -> None:
    gateway = Gateway(refusals=6)

    spec = await environments(gateway).spec("maze")

    assert spec.name == "maze"
    assert gateway.asked == 7


async def test_a_spec_is_asked_for_once() -> None:
    gateway = Gateway(refusals=0)
    specs = environments(gateway)

    assert await specs.spec("maze") is await specs.spec("maze")
    assert gateway.asked == 1
