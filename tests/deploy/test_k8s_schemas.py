"""Every manifest is what Kubernetes 1.31 to 1.34 allow, misspelt fields included; so are the objects of other APIs."""

import json
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Final

import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from tests.deploy.k8s_manifests import OVERLAYS, Manifest, needs_kustomize, render

pytestmark = needs_kustomize

VERSIONS: Final = ("1.31", "1.32", "1.33", "1.34")


def _keys(found: Manifest, *, needed: set[str], allowed: set[str] | None = None) -> None:
    assert needed <= found.keys() <= needed | (allowed or set()), sorted(found)


def _scaled_object(spec: Manifest) -> None:
    """KEDA: https://keda.sh/docs/2.17/reference/scaledobject-spec."""
    _keys(spec, needed={"scaleTargetRef", "triggers", "minReplicaCount", "maxReplicaCount"}, allowed={"advanced"})
    _keys(spec["scaleTargetRef"], needed={"name"})
    assert 0 < spec["minReplicaCount"] < spec["maxReplicaCount"]
    (trigger,) = spec["triggers"]
    metadata = trigger["metadata"]
    assert all(isinstance(value, str) for value in metadata.values()), "KEDA's metadata are strings"
    if trigger["type"] == "prometheus":
        _keys(trigger, needed={"type", "metadata"})
        _keys(metadata, needed={"serverAddress", "query", "threshold"})
    else:
        assert trigger["type"] == "redis-streams"
        _keys(trigger, needed={"type", "metadata", "authenticationRef"})
        # (With `consumerGroup` too, KEDA would ignore `streamLength` and aim at five pending entries.)
        _keys(metadata, needed={"address", "stream", "streamLength"})
    if "advanced" in spec:
        (behaviour,) = spec["advanced"]["horizontalPodAutoscalerConfig"].values()
        hpa = {
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "made-by-keda"},
            "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "any"}, "maxReplicas": 1, "behavior": behaviour},
        }  # fmt: skip
        _valid(hpa)


def _trigger_authentication(spec: Manifest) -> None:
    for reference in spec["secretTargetRef"]:
        _keys(reference, needed={"parameter", "name", "key"})
        assert reference["parameter"] in {"password", "tls"}, "what the scaler of Redis reads"


def _pod_monitor(spec: Manifest) -> None:
    _keys(spec, needed={"selector", "podMetricsEndpoints", "namespaceSelector"})
    for endpoint in spec["podMetricsEndpoints"]:
        _keys(endpoint, needed={"port", "interval", "relabelings"})
        for relabeling in endpoint["relabelings"]:
            _keys(relabeling, needed={"sourceLabels", "targetLabel"}, allowed={"regex", "replacement"})


def _prometheus_rule(spec: Manifest) -> None:
    _keys(spec, needed={"groups"})
    for group in spec["groups"]:
        _keys(group, needed={"name", "rules"}, allowed={"interval"})
        for rule in group["rules"]:
            allowed = {"for", "labels", "annotations", "keep_firing_for"}
            _keys(rule, needed={"expr", "alert" if "alert" in rule else "record"}, allowed=allowed)


def _ray_job(spec: Manifest) -> None:
    _keys(
        spec,
        needed={"entrypoint", "submissionMode", "rayClusterSpec", "shutdownAfterJobFinishes"},
        allowed={"backoffLimit", "ttlSecondsAfterFinished"},
    )
    cluster = spec["rayClusterSpec"]
    _keys(cluster, needed={"rayVersion", "headGroupSpec", "workerGroupSpecs"}, allowed={"authOptions"})
    _keys(cluster["headGroupSpec"], needed={"rayStartParams", "template"})
    for group in cluster["workerGroupSpecs"]:
        _keys(group, needed={"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"})
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values()), "ray's parameters are strings"
        _valid({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "ray"}, "template": group["template"]})


CUSTOM: Final[dict[tuple[str, str], Callable[[Manifest], None]]] = {
    ("keda.sh/v1alpha1", "ScaledObject"): _scaled_object,
    ("keda.sh/v1alpha1", "TriggerAuthentication"): _trigger_authentication,
    ("monitoring.coreos.com/v1", "PodMonitor"): _pod_monitor,
    ("monitoring.coreos.com/v1", "PrometheusRule"): _prometheus_rule,
    ("ray.io/v1", "RayJob"): _ray_job,
}


@pytest.fixture(scope="module", autouse=True)
def _schemas_are_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:  # megabytes, else read again for every manifest
        patch.setattr(
            kubernetes_validate.utils, "schema_contents", lru_cache(kubernetes_validate.utils.schema_contents)
        )
        yield


def _valid(manifest: Manifest) -> None:
    _valid_text(json.dumps(manifest))


@cache
def _valid_text(manifest: str) -> None:
    """By its text: overlays have most of their manifests in common."""
    for version in VERSIONS:
        assert kubernetes_validate.validate(json.loads(manifest), version, strict=True) == version


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_manifests_are_valid_under_every_version(overlay: str) -> None:
    for manifest in render(overlay):
        check = CUSTOM.get((manifest["apiVersion"], manifest["kind"]))
        if check is None:
            _valid(manifest)
        else:
            check(manifest["spec"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_names_are_given_once(overlay: str) -> None:
    names = [(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in render(overlay)]

    assert len(names) == len(set(names))


def test_small_clusters_need_no_operator() -> None:
    for overlay in ("dev-cpu", "gpu", "sandbox"):
        assert not [item for item in render(overlay) if (item["apiVersion"], item["kind"]) in CUSTOM]


def test_a_misspelt_field_would_be_found() -> None:
    (deployment,) = (item for item in render("sandbox") if item["kind"] == "Deployment")
    wrong = deployment | {"spec": deployment["spec"] | {"replica": 2}}

    with pytest.raises(kubernetes_validate.ValidationError):
        _valid(wrong)
