"""`os` in its container as compose would start it, which docker-compose 1.29 cannot: sandboxes need `systempaths`."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import httpx
import pytest
import yaml
from gymfleet_contracts.session import OpenSession

from tests.deploy.compose.stack import COMPOSE_FILE, Stack, answers, report, run, until
from tests.fixtures.os_verdicts import LOADER

START_S: Final = 120.0
LEVELS: Final = ("count", "filter", "text", "change")
DONE_OTHERWISE: Final = frozenset(
    ("image", "build", "profiles", "secrets", "environment", "networks", "restart", "logging", "healthcheck",
     "stop_grace_period", "depends_on")
)  # fmt: skip
"""Keys of the service without an option here: what they say is given in another way, or has nothing to do with it."""


def options(service: Mapping[str, Any]) -> list[str]:
    """What makes `docker run` start the service as compose would. Raises `KeyError` for what would be left out."""
    several = {
        "tmpfs": "--tmpfs",
        "cap_drop": "--cap-drop",
        "security_opt": "--security-opt",
        "dns_opt": "--dns-option",
    }
    single = {"init": "--init", "read_only": "--read-only", "mem_limit": "--memory", "cpus": "--cpus",
              "pids_limit": "--pids-limit"}  # fmt: skip
    found: list[str] = []
    for name, value in service.items():
        if name in several:
            found += [f"{several[name]}={one}" for one in value]
        elif name not in DONE_OTHERWISE and value is not None:
            found.append(f"{single[name]}={str(value).lower()}")
    return found


@pytest.fixture(scope="module")
def server(stack: Stack) -> Iterator[httpx.Client]:
    """A caller of the container's env server, which is told by its key that it may be one."""
    if not run("docker", "image", "ls", "--quiet", "gymfleet/env-os", timeout_s=60):
        pytest.skip("env-os: no image of it here")
    settings = {"COMPOSE_PROFILES": "os", "GYMFLEET_OS_SECCOMP": str(COMPOSE_FILE.parent / "docker/seccomp-os.json")}
    composed = yaml.safe_load(replace(stack, settings={**stack.settings, **settings}).compose("config"))
    service = composed["services"]["env-os"]
    given = [f"--env={name}={value}" for name, value in service["environment"].items()]
    keys = [(stack.secrets / secret["source"], secret["target"]) for secret in service.get("secrets", ())]
    given += [f"--volume={path}:/run/secrets/{target}:ro" for path, target in keys]
    label = f"--label=com.docker.compose.project={stack.project}"  # scripts/test-compose.sh removes what has it
    container = run(
        "docker", "run", "--detach", "--publish=127.0.0.1::8110", label, *options(service), *given, service["image"],
        timeout_s=60,
    ).strip()  # fmt: skip
    try:
        address = run("docker", "port", container, "8110", timeout_s=60).split()[0]
        took_s = until("env-os ready", lambda: answers(f"http://{address}/readyz"), START_S)
        report(f"os: ready {took_s:.1f} s after the start of its container")
        headers = [("Authorization", f"Bearer {path.read_text('ascii').strip()}") for path, _ in keys]
        with httpx.Client(base_url=f"http://{address}/v1", headers=headers, trust_env=False, timeout=60) as client:
            yield client
    finally:
        run("docker", "rm", "--force", container, timeout_s=60)


def open_session(server: httpx.Client, level: str) -> str:
    body = OpenSession(env="os", split="train", task_index=1, seed=1, level=level)
    answer = server.post("/sessions", json=body.model_dump(mode="json", exclude_none=True))
    assert answer.is_success, answer.text
    return str(answer.json()["session_id"])


def step(server: httpx.Client, session: str, index: int, action: str) -> dict[str, Any]:
    answer = server.post(f"/sessions/{session}/steps", json={"index": index, "action": action})
    assert answer.is_success, answer.text
    result: dict[str, Any] = answer.json()
    return result


@pytest.mark.parametrize("level", LEVELS)
def test_an_expert_solves_a_task_of_every_level(server: httpx.Client, level: str) -> None:
    session = open_session(server, level)
    result: dict[str, Any] = {"terminated": False}
    for index in range(8):
        move = server.get(f"/sessions/{session}/expert").json()
        result = step(server, session, index, move["action"])
        if result["terminated"]:
            break

    assert result["terminated"]
    assert result["score"] == 1.0


def test_a_session_changes_its_own_system_alone(server: httpx.Client) -> None:
    changed, unchanged = open_session(server, "count"), open_session(server, "count")
    look = "cat /usr/local/bin/hi /etc/app.conf; grep -c ^ann: /etc/passwd; ls -d /var/log /usr/bin/git"

    did = step(
        server, changed, 0,
        "bash useradd ann && echo 'echo hi' > /usr/local/bin/hi && chmod +x /usr/local/bin/hi && rm -r /var/log"
        " && echo a=1 > /etc/app.conf && hi && python3 -c 'print(6 * 7)' && grep -c ^ann: /etc/passwd",
    )  # fmt: skip

    assert did["observation"].split("\n")[-3:] == ["hi", "42", "1"]
    seen = step(server, unchanged, 0, f"bash {look}")["observation"]
    assert "a=1" not in seen
    assert seen.split()[-3:] == ["0", "/usr/bin/git", "/var/log"]


def test_a_loader_of_the_agents_does_not_speak_for_a_check(server: httpx.Client) -> None:
    session = open_session(server, "change")

    step(server, session, 0, f"bash mkdir /l; echo {LOADER} | base64 -d > /l/ld-linux-x86-64.so.2; chmod 755 /l/*; "
         "ln -sfn /l /lib64")  # fmt: skip

    assert step(server, session, 1, "finish")["score"] == 0.0
