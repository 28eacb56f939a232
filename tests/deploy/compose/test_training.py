"""The quickstart's recipe on the stack, shortened: the model is built, served, trained, published and measured."""

import json
import time
from dataclasses import replace
from typing import Any, Final

import httpx
import pytest

from tests.deploy.compose.stack import Stack, report, run, until

RUN_S: Final = 600.0
RUN_DIR: Final = "/runs/quickstart"


@pytest.fixture(scope="module")
def training(stack: Stack) -> Stack:
    """The same project with the services of a run, all of them started."""
    training = replace(stack, settings={**stack.settings, "COMPOSE_PROFILES": "babyai,cpu"})
    began = time.monotonic()
    training.compose("up", "--detach", "--no-build", timeout_s=400)
    report(f"model built, engine and trainer started after {time.monotonic() - began:.0f} s")
    return training


def trainer_output(stack: Stack, service: str, *command: str) -> str:
    """What a command prints in a container of the trainer's service, which sees the runs."""
    entrypoint, *arguments = command
    return stack.compose("run", "--rm", "--no-deps", "-T", "--entrypoint", entrypoint, service, *arguments)


@pytest.mark.timeout(RUN_S + 120)
def test_the_recipe_is_run_to_its_end(training: Stack) -> None:
    (trainer,) = training.containers("trainer")

    def over() -> bool:
        state = training.inspect(trainer)["State"]
        assert state["Running"] or state["ExitCode"] == 0, training.compose("logs", "--no-color", "trainer", "rollout")
        return not state["Running"]

    took_s = until("the run's end", over, RUN_S)

    summary: dict[str, Any] = json.loads(trainer_output(training, "trainer", "cat", f"{RUN_DIR}/summary.json"))
    report(
        f"the run took {took_s:.0f} s: success {summary['success_before']:.2f} -> {summary['success_after']:.2f}, "
        f"{summary['steps']} steps, parts in seconds {summary['seconds']}"
    )
    assert summary["steps"] == 2
    assert summary["groups"]["trained"] == 32
    assert summary["num_eval_episodes"] == 100
    assert 0.0 <= summary["success_before"] <= 1.0
    assert summary["success_after"] > 0.0, "after its warm start it finds the ball now and then"
    assert summary["last_policy_version"] >= 2
    assert summary["parity_mean_abs"] < 0.001, "what vLLM samples is what the trainer computes"


def test_the_report_can_be_taken_out(training: Stack, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("report")
    trainer_output(training, "trainer", "gymfleet", "report", RUN_DIR)
    everywhere = (
        "docker",
        "ps",
        "--all",
        "--quiet",
        "--filter",
        f"label=com.docker.compose.project={training.project}",
    )
    (trainer,) = run(*everywhere, "--filter", "label=com.docker.compose.service=trainer", timeout_s=60).split()

    run("docker", "cp", f"{trainer}:{RUN_DIR}/report.html", str(place), timeout_s=60)

    assert (place / "report.html").read_text("utf-8").startswith("<!doctype html>")


def test_a_finished_run_is_not_run_again(training: Stack) -> None:
    said = training.compose("run", "--rm", "--no-deps", "-T", "trainer")

    assert "is finished" in said


def test_the_rollout_service_wants_its_key_and_publishes_no_policy_control(training: Stack) -> None:
    (url,) = training.urls("rollout")
    bearer = {"Authorization": f"Bearer {training.secret('rollout_api_key')}"}

    refused = httpx.get(f"{url}/v1/policy", trust_env=False)
    shown = httpx.get(f"{url}/v1/policy", headers=bearer, trust_env=False)
    control = httpx.delete(f"{url}/v1/policy/versions/1", headers=bearer, trust_env=False)

    assert (refused.status_code, shown.status_code, control.status_code) == (401, 200, 403)
    ports = training.inspect(training.containers("rollout")[0])["NetworkSettings"]["Ports"]
    assert [port for port, bindings in ports.items() if bindings] == ["8202/tcp"]
