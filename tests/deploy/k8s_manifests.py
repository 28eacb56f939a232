"""What kustomize makes of deploy/k8s, and how Kubernetes would read it."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import pytest
import yaml

from tests.fixtures.paths import ROOT

K8S: Final = ROOT / "deploy" / "k8s"
OVERLAYS: Final = ("dev-cpu", "gpu", "prod", "sandbox")
FLEETS: Final = ("dev-cpu", "gpu", "prod")
"""The overlays that are a whole fleet; `sandbox` is laid beside one of them."""

Manifest = dict[str, Any]

KUSTOMIZE: Final = next(
    (command for command in (("kustomize", "build"), ("kubectl", "kustomize")) if shutil.which(command[0])), None
)
needs_kustomize: Final = pytest.mark.skipif(
    KUSTOMIZE is None, reason="NOT TESTED: deploy/k8s needs kubectl or kustomize on PATH"
)


@cache
def render(overlay: str) -> tuple[Manifest, ...]:
    """The manifests of an overlay, as `kubectl apply -k` would send them."""
    assert KUSTOMIZE is not None
    built = subprocess.run([*KUSTOMIZE, str(K8S / "overlays" / overlay)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return tuple(yaml.safe_load_all(built.stdout))


@cache
def secrets() -> dict[str, dict[str, str]]:
    """The Secrets that secrets.sh makes: by name, then key."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REDIS_")}
    made = subprocess.run([K8S / "secrets.sh"], env=environment, capture_output=True, text=True, check=True)
    return {item["metadata"]["name"]: item["stringData"] for item in yaml.safe_load_all(made.stdout) if item}


def of_kind(manifests: tuple[Manifest, ...], *kinds: str) -> list[Manifest]:
    """Those of the kinds, in order."""
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def named(manifests: tuple[Manifest, ...], kind: str, name: str) -> Manifest:
    """The only one of that kind and name."""
    (found,) = (manifest for manifest in of_kind(manifests, kind) if manifest["metadata"]["name"] == name)
    return found


@dataclass(frozen=True)
class Workload:
    """Pods that are all alike."""

    name: str
    kind: str
    namespace: str
    labels: Mapping[str, str]
    pod: Manifest
    """The template's `spec`."""

    @property
    def component(self) -> str:
        """What the pods are: env-gateway, environment, reward ..."""
        return self.labels["app.kubernetes.io/component"]

    @property
    def containers(self) -> list[Manifest]:
        """The init containers too."""
        return [*self.pod.get("initContainers", ()), *self.pod["containers"]]

    @property
    def ports(self) -> dict[str, int]:
        """Port numbers by name."""
        return {
            port["name"]: port["containerPort"] for container in self.containers for port in container.get("ports", ())
        }


def workloads(overlay: str) -> list[Workload]:
    """Every kind of pod of an overlay."""
    return [
        Workload(
            name, manifest["kind"], manifest["metadata"]["namespace"], template["metadata"]["labels"], template["spec"]
        )
        for manifest in render(overlay)
        for name, template in _templates(manifest)
    ]


def every_workload(*overlays: str) -> list[tuple[str, Workload]]:
    """All of the overlays, for tests over each; none where they cannot be rendered, and the tests are skipped."""
    return [(overlay, workload) for overlay in overlays if KUSTOMIZE for workload in workloads(overlay)]


def _templates(manifest: Manifest) -> Iterator[tuple[str, Manifest]]:
    name = manifest["metadata"]["name"]
    if manifest["kind"] in {"Deployment", "StatefulSet", "Job"}:
        yield name, manifest["spec"]["template"]
    elif manifest["kind"] == "RayJob":
        cluster = manifest["spec"]["rayClusterSpec"]
        yield f"{name}-head", cluster["headGroupSpec"]["template"]
        for group in cluster["workerGroupSpecs"]:
            yield f"{name}-{group['groupName']}", group["template"]
    else:
        assert "template" not in manifest.get("spec", {}), f"a kind with pods that the tests do not know: {name}"


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector (`matchLabels`, `matchExpressions`) selects what has the labels."""
    assert selector.keys() <= {"matchLabels", "matchExpressions"}, selector
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for expression in selector.get("matchExpressions", ()):
        assert expression["operator"] == "In", "the tests know no other operator"
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return True


def environment_of(container: Manifest, manifests: tuple[Manifest, ...]) -> dict[str, str]:
    """The container's variables: what its ConfigMaps say, then what is said in place."""
    variables: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        variables |= named(manifests, "ConfigMap", source["configMapRef"]["name"])["data"]
    return variables | {item["name"]: item["value"] for item in container.get("env", ())}


def arguments_of(container: Manifest, manifests: tuple[Manifest, ...]) -> list[str]:
    """Its arguments with `$(NAME)` replaced, as the kubelet does."""
    arguments = list(container.get("args", ()))
    for name, value in environment_of(container, manifests).items():
        arguments = [argument.replace(f"$({name})", value) for argument in arguments]
    return arguments


def mounted_secrets(workload: Workload) -> dict[str, str]:
    """What stands in its /run/secrets: the content of each file by its name."""
    files: dict[str, str] = {}
    for volume in workload.pod.get("volumes", ()):
        assert "secret" not in volume, "secrets are mounted through `projected`, one file each"
        for source in volume.get("projected", {}).get("sources", ()):
            secret = source["secret"]
            files |= {item["path"]: secrets()[secret["name"]][item["key"]] for item in secret["items"]}
    return files
