"""Components of somebody's own in a reward service: those of the guide, and bad ones."""

import json
import re
import threading
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from gymfleet_contracts.problems import PROBLEM_MEDIA_TYPE, VALIDATION
from gymfleet_contracts.reward import RewardSpec, ScoreBatch, ScoredBatch, ScoreRequest
from gymfleet_contracts.streams import TRAJECTORIES_RAW
from gymfleet_contracts.trajectory import ScoredTrajectory, Trajectory
from gymfleet_kit.streams import RedisClient, StreamProducer

from tests.fixtures.paths import ROOT
from tests.fixtures.rewards import collect, make_spec
from tests.fixtures.service_process import ServiceProcess
from tests.fixtures.trajectories import make_trajectory, make_turn

HEAD: Final = "import time, asyncio\nfrom gymfleet_reward.component import Component, ComponentOptions\n"
BAD: Final = {
    "broken": "1 / 0",
    "raises": "class Bad(Component):\n    def score(self, episode): raise RuntimeError('in the\\nmiddle')",
    "blocks": "class Bad(Component):\n    async def score(self, episode): time.sleep(600)",
    "hangs": "class Bad(Component):\n    def score(self, episode): time.sleep(600)",
    "waits": "class Bad(Component):\n    async def score(self, episode): await asyncio.sleep(600)",
}
GUIDE: Final = {
    "brevity": "Fewer turns",
    "understood": "Actions that",
    "judge": "Ask a judge",
    "rank": "Ranks instead",
    "answer": "The answer at",
}


def of_the_guide(beginning: str) -> str:
    """The Python block that begins so."""
    page = (ROOT / "docs/adding-a-component.md").read_text(encoding="utf-8")
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if beginning in block]
    assert len(block.splitlines()) < 60
    return str(block)


def recipe_of_the_guide(table: str, path: str) -> RewardSpec:
    """The `[reward]` of the TOML block with a table, whose file is elsewhere here."""
    page = (ROOT / "docs/adding-a-component.md").read_text(encoding="utf-8")
    (block,) = [block for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if f"[reward.{table}]" in block]
    reward = tomllib.loads(block)["reward"]
    assert reward[table]["use"] == f"./{table}.py"
    return make_spec(**{**reward, table: {**reward[table], "use": path}})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("plugins")
    for name, beginning in GUIDE.items():
        (directory / f"{name}.py").write_text(of_the_guide(beginning))
    for name, source in BAD.items():
        (directory / f"{name}.py").write_text(HEAD + source)
    return {name: str(directory / f"{name}.py") for name in (*GUIDE, *BAD)}


def running(redis_url: str, files: dict[str, str], log: Path, *, component_timeout_s: float) -> ServiceProcess:
    settings = {
        "redis_url": redis_url,
        "plugins": json.dumps(list(files.values())),
        "component_timeout_s": component_timeout_s,
        "lease_s": 2,
    }
    return ServiceProcess("gymfleet-reward", "GYMFLEET_REWARD_", settings, log)


@pytest.fixture(scope="module")
def service(
    redis_url: str, files: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceProcess]:
    """With little patience, for components that hang."""
    with running(redis_url, files, tmp_path_factory.mktemp("reward") / "log", component_timeout_s=1) as process:
        yield process


@pytest.fixture
def patient(redis_url: str, files: dict[str, str], tmp_path: Path) -> Iterator[ServiceProcess]:
    with running(redis_url, files, tmp_path / "log", component_timeout_s=60) as process:
        yield process


