"""The rollout process before it has an engine: what it listens on, whom it lets in, what it waits for."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gymfleet_contracts.recipe import MODEL_BUILT, MODEL_INIT

from tests.fixtures.ports import free_port
from tests.fleet import ServiceProcess, clean_environment, script

TIMEOUT_S = 60.0
KEY = "an-api-key-of-some-length"
NOBODY = "http://127.0.0.1:9"
"""vLLM's server at this address never comes up, so that no engine need start."""
BODY = {"version": 1, "weights_path": "/nowhere", "probe_prompts": [[1]]}


def wait_for(service: ServiceProcess, words: str) -> str:
    """Until `/readyz` says it."""
    deadline = time.monotonic() + TIMEOUT_S
    said = ""
    while words not in said:
        assert time.monotonic() < deadline, f"{said!r} instead of {words!r}: {service.tail()}"
        try:
            said = str(httpx.get(f"{service.url}/readyz", timeout=5, trust_env=False).json().get("detail"))
        except httpx.TransportError as error:
            said = repr(error)
        time.sleep(0.05)
    return said


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[ServiceProcess]:
    """With a key and a control port, on all addresses."""
    port = free_port()
    settings = {
        "HOST": "0.0.0.0",  # noqa: S104 - for this a key is needed
        "PORT": str(port), "CONTROL_PORT": str(free_port()), "API_KEY": KEY, "MODEL": str(tiny_model),
        "BACKEND": "server", "SERVER_URLS": json.dumps([NOBODY]),
    }  # fmt: skip
    given = {f"GYMFLEET_ROLLOUT_{name}": value for name, value in settings.items()}
    log = tmp_path_factory.mktemp("guarded") / "log"
    service = ServiceProcess("rollout", [script("gymfleet-rollout")], port, given, log)
    service.start()
    try:
        wait_for(service, "the engine is starting")
        yield service
    finally:
        service.stop()


def control_url(service: ServiceProcess) -> str:
    return f"http://127.0.0.1:{service.settings['GYMFLEET_ROLLOUT_CONTROL_PORT']}"


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", ""), ("POST", "/1/commit"), ("DELETE", "/1")],
    ids=["stage", "commit", "refuse"],
)
def test_the_policy_is_replaced_over_the_control_port_alone(guarded: ServiceProcess, method: str, path: str) -> None:
    control = control_url(guarded)

    def send(base: str, **headers: str) -> httpx.Response:
        body = BODY if not path else None
        headers["Authorization"] = f"Bearer {KEY}"
        return httpx.request(method, f"{base}/v1/policy/versions{path}", json=body, headers=headers, trust_env=False)

    refused, led_on = send(guarded.url), send(control)
    lied = send(guarded.url, Host=control.removeprefix("http://"), **{"X-Forwarded-Port": control.rpartition(":")[2]})

    assert refused.status_code == lied.status_code == 403
    assert refused.json()["type"] == "/problems/forbidden"
    assert f"send this to port {control.rpartition(':')[2]}" in refused.json()["detail"]
    assert (led_on.status_code, led_on.json()["detail"]) == (503, "the engine is starting")


def test_what_everybody_may_ask_is_served_on_both_ports(guarded: ServiceProcess) -> None:
    for base in (guarded.url, control_url(guarded)):
        status = {path: httpx.get(base + path, trust_env=False).status_code for path in ("/healthz", "/metrics")}
        assert status == {"/healthz": 200, "/metrics": 200}
        assert httpx.get(f"{base}/readyz", trust_env=False).json()["detail"] == "the engine is starting"


@pytest.mark.parametrize("header", ["", "Bearer", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Basic {KEY}", KEY])
def test_without_the_key_nothing_is_done_on_either_port(guarded: ServiceProcess, header: str) -> None:
    for base in (guarded.url, control_url(guarded)):
        with httpx.Client(base_url=base, headers={"Authorization": header}, trust_env=False) as client:
            answers = [
                client.get("/v1/policy"), client.post("/v1/policy/versions", json=BODY), client.get("/v1/jobs/x"),
            ]  # fmt: skip
        assert [answer.status_code for answer in answers] == [401] * 3
        assert answers[0].headers["WWW-Authenticate"] == "Bearer"
        assert "Authorization: Bearer <key>" in answers[0].json()["detail"]
    assert KEY not in guarded.log.read_text()


def test_with_the_key_the_service_answers(guarded: ServiceProcess) -> None:
    headers = {"Authorization": f"bearer {KEY}"}

    assert httpx.get(f"{guarded.url}/v1/policy", headers=headers, trust_env=False).status_code == 503


RECIPE = f"""
name = "tiny"
seed = 7
[[environments]]
name = "maze"
[model.scratch]
[inference]
backend = "server"
urls = ["{NOBODY}"]
max_model_len = 2048
[rollout.limits]
max_context_tokens = 1024
[[stages]]
kind = "measure"
"""


def test_it_waits_for_the_model_that_the_recipe_has_built(tiny_model: Path, tmp_path: Path) -> None:
    recipe, run_dir = tmp_path / "recipe.toml", tmp_path / "run"
    recipe.write_text(RECIPE)
    port = free_port()
    command = [script("gymfleet-rollout"), "--recipe", str(recipe), "--run-dir", str(run_dir)]
    service = ServiceProcess("rollout", command, port, {"GYMFLEET_ROLLOUT_PORT": str(port)}, tmp_path / "log")
    service.start()
    try:
        said = wait_for(service, "waiting")
        model = run_dir / MODEL_INIT
        model.mkdir(parents=True)
        for file in tiny_model.iterdir():
            (model / file.name).write_bytes(file.read_bytes())
        half_built = wait_for(service, "waiting")
        (model / MODEL_BUILT).write_text("{}")
        wait_for(service, "the engine is starting")
    finally:
        service.stop()

    assert said == half_built == (f"waiting for the model of recipe tiny at {model}: gymfleet-trainer build makes it")


def refusal(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [script("gymfleet-rollout"), *arguments],
        env=clean_environment(**{f"GYMFLEET_ROLLOUT_{name}": value for name, value in settings.items()}),
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


def test_what_is_wrong_with_the_arguments_is_one_line(tiny_model: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    model = {"MODEL": str(tiny_model)}

    nowhere = refusal("--recipe", str(tmp_path / "no.toml"), "--run-dir", str(tmp_path))
    alone = refusal("--recipe", str(recipe))
    everywhere = refusal(**model, HOST="0.0.0.0")  # noqa: S104 - refused
    twice = refusal(**model, PORT="8300", CONTROL_PORT="8300")

    assert [done.returncode for done in (nowhere, alone, everywhere, twice)] == [2] * 4
    assert nowhere.stderr == f"error: no recipe at {tmp_path / 'no.toml'}\n"
    assert alone.stderr.endswith("error: --recipe and --run-dir are given together\n")
    assert "give it to the trainer, as GYMFLEET_TRAINER_ROLLOUT_API_KEY" in everywhere.stderr
    assert everywhere.stderr.count("\n") == 1
    assert "choose another, or leave it out" in twice.stderr
