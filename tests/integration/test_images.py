"""Images that an environment shows, through an env server and through a gateway that recovers its sessions."""

import hashlib
import os
import re
import signal
from collections.abc import Iterator

import httpx
import psutil
import pytest
from gymfleet_client import GatewayClient, SessionStream, SyncGatewayClient
from gymfleet_client.errors import UnknownImage, UnknownSession
from gymfleet_contracts.observation import ImagePart, Part, TextPart
from gymfleet_contracts.session import OpenSession

from tests.fixtures import gateway_fleet
from tests.fixtures.gateway_fleet import ServiceProcess
from tests.fixtures.paths import ROOT
from tests.fixtures.redis_server import RedisServer

SHADES = OpenSession(env="shades", task_index=0)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServiceProcess, ServiceProcess]]:
    """An env server with the guide's environment, and a gateway."""
    page = (ROOT / "docs/adding-an-environment.md").read_text(encoding="utf-8")
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Shades" in block]
    assert len(block.splitlines()) < 60
    directory = tmp_path_factory.mktemp("fleet")
    path = directory / "shades.py"
    path.write_text(block)
    with RedisServer(tmp_path_factory.mktemp("redis")) as redis:
        server = gateway_fleet.env_server(directory, str(path))
        gateway = gateway_fleet.gateway(directory, [server.url], redis_url=redis.url)
        with gateway_fleet.running(server, gateway):
            yield server, gateway


@pytest.fixture(params=["env server", "gateway"])
def service(request: pytest.FixtureRequest, fleet: tuple[ServiceProcess, ServiceProcess]) -> ServiceProcess:
    return fleet[request.param == "gateway"]


def image_of(part: Part) -> ImagePart:
    assert isinstance(part, ImagePart)
    return part


async def test_an_image_is_named_by_its_hash_and_fetched_by_it(service: ServiceProcess) -> None:
    async with SessionStream(service.url) as stream, GatewayClient(service.url) as rest:
        session = await stream.open(SHADES)
        text, picture = session.parts
        image = image_of(picture)
        content = await stream.image(session.session_id, image.sha256)

        assert text == TextPart(text="How light is this?")
        assert hashlib.sha256(content).hexdigest() == image.sha256
        assert content.startswith(b"\x89PNG")
        assert await rest.image(session.session_id, image.sha256) == content
        with SyncGatewayClient(service.url) as blocking:
            assert blocking.image(session.session_id, image.sha256) == content
        assert session.observation == f"How light is this?\n[image {image.sha256[:16]}]"


async def test_a_step_shows_others_and_the_earlier_ones_are_gone(service: ServiceProcess) -> None:
    async with SessionStream(service.url) as stream:
        session = await stream.open(SHADES)
        first = image_of(session.parts[1])
        result = await stream.step(session.session_id, 0, "17")
        said, right = image_of(result.parts[1]), image_of(result.parts[3])

        assert right == first
        assert said != first
        assert (await stream.get(session.session_id)).parts == result.parts
        assert await stream.image(session.session_id, said.sha256)
        (child,) = await stream.fork(session.session_id, 1)
        assert child.parts == result.parts
        assert await stream.image(child.session_id, said.sha256)

        text = await stream.step(session.session_id, 1, "dark")
        assert (text.observation, text.parts) == ("Say a number.", ())
        with pytest.raises(UnknownImage):
            await stream.image(session.session_id, said.sha256)


async def test_over_rest_it_comes_as_what_it_is_and_nothing_a_browser_runs(service: ServiceProcess) -> None:
    async with httpx.AsyncClient(base_url=service.url, trust_env=False) as http:
        session = (await http.post("/v1/sessions", json={"env": "shades", "task_index": 0})).json()
        path = f"/v1/sessions/{session['session_id']}/images"
        found = await http.get(f"{path}/{session['parts'][1]['sha256']}")
        plain = await http.post(
            f"/v1/sessions/{session['session_id']}/steps", json={"index": 0, "action": "not a number"}
        )

        assert found.headers["content-type"] == "image/png"
        assert found.headers["x-content-type-options"] == "nosniff"
        assert "parts" not in plain.json(), "absent where an observation is text"
        assert (await http.get(f"{path}/{'0' * 64}")).json()["type"] == "/problems/unknown-image"
        assert (await http.get(f"{path}/..%2f..%2fetc")).status_code in {404, 422}
        assert (await http.get(f"{path}/{'F' * 64}")).status_code == 422


async def test_who_has_not_the_session_has_not_the_image(service: ServiceProcess) -> None:
    async with SessionStream(service.url) as stream:
        session = await stream.open(SHADES)
        other = await stream.open(OpenSession(env="shades", task_index=1))
        own = image_of(session.parts[1])
        await stream.close(session.session_id)

        with pytest.raises(UnknownImage):
            await stream.image(other.session_id, own.sha256)
        with pytest.raises(UnknownSession):
            await stream.image(session.session_id, own.sha256)


async def test_a_session_that_was_played_again_has_its_images(fleet: tuple[ServiceProcess, ServiceProcess]) -> None:
    server, gateway = fleet
    async with SessionStream(gateway.url) as stream:
        session = await stream.open(SHADES)
        result = await stream.step(session.session_id, 0, "17")
        said = image_of(result.parts[1])
        before = await stream.image(session.session_id, said.sha256)
        for child in psutil.Process(server.pid).children():
            os.kill(child.pid, signal.SIGKILL)

        assert await stream.image(session.session_id, said.sha256) == before
        assert (await stream.get(session.session_id, index=1)).parts == result.parts
