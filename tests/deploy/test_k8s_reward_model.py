"""components/reward-model, laid on the fleet with GPUs as docs/reward-models.md says."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any, Final

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from gymfleet_reward.models.tables import ServedTable
from gymfleet_reward.settings import RewardSettings

from tests.deploy.k8s_manifests import K8S, Workload, named, needs_kustomize, of_kind, render, workloads
from tests.deploy.test_k8s_network import EXPECTED, reachable
from tests.deploy.test_k8s_pods import _restricted
from tests.fixtures.paths import ROOT

pytestmark = needs_kustomize
PAGE: Final = ROOT / "docs" / "reward-models.md"


@cache
def written(directory: Path) -> str:
    """The overlay that the page shows, in a directory of its own; its path, as `render` takes it."""
    (block,) = [
        part.split("```")[0] for part in PAGE.read_text("utf-8").split("```yaml\n")[1:] if "Kustomization" in part
    ]
    (directory / "kustomization.yaml").write_text(block.replace("../../", f"{os.path.relpath(K8S, directory)}/"))
    return str(directory)


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("overlay"))


def workload(overlay: str, name: str) -> Workload:
    (found,) = (one for one in workloads(overlay) if one.name == name)
    return found


def environment(overlay: str, container: dict[str, Any]) -> dict[str, str]:
    """Its variables, those of ConfigMaps with their values."""
    found = {}
    for variable in container["env"]:
        reference = variable.get("valueFrom", {}).get("configMapKeyRef")
        given = (
            reference
            and next(
                item for item in of_kind(render(overlay), "ConfigMap") if item["metadata"]["name"] == reference["name"]
            )["data"][reference["key"]]
        )
        found[variable["name"]] = given or variable["value"]
    return found


@pytest.mark.parametrize("version", ["1.31", "1.34"])
def test_what_is_added_is_valid(overlay: str, version: str) -> None:
    before = {json.dumps(item, sort_keys=True) for item in render("gpu")}
    added = [item for item in render(overlay) if json.dumps(item, sort_keys=True) not in before]

    assert {(item["kind"], item["metadata"]["name"].split("-")[0]) for item in added} >= {("Deployment", "reward")}
    for item in added:
        kubernetes_validate.validate(item, version, strict=True)


def test_the_pod_is_restricted_as_all_are(overlay: str) -> None:
    server = workload(overlay, "reward-model")
    account = named(render(overlay), "ServiceAccount", "reward-model")

    assert _restricted(server) == []
    assert server.pod["enableServiceLinks"] is False
    assert (server.pod["automountServiceAccountToken"], account["automountServiceAccountToken"]) == (False, False)
    assert server.namespace == "gymfleet"
    (container,) = server.containers
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()


def test_the_reward_service_alone_reaches_it(overlay: str) -> None:
    assert reachable(overlay) - EXPECTED["gpu"] == {("reward", "reward-model", 8000)}
    assert reachable(overlay) >= EXPECTED["gpu"]


def test_the_services_table_names_the_server_and_its_model(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (container,) = workload(overlay, "reward").containers
    for name, value in environment(overlay, container).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GYMFLEET_REWARD_API_KEY", "x" * 64)
    (server,) = workload(overlay, "reward-model").containers
    variables = environment(overlay, server)

    (table,) = RewardSettings().models.values()

    assert isinstance(table, ServedTable)
    assert str(table.url) == "http://reward-model:8000/"
    assert named(render(overlay), "Service", "reward-model")["spec"]["ports"][0]["port"] == 8000
    assert f"--served-model-name={table.model}" in server["args"]
    assert variables["REWARD_MODEL"] == str(table.tokenizer)
    assert variables["REWARD_MODEL_MAX_LEN"] == str(table.max_tokens)
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in container["volumeMounts"]


def test_the_override_of_compose_names_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = [part.split("```")[0] for part in PAGE.read_text("utf-8").split("```yaml\n")[1:] if "services:" in part]
    given = yaml.safe_load(block)["services"]["reward"]["environment"]
    monkeypatch.setenv("GYMFLEET_REWARD_MODELS", given["GYMFLEET_REWARD_MODELS"])
    compose = yaml.safe_load((ROOT / "deploy" / "docker-compose.yml").read_text("utf-8"))["services"]["reward-model"]

    (table,) = RewardSettings().models.values()

    assert isinstance(table, ServedTable)
    assert str(table.url) == "http://reward-model:8000/"
    assert table.model == compose["command"][compose["command"].index("--served-model-name") + 1]
    assert f":-{table.tokenizer}}}" in compose["command"][compose["command"].index("--model") + 1]
    assert f":-{table.max_tokens}}}" in compose["command"][compose["command"].index("--max-model-len") + 1]
