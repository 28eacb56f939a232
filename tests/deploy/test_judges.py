"""What compose and Kubernetes add for a judge, and that it is nothing more."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from gymfleet_reward.judging.settings import JudgeSettings
from pydantic import TypeAdapter

from tests.deploy.k8s_manifests import K8S, KUSTOMIZE, Manifest, named, needs_kustomize, of_kind, render
from tests.deploy.test_compose_file import OS_SECCOMP
from tests.deploy.test_k8s_network import OTHERS, allowed, ours
from tests.fixtures.paths import ROOT

COMPOSE: Final = (ROOT / "deploy/docker-compose.yml", ROOT / "deploy/compose/judge.yml")
JUDGES: Final = TypeAdapter(dict[str, JudgeSettings])


def composed(key_file: Path, judges: str | None, *files: Path) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GYMFLEET_", "COMPOSE_"))}
    environment |= {
        "COMPOSE_PROFILES": "reward",
        "GYMFLEET_JUDGE_KEY": str(key_file),
        "GYMFLEET_OS_SECCOMP": OS_SECCOMP,
    }
    environment |= {} if judges is None else {"GYMFLEET_REWARD_JUDGES": judges}
    named_files = [argument for file in files for argument in ("-f", str(file))]
    return subprocess.run(
        ["docker-compose", *named_files, "config"], check=False, capture_output=True, text=True, timeout=120,
        env=environment,
    )  # fmt: skip


def given(document: dict[str, Any]) -> dict[str, Any]:
    """What each service but the reward's gets."""
    return {
        name: (set(one["networks"]), one.get("environment"), {secret["target"] for secret in one.get("secrets", [])})
        for name, one in document["services"].items() if name != "reward"
    }  # fmt: skip


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not here")
def test_compose_gives_the_reward_service_its_judges_and_a_way_out(tmp_path: Path) -> None:
    key, judges = tmp_path / "judge.key", '{"large": {"url": "https://models.example.com/v1", "model": "large $$1"}}'
    key.write_text("sk-the-key")

    before, after = (yaml.safe_load(composed(key, judges, *COMPOSE[:count]).stdout) for count in (1, 2))
    without = composed(key, None, *COMPOSE)

    reward = after["services"]["reward"]
    (model,) = (judge.model for judge in JUDGES.validate_json(reward["environment"]["GYMFLEET_REWARD_JUDGES"]).values())
    assert model.startswith("large")
    assert set(reward["networks"]) - set(before["services"]["reward"]["networks"]) == {"outside"}
    assert not (after["networks"]["outside"] or {}).get("internal", False)
    assert "judge_key" in {secret["target"] for secret in reward["secrets"]}
    assert after["secrets"]["judge_key"]["file"] == str(key)
    assert given(after) == given(before), "to the others"
    assert without.returncode != 0
    assert "GYMFLEET_REWARD_JUDGES" in without.stderr
    assert "sk-the-key" not in json.dumps(after)


@pytest.fixture(scope="module")
def with_judge(tmp_path_factory: pytest.TempPathFactory) -> tuple[Manifest, ...]:
    """The smallest fleet with the component."""
    tree = tmp_path_factory.mktemp("tree")
    for part in ("deploy", "recipes"):
        shutil.copytree(ROOT / part, tree / part)
    file = tree / "deploy/k8s/overlays/dev-cpu/kustomization.yaml"
    file.write_text(_with_component(yaml.safe_load(file.read_text("utf-8"))), encoding="utf-8")
    assert KUSTOMIZE is not None
    built = subprocess.run([*KUSTOMIZE, str(file.parent)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return tuple(yaml.safe_load_all(built.stdout))


def _with_component(kustomization: dict[str, Any]) -> str:
    components = [*kustomization.get("components", ()), "../../components/judge"]
    return yaml.safe_dump({**kustomization, "components": components})


@needs_kustomize
def test_kubernetes_adds_a_judge_to_the_reward_service_alone(with_judge: tuple[Manifest, ...]) -> None:
    assert (K8S / "components/judge").is_dir()
    plain = {(one["kind"], one["metadata"]["name"]): one for one in render("dev-cpu")}
    found = {(one["kind"], one["metadata"]["name"]): one for one in with_judge}

    ((_, config),) = {key for key in found.keys() - plain.keys() if key[0] == "ConfigMap"}
    assert found.keys() - plain.keys() == {("ConfigMap", config), ("NetworkPolicy", "judge")}
    assert plain.keys() <= found.keys()
    assert {key for key in plain if plain[key] != found[key]} == {("Deployment", "reward")}
    pod = named(with_judge, "Deployment", "reward")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (variable,) = (one for one in container["env"] if one["name"] == "GYMFLEET_REWARD_JUDGES")
    source = variable["valueFrom"]["configMapKeyRef"]
    judges = JUDGES.validate_json(found["ConfigMap", source["name"]]["data"][source["key"]])
    (mount,) = (one for one in container["volumeMounts"] if one["name"] == "judge")
    assert {judge.key_file for judge in judges.values()} == {Path(mount["mountPath"]) / "api-key"}
    assert mount["readOnly"] is True
    assert next(one for one in pod["volumes"] if one["name"] == "judge")["secret"]["secretName"] == "judge"


@needs_kustomize
def test_the_reward_service_alone_gets_out_and_only_to_its_judge(with_judge: tuple[Manifest, ...]) -> None:
    policies = of_kind(with_judge, "NetworkPolicy")
    targets = {one.name: one for one in OTHERS}

    def out(target: str, port: int) -> set[str]:
        return {one.name for one in ours("dev-cpu") if allowed(policies, one, targets[target], port)}

    assert out("internet", 443) == {"reward"}
    assert out("internet", 80) == out("external-redis", 443) == out("stranger", 443) == set()
    assert out("dns", 53) >= {"reward"}