@pytest.fixture
def judge() -> Iterator[tuple[str, list[str]]]:
    """A judge's URL, and what it was asked; of "hard" it says nothing at first."""
    asked: list[str] = []
    under_way: list[int] = [0, 0]

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"]
            asked.append(text)
            under_way[0] += 1
            under_way[1] = max(under_way)
            time.sleep(0.02)
            under_way[0] -= 1
            refused = text == "hard" and asked.count("hard") == 1
            body = json.dumps({"score": len(text) / 10}).encode()
            self.send_response(500 if refused else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quietly."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
    assert under_way[1] <= 8


def post(
    service: ServiceProcess, trajectories: list[Trajectory], spec: RewardSpec, *, timeout_s: float = 60, **changes: Any
) -> httpx.Response:
    items = tuple(ScoreRequest(trajectory=one, reward=spec, **changes) for one in trajectories)
    body = ScoreBatch(items=items).model_dump_json()
    headers = {"Content-Type": "application/json"}
    return httpx.post(f"{service.url}/v1/scores", content=body, headers=headers, timeout=timeout_s)


def scored(
    service: ServiceProcess, trajectories: list[Trajectory], spec: RewardSpec, **changes: Any
) -> tuple[ScoredTrajectory, ...]:
    response = post(service, trajectories, spec, **changes)
    assert response.status_code == 200, response.text
    return ScoredBatch.model_validate_json(response.content).items


def totals(items: tuple[ScoredTrajectory, ...]) -> list[float | None]:
    return [None if item.reward is None else item.reward.total for item in items]


def test_the_shortest_of_the_guide(service: ServiceProcess, files: dict[str, str]) -> None:
    spec = recipe_of_the_guide("brevity", files["brevity"])

    items = scored(service, [make_trajectory((1,) * 5), make_trajectory((1,) * 2, success=False)], spec)

    assert totals(items) == [pytest.approx(0.8), 0.0]


def test_one_of_the_guide_with_a_number_for_each_turn(service: ServiceProcess, files: dict[str, str]) -> None:
    turns = (make_turn(2), make_turn(2, action_valid=False), make_turn(1))

    (item,) = scored(service, [make_trajectory(turns=turns)], make_spec(understood={"use": files["understood"]}))

    assert item.reward is not None
    assert item.reward.token_rewards == ((0.0, 0.0), (0.0, -1.0), (1.0,))


def test_one_of_the_guide_that_asks_a_judge(
    patient: ServiceProcess, files: dict[str, str], judge: tuple[str, list[str]]
) -> None:
    url, asked = judge
    texts = [f"reply {number}" for number in range(20)] + ["hard"]
    episodes = [make_trajectory(turns=(make_turn(2, text=text),), sample=n) for n, text in enumerate(texts)]

    items = scored(patient, episodes, make_spec(goal={"enabled": False}, judge={"use": files["judge"], "url": url}))

    assert totals(items) == [pytest.approx(len(text) / 10) for text in texts]
    assert sorted(asked) == sorted([*texts, "hard"]), "what failed was asked again, and nothing else"


def test_one_of_the_guide_that_compares_a_group(service: ServiceProcess, files: dict[str, str]) -> None:
    episodes = [make_trajectory(sample=n, score=score) for n, score in enumerate((0.5, 1.0, 0.0))]
    spec = make_spec(goal={"enabled": False}, rank={"use": files["rank"]})

    assert totals(scored(service, [episodes[1], episodes[2], episodes[0]], spec, num_samples=3)) == [1.0, 0.0, 0.5]
    refused = post(service, episodes[:2], spec, num_samples=3)
    assert refused.status_code == 422
    assert "it has 3 episodes, here are the samples [0, 1]" in refused.json()["detail"]


def test_a_function_of_verl_unchanged(service: ServiceProcess, files: dict[str, str]) -> None:
    spec = recipe_of_the_guide("answer", files["answer"])
    turns = [(make_turn(2, text=text, info={"answer": 42}),) for text in ("It is 42", "It is 41")]
    episodes = [make_trajectory(turns=one) for one in turns]

    assert totals(scored(service, [*episodes, make_trajectory()], spec)) == [2.0, 1.0, None]


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"gaol": {}}, "there is no component 'gaol'; known: accuracy, action_path, action_use, bleu,"),
        ({"own": {"use": "/etc/own.py"}}, "this service was not given the component '/etc/own.py'"),
        ({"own": {"use": "os:system"}}, "this service was not given the component 'os:system'"),
        ({"goal": {"sucess": 1}}, "reward.goal.sucess: Extra inputs"),
    ],
)
def test_what_a_request_may_not_ask_for_is_a_problem(
    service: ServiceProcess, table: dict[str, Any], reason: str
) -> None:
    response = post(service, [make_trajectory()], make_spec(**table))

    assert (response.status_code, response.headers["content-type"]) == (422, PROBLEM_MEDIA_TYPE)
    assert response.json()["type"] == VALIDATION
    assert reason in response.json()["detail"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("broken", "broken.py cannot be imported: ZeroDivisionError: division by zero"),
        ("raises", "bad: RuntimeError: in the middle"),
        ("blocks", "a component blocks the event loop"),
        ("hangs", "it did not return within 1 s"),
        ("waits", "TimeoutError: no answer within 1 s"),
    ],
)
async def test_a_bad_one_reaches_the_trainer_as_one_line_and_hurts_nobody_else(
    service: ServiceProcess, files: dict[str, str], redis: RedisClient, name: str, reason: str
) -> None:
    producer = StreamProducer(redis, TRAJECTORIES_RAW)
    spec = make_spec(bad={"use": files[name]})
    for sample in range(3):
        await producer.publish(ScoreRequest(trajectory=make_trajectory(sample=sample, run_id=name), reward=spec))
    await producer.publish(ScoreRequest(trajectory=make_trajectory(run_id=f"{name}-other")))

    with ThreadPoolExecutor(1) as probing:
        health = probing.submit(lambda: [httpx.get(f"{service.url}/healthz", timeout=5).status_code for _ in range(20)])
        (other,) = await collect(redis, f"{name}-other", 1)
        failed = await collect(redis, name, 3)

    assert other.reward is not None
    assert {one.reward for one in failed} == {None}
    assert all(reason in str(one.reward_error) for one in failed)
    assert set(health.result()) == {200}
    assert not await redis.exists(f"{TRAJECTORIES_RAW}:dead")


def test_a_service_whose_components_hang_ends_at_once(redis_url: str, files: dict[str, str], tmp_path: Path) -> None:
    settings = {"redis_url": redis_url, "plugins": json.dumps(list(files.values())), "component_timeout_s": 500}
    service = ServiceProcess("gymfleet-reward", "GYMFLEET_REWARD_", settings, tmp_path / "log")
    service.start()
    for name in ("hangs", "blocks", "waits"):
        with pytest.raises(httpx.ReadTimeout):
            post(service, [make_trajectory()], make_spec(bad={"use": files[name]}), timeout_s=1)

    started = time.monotonic()
    exit_code = service.stop()

    assert exit_code == 0
    assert time.monotonic() - started < 30
