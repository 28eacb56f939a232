"""Rows of a data set over HTTP, as docs/dataset.md has it: played, with tools, and scored by the reward service."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
from gymfleet_client import SyncGatewayClient
from gymfleet_contracts.recipe import load_recipe
from gymfleet_contracts.reward import ScoreBatch, ScoredBatch, ScoreRequest
from gymfleet_contracts.session import OpenSession, Session
from gymfleet_envs.dataset.options import DatasetOptions
from gymfleet_envs.dataset.scorer import make_scorer
from gymfleet_envs.dataset.tool import RowTool, ToolFault, tools_of
from gymfleet_kit.sealing import Opener, new_private_key

from tests.fixtures import gateway_fleet
from tests.fixtures.paths import ROOT
from tests.fixtures.rewards import make_spec
from tests.fixtures.service_process import ServiceProcess
from tests.fixtures.trajectories import make_trajectory, make_turn

PAGE = (ROOT / "docs/dataset.md").read_text(encoding="utf-8")
PRIVATE_KEY = new_private_key()
SECRET = "7654321"


def block(language: str, having: str) -> str:
    (found,) = [body for body in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if having in body]
    return str(found)


@pytest.fixture(scope="module")
def capitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows of the page, as its code writes them."""
    directory = tmp_path_factory.mktemp("rows")
    subprocess.run([sys.executable, "-c", block("python", "capitals")], cwd=directory, check=True, timeout=60)
    return directory


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[gateway_fleet.ServiceProcess]:
    logs = tmp_path_factory.mktemp("fleet")
    row = {
        "prompt": "Which number?",
        "reward_model": {"ground_truth": SECRET, "style": "rule"},
        "data_source": "arithmetic",
    }
    (logs / "train.jsonl").write_text(json.dumps(row) + "\n")
    options = {"path": str(logs / "train.jsonl"), "validation_share": 0, "test_share": 0, "tools": ["calculator"]}
    server = gateway_fleet.env_server(
        logs,
        "dataset",
        seal_key=Opener(PRIVATE_KEY).public_key,
        options=json.dumps({"dataset": {**options, "max_turns": 3}}),
    )
    gateway = gateway_fleet.gateway(logs, [server.url])
    with gateway_fleet.running(server, gateway):
        yield gateway


