"""The page in which a person shops as the agent does: what it is served with, and the calls that it makes."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.env_server import EnvServer
from tests.fixtures import gateway_fleet

EVIL = """
from gymfleet_envs.environment import Environment, Outcome
from gymfleet_envs.tasks import GeneratedTasks


class Evil(Environment[int]):
    name = "evil"
    version = "1.0.0"
    summary = "<script>alert(1)</script>"
    instructions = "</pre><script>alert(2)</script>"
    max_turns = 3

    @classmethod
    def task_source(cls, data):
        counts = {"train": 5, "validation": 5, "test": 5}
        draw = lambda rng, level: rng.randrange(1000)
        return GeneratedTasks("evil", draw, str, levels=("one",), default_level="one", counts=counts)

    def reset(self, task, seed):
        self.start_info = {"clickables": ["<img src=x onerror=alert(3)>"]}
        return "<img src=x onerror=alert(4)>"

    def step(self, action):
        return Outcome(action)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    directory = tmp_path_factory.mktemp("play")
    evil = directory / "evil.py"
    evil.write_text(EVIL)
    with EnvServer(directory, "webshop", str(evil), shards=1) as running, httpx.Client(base_url=running.url) as http:
        yield http


def test_the_page_runs_its_own_script_alone(server: httpx.Client) -> None:
    first, second = server.get("/play/webshop"), server.get("/play/webshop")

    assert first.status_code == 200
    assert first.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.split(" ", 1) for part in first.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
    nonce = re.fullmatch(r"'nonce-([\w-]{20,})'", policy["script-src"])
    assert nonce
    assert first.text.count(f'nonce="{nonce[1]}"') == 2, "style and script"
    assert nonce[1] not in second.text, "a nonce is used once"
    assert first.headers["x-content-type-options"] == "nosniff"


def test_the_page_takes_nothing_from_elsewhere_and_sets_text_alone(server: httpx.Client) -> None:
    page = server.get("/play/evil").text

    assert page.replace("evil", "webshop") == page, "the page does not name the environment: nothing to inject into"
    assert "alert(" not in page
    assert not re.search(r"https?://|//[a-z]+\.", page)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|\son[a-z]+=", page)
    assert 'sandbox=""' in page, "a page of the shop runs no script and has no origin"


@pytest.mark.parametrize("name", ["nosuch", "%3Cscript%3E", "..%2f..%2fetc"])
def test_an_environment_that_is_not_served_has_no_page(server: httpx.Client, name: str) -> None:
    response = server.get(f"/play/{name}")

    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"


def test_a_purchase_by_the_calls_that_the_page_makes(server: httpx.Client) -> None:
    spec = server.get("/v1/environments/webshop").json()
    body = {"env": "webshop", "split": "train", "level": spec["default_level"], "task_index": 0}
    opened = server.post("/v1/sessions", json=body).json()
    assert opened["info"] == {"has_search_bar": True, "clickables": ["search"]}
    wanted = re.search(r"Find me a ([a-z ]+) ", opened["observation"])
    assert wanted
    index = 0

    def act(action: str) -> Any:
        nonlocal index
        response = server.post(f"/v1/sessions/{opened['session_id']}/steps", json={"index": index, "action": action})
        index += 1
        return response.raise_for_status().json()

    found = act(f"search[{wanted[1]}]")
    item = act(f"click[{found['info']['clickables'][2]}]")
    assert "buy now" in item["info"]["clickables"]
    done = act("click[buy now]")
    assert (done["terminated"], done["reward"], done["info"]["clickables"]) == (True, 1.0, [])
    assert server.delete(f"/v1/sessions/{opened['session_id']}").status_code == 204


def test_a_gateway_serves_the_same_page_and_its_calls_need_the_key(server: httpx.Client, tmp_path: Path) -> None:
    gateway = gateway_fleet.gateway(tmp_path, [str(server.base_url).rstrip("/")], api_key="sixteen-characters-or-more")
    with gateway_fleet.running(gateway), httpx.Client(base_url=gateway.url) as http:
        page = http.get("/play/webshop")
        nonce = re.compile(r"'?nonce-?=?[\"\w'-]+")

        assert page.status_code == 200
        assert nonce.sub("", page.text) == nonce.sub("", server.get("/play/webshop").text)
        assert http.get("/v1/environments/webshop").status_code == 401
        assert 'id="key" type="password"' in page.text
