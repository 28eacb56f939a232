"""What names something else names something that exists: autoscalers, budgets, alerts, dashboards, generated files."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Final

import pytest
import yaml
from gymfleet_contracts.streams import ROLLOUT_REQUESTS, TRAJECTORIES_RAW

from tests.deploy.k8s_manifests import (
    FLEETS,
    K8S,
    OVERLAYS,
    Manifest,
    named,
    needs_kustomize,
    of_kind,
    render,
    secrets,
    selects,
    workloads,
)
from tests.fixtures.families import members
from tests.fixtures.paths import ROOT

pytestmark = needs_kustomize

MONITORING: Final = ROOT / "deploy" / "monitoring"


def scaled(overlay: str) -> dict[str, Manifest]:
    """What scales each Deployment: a HorizontalPodAutoscaler, or KEDA, which makes one."""
    found = {}
    for scaler in of_kind(render(overlay), "HorizontalPodAutoscaler", "ScaledObject"):
        target = scaler["spec"]["scaleTargetRef"]["name"]
        assert target not in found, "two would fight over the number"
        found[target] = scaler
    return found


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_is_scaled_exists_and_leaves_its_number_to_the_scaler(overlay: str) -> None:
    for target, scaler in scaled(overlay).items():
        deployment = named(render(overlay), "Deployment", target)
        assert "replicas" not in deployment["spec"], "else every apply would set the number back"
        assert deployment["metadata"]["namespace"] == scaler["metadata"]["namespace"]


def test_the_overlays_scale_what_they_say() -> None:
    deployments = {item["metadata"]["name"] for item in of_kind(render("prod"), "Deployment")}

    assert scaled("dev-cpu") == {}
    assert scaled("gpu").keys() == {"env-gateway"}
    assert scaled("prod").keys() == deployments


def test_keda_measures_our_streams_with_the_password_of_redis() -> None:
    manifests = render("prod")
    authentication = named(manifests, "TriggerAuthentication", "redis")
    given = {one["parameter"]: secrets()[one["name"]][one["key"]] for one in authentication["spec"]["secretTargetRef"]}
    assert given == {"password": secrets()["redis"]["password"], "tls": "disable"}

    streams = {}
    for name in ("rollout", "reward"):
        (trigger,) = named(manifests, "ScaledObject", name)["spec"]["triggers"]
        streams[name] = trigger["metadata"]["stream"]
        assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]

    assert streams == {"rollout": ROLLOUT_REQUESTS, "reward": TRAJECTORIES_RAW}


def test_keda_encrypts_where_the_url_of_redis_says_so() -> None:
    environment = {**os.environ, "REDIS_PASSWORD": "p", "REDIS_URL": "rediss://:p@redis.example.com:6379/0"}
    made = subprocess.run([K8S / "secrets.sh"], env=environment, capture_output=True, text=True, check=True)

    (redis,) = (item for item in yaml.safe_load_all(made.stdout) if item and item["metadata"]["name"] == "redis")
    assert (redis["stringData"]["url"], redis["stringData"]["tls"]) == (environment["REDIS_URL"], "enable")


def test_keda_measures_each_environments_own_sessions() -> None:
    for workload in workloads("prod"):
        if workload.component == "environment":
            (trigger,) = named(render("prod"), "ScaledObject", workload.name)["spec"]["triggers"]
            name = workload.labels["app.kubernetes.io/instance"]
            of = f'="{name}"' if members(name) == [name] else f'=~"{"|".join(members(name))}"'
            assert trigger["metadata"]["query"] == f"sum(gymfleet_env_sessions{{env{of}}})"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_deployment_has_a_budget_of_its_own(overlay: str) -> None:
    budgets = of_kind(render(overlay), "PodDisruptionBudget")
    covered = [
        workload.name
        for budget in budgets
        for workload in workloads(overlay)
        if selects(budget["spec"]["selector"], workload.labels)
    ]

    assert sorted(covered) == sorted(item["metadata"]["name"] for item in of_kind(render(overlay), "Deployment"))
    assert all(budget["spec"]["maxUnavailable"] == 1 for budget in budgets)


def test_prometheus_finds_every_pod_that_has_figures() -> None:
    (monitor,) = of_kind(render("prod"), "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    found = {
        workload.name
        for overlay in ("prod", "sandbox")
        for workload in workloads(overlay)
        if selects(monitor["spec"]["selector"], workload.labels)
        and workload.namespace in monitor["spec"]["namespaceSelector"]["matchNames"]
        and endpoint["port"] in workload.ports
    }

    assert found == {item.name for overlay in ("prod", "sandbox") for item in workloads(overlay)} - {"trainer-gpu"}


def test_jobs_have_the_names_that_the_alerts_ask_for() -> None:
    (monitor,) = of_kind(render("prod"), "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    whole, environment = endpoint["relabelings"]
    assert whole["sourceLabels"] == ["__meta_kubernetes_pod_label_app_kubernetes_io_component"]
    asked = re.search(r'up\{job=~"([^"]+)"\}', (MONITORING / "alerts.yml").read_text())
    assert asked is not None

    for workload in workloads("prod"):
        job = workload.component
        instance = workload.labels.get("app.kubernetes.io/instance", "")
        if match := re.fullmatch(environment["regex"], f"{job};{instance}"):
            job = match.expand(environment["replacement"].replace("$", "\\"))
            assert job.replace("_", "-") == workload.name
        if workload.name != "trainer-gpu":
            assert re.fullmatch(asked[1], job), job


def test_the_rules_are_those_of_the_alerts_file(tmp_path: Path) -> None:
    (rule,) = of_kind(render("prod"), "PrometheusRule")

    assert rule["spec"] == yaml.safe_load((MONITORING / "alerts.yml").read_text()), (
        "out of date: run deploy/k8s/components/monitoring/rules.sh"
    )


def test_rules_sh_makes_the_file_that_is_checked_in(tmp_path: Path) -> None:
    place = tmp_path / "deploy" / "k8s" / "components" / "monitoring"
    place.mkdir(parents=True)
    (tmp_path / "deploy" / "monitoring").mkdir()
    (tmp_path / "deploy" / "monitoring" / "alerts.yml").write_text((MONITORING / "alerts.yml").read_text())
    script = K8S / "components" / "monitoring" / "rules.sh"
    (place / "rules.sh").write_text(script.read_text())

    subprocess.run(["bash", place / "rules.sh"], check=True)

    assert (place / "rules.yaml").read_text() == script.with_name("rules.yaml").read_text()


def test_every_dashboard_is_there() -> None:
    (dashboards,) = (
        item
        for item in of_kind(render("prod"), "ConfigMap")
        if item["metadata"].get("labels", {}).get("grafana_dashboard")
    )
    files = {path.name: json.loads(path.read_text()) for path in (MONITORING / "dashboards").glob("*.json")}

    assert {name: json.loads(text) for name, text in dashboards["data"].items()} == files
    assert files


@pytest.mark.parametrize("overlay", FLEETS)
def test_generated_names_change_with_their_content(overlay: str) -> None:
    for config in of_kind(render(overlay), "ConfigMap"):
        name = config["metadata"]["name"]
        assert re.fullmatch(r"(dashboards|(env-gateway|recipes|redis|run)-[a-z0-9]{10})", name)


def test_an_environments_directory_says_its_name_everywhere() -> None:
    places = [path for path in (K8S / "base" / "environments").iterdir() if path.is_dir() and path.name != "template"]
    for place in places:
        said = yaml.safe_load((place / "kustomization.yaml").read_text())
        name = place.name.replace("-", "_")  # the names of objects have no underscore
        assert said["nameSuffix"] == f"-{place.name}"
        assert said["labels"] == [{"pairs": {"app.kubernetes.io/instance": name}, "includeSelectors": True}]
        assert said["images"] == [{"name": "gymfleet/env", "newName": f"gymfleet/env-{name}"}]