@pytest.fixture(scope="module")
def rewards(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    given = {"redis_url": redis_url, "seal_key": PRIVATE_KEY}
    log = tmp_path_factory.mktemp("log") / "log"
    with ServiceProcess("gymfleet-reward", "GYMFLEET_REWARD_", given, log) as service:
        yield service


def reward_of(service: ServiceProcess, session: Session, reply: str) -> float:
    trajectory = make_trajectory(
        task=session.task, sealed=session.sealed, turns=(make_turn(2, text=reply, action=reply),)
    )
    spec = make_spec(goal={"enabled": False}, numeric_match={"ground_truth_from": "private.ground_truth"})
    body = ScoreBatch(items=(ScoreRequest(trajectory=trajectory, reward=spec),)).model_dump_json()
    response = httpx.post(
        f"{service.url}/v1/scores", content=body, headers={"Content-Type": "application/json"}, timeout=30
    )
    (item,) = ScoredBatch.model_validate_json(response.raise_for_status().content).items
    assert item.reward is not None, item.reward_error
    return item.reward.total


def test_the_right_answer_reaches_the_reward_service_and_nobody_else(
    gateway: gateway_fleet.ServiceProcess, rewards: ServiceProcess
) -> None:
    with SyncGatewayClient(gateway.url) as client:
        session = client.open(OpenSession(env="dataset", task_index=0))
        called = client.step(session.session_id, 0, "calculator[7654320 / 2]")
        (child,) = client.fork(session.session_id)
        wrong = client.step(child.session_id, 1, "1")
        right = client.step(session.session_id, 1, SECRET)
        expert = httpx.get(f"{gateway.url}/v1/sessions/{session.session_id}/expert")
        told = (session, called, child, wrong, client.environment("dataset"), expert.text)

    assert SECRET not in repr(told)
    assert (called.observation, wrong.score, right.score, right.terminated) == ("3827160", 0.0, 1.0, True)
    assert expert.status_code == 409
    assert (reward_of(rewards, session, SECRET), reward_of(rewards, session, "1")) == (1.0, 0.0)


def test_a_call_of_a_tool_by_its_schema_is_an_action(gateway: gateway_fleet.ServiceProcess) -> None:
    with SyncGatewayClient(gateway.url) as client:
        session = client.open(OpenSession(env="dataset", task_index=0))
    url = f"{gateway.url}/v1/sessions/{session.session_id}/tool"

    answer = httpx.post(url, json={"name": "calculator", "arguments": {"expression": "6 * 7"}})
    refused = httpx.post(url, json={"name": "calculator", "arguments": {"text": "6 * 7"}})

    assert answer.json() == {"action": "calculator[6 * 7]"}
    assert refused.status_code == 422


def test_the_page_is_followed(capitals: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    script = ["bash", "-euo", "pipefail", "-c", block("sh", "envs play")]

    done = subprocess.run(
        script, cwd=capitals, env=environment, capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "dataset" in done.stdout
    assert "The capital of " in done.stdout
    assert "The answer is taken." in done.stdout


def test_the_pages_recipe_scorer_and_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = tomllib.loads(block("toml", "environments.options"))
    path = tmp_path / "rows.toml"
    whole = (ROOT / "recipes/dataset.toml").read_text(encoding="utf-8")
    head, _, tail = whole.partition("[[environments]]")
    path.write_text(
        head.replace('"dataset"', '"rows"', 1) + block("toml", "environments.options")
        + tail[tail.index("[model.scratch]") :].replace('[rollout.format]\nuse = "free"\n', "")
    )  # fmt: skip
    recipe = load_recipe(path)
    options = DatasetOptions.model_validate(changes["environments"][0]["options"])
    (tmp_path / "decades.py").write_text(block("python", "class Decade"))
    (tmp_path / "glossaries.py").write_text(block("python", "class Glossary"))
    monkeypatch.syspath_prepend(str(tmp_path))

    scorer = make_scorer("decades:Decade")
    tool: RowTool = tools_of(("glossaries:Glossary",))["glossary"]

    assert recipe.environments[0].options["path"] == "/data/capitals"
    assert [type(make_scorer(told)).__name__ for told in options.scorers.values()] == ["ExactMatch", "MultipleChoice"]
    assert [scorer.score(answer, scorer.checked(1969)) for answer in ("1969", "1961", "1971", "soon")] == [1, 0.5, 0, 0]
    assert tool.call("quine") == "a program that prints itself"
    with pytest.raises(ToolFault):
        tool.call("bug")


def hub_cache(home: Path, files: dict[str, bytes]) -> None:
    """Lay a data set out as the hub's client keeps it."""
    repository = home / "hub" / "datasets--acme--sums"
    snapshot = repository / "snapshots" / ("a" * 40)
    for name, content in files.items():
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_bytes(content)
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("a" * 40)


def loaded(options: dict[str, Any], home: Path) -> subprocess.CompletedProcess[str]:
    """Load the rows in a process of their own: the hub's client reads the environment when it is imported."""
    code = """
import json, sys
from gymfleet_env_server.catalogue import EnvironmentUnavailable, load_entry
try:
    tasks = load_entry("dataset", {}, {"dataset": json.loads(sys.argv[1])}).tasks
except EnvironmentUnavailable as error:
    sys.exit(str(error))
print(sum(tasks.count(split, "rows") for split in ("train", "validation", "test")))
"""
    environment = {**os.environ, "HF_HOME": str(home)}
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE"):
        environment.pop(name, None)
    command = [sys.executable, "-c", code, json.dumps(options)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_data_set_of_the_hub_is_read_from_its_cache_and_not_fetched(tmp_path: Path) -> None:
    rows = b"".join(
        json.dumps({"prompt": f"{n}?", "data_source": "arithmetic", "reward_model": {"ground_truth": n}}).encode()
        + b"\n"
        for n in range(50)
    )
    hub_cache(tmp_path, {"data/train-00000-of-00001.jsonl": rows, "data/test.jsonl": rows[:0] + b'{"prompt": "x"'})

    damaged = loaded({"hub": "acme/sums"}, tmp_path)
    shutil.rmtree(tmp_path / "hub")
    hub_cache(tmp_path, {"data/train-00000-of-00001.jsonl": rows})
    found = loaded({"hub": "acme/sums"}, tmp_path)
    absent = loaded({"hub": "acme/others"}, tmp_path)
    hub_cache(tmp_path / "two", {"long/train.jsonl": rows, "short/train.jsonl": rows.splitlines(keepends=True)[0]})
    short = loaded({"hub": "acme/sums", "hub_folder": "short"}, tmp_path / "two")
    neither = loaded({"hub": "acme/sums"}, tmp_path / "two")

    assert "test.jsonl, line 1: no JSON" in damaged.stderr
    assert (found.stdout, found.stderr) == ("50\n", "")
    told = "acme/others@main is not in the hub's cache, and hub_download is off, so it is not fetched"
    assert absent.stderr == f"environment dataset: {told}\n"
    assert (short.stdout, short.stderr) == ("1\n", "")
    assert "hub_folder" in neither.stderr


def test_the_options_of_the_page_for_a_published_data_set_are_options() -> None:
    block = PAGE.partition('```json\n{"hub"')[2].partition("```")[0]

    options = DatasetOptions.model_validate_json(f'{{"hub"{block}')

    assert (options.hub, options.hub_folder, options.solution_key) == ("openai/gsm8k", "main", "answer")


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's API as fetching a data set takes."""

    files: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[str]] = []
    sha: ClassVar[str] = "b" * 40

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(path)
        if path.startswith("/api/datasets/acme/sums/revision/"):
            siblings = [{"rfilename": name} for name in self.files]
            self._answer(json.dumps({"id": "acme/sums", "sha": self.sha, "siblings": siblings}).encode())
        elif path.startswith("/api/datasets/acme/sums/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(body), "oid": "c" * 40} for name, body in self.files.items()
            ]
            self._answer(json.dumps(tree).encode())
        elif (name := path.removeprefix(f"/datasets/acme/sums/resolve/{self.sha}/")) in self.files:
            self._answer(self.files[name])
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        headers = {"ETag": '"0123abcd"', "X-Repo-Commit": self.sha, "Content-Length": str(len(body))}
        for name, value in {**headers, "Content-Type": "application/json"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_a_data_set_is_fetched_from_a_hub_where_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"prompt": "1 + 1?", "data_source": "arithmetic", "reward_model": {"ground_truth": "2"}}
    Hub.files = {"data/train.jsonl": json.dumps(row).encode() + b"\n", "weights.bin": b"large"}
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        forbidden = loaded({"hub": "acme/sums"}, tmp_path)
        asked_before = list(Hub.asked)
        fetched = loaded({"hub": "acme/sums", "hub_download": True}, tmp_path)
        unknown = loaded({"hub": "acme/nothing", "hub_download": True}, tmp_path)
        server.shutdown()
    gone = loaded({"hub": "acme/others", "hub_download": True}, tmp_path)
    offline = loaded({"hub": "acme/sums"}, tmp_path)

    assert forbidden.returncode != 0
    assert asked_before == [], "nothing is asked over the network"
    assert fetched.stdout == "1\n", fetched.stderr
    assert not any("weights.bin" in path for path in Hub.asked), "only files with rows"
    assert unknown.stderr.startswith("environment dataset: acme/nothing@main: 404 Client Error")
    assert len(unknown.stderr.splitlines()) == 1
    assert gone.stderr == "environment dataset: acme/others@main is not in the hub's cache, and could not be fetched\n"
    assert offline.stdout == "1\n", "from the cache now"
