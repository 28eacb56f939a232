"""Who can speak to whom, worked out from the policies as a network plugin would, against the list of who may."""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import pytest

from tests.deploy.k8s_manifests import FLEETS, Manifest, needs_kustomize, of_kind, render, selects, workloads

pytestmark = needs_kustomize

PROBED_PORTS: Final = (22, 53, 6379, 8000, 8080, 8110, 8200, 8202, 8203, 8204, 8212, 8265, 10001)
"""Every port that something of ours listens on, vLLM's included, and some that nothing does."""


@dataclass(frozen=True)
class Party:
    """Pods that are all alike, ours or somebody's."""

    name: str
    namespace: str
    labels: dict[str, str]
    namespace_labels: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    address: str | None = None
    """Of something outside the cluster."""


def party(name: str, namespace: str, pod: dict[str, str] | None = None, **labels: str) -> Party:
    marks = {key.replace("_", "-"): value for key, value in labels.items()}
    return Party(name, namespace, pod or {}, {"kubernetes.io/metadata.name": namespace, **marks})


OTHERS: Final = (
    party("agent", "agents", gymfleet_client="true"),
    party("stranger", "default"),
    party("dns", "kube-system", {"k8s-app": "kube-dns"}),
    party("keda", "keda", {"app": "keda-operator"}),
    party("prometheus", "monitoring", {"app.kubernetes.io/name": "prometheus"}),
    party("grafana", "monitoring", {"app.kubernetes.io/name": "grafana"}),
    party("kuberay", "kuberay", {"app.kubernetes.io/name": "kuberay-operator"}),
    # In a namespace that is not ours, with labels like ours.
    party("impostor", "default", {"app.kubernetes.io/component": "trainer"}),
    Party("external-redis", "", {}, address="10.20.30.40"),
    Party("internet", "", {}, address="203.0.113.7"),
)


def ours(overlay: str) -> list[Party]:
    return [
        Party(
            name=workload.name if workload.component != "environment" else "env",
            namespace=workload.namespace,
            labels=dict(workload.labels),
            namespace_labels={"kubernetes.io/metadata.name": workload.namespace},
            ports=workload.ports,
        )
        for workload in workloads(overlay)
    ]


def is_peer(peer: Manifest, other: Party, namespace: str) -> bool:
    """Whether a rule's `from` or `to` entry, of a policy in `namespace`, means the party."""
    assert peer.keys() <= {"podSelector", "namespaceSelector", "ipBlock"}, peer
    if "ipBlock" in peer:
        network, *others = map(ipaddress.ip_network, (peer["ipBlock"]["cidr"], *peer["ipBlock"].get("except", ())))
        address = None if other.address is None else ipaddress.ip_address(other.address)
        return address is not None and address in network and not any(address in one for one in others)
    if other.address is not None or not selects(peer.get("podSelector", {}), other.labels):
        return False
    if "namespaceSelector" in peer:
        return selects(peer["namespaceSelector"], other.namespace_labels)
    return other.namespace == namespace


def is_port(rule: Manifest, target: Party, port: int) -> bool:
    if "ports" not in rule:
        return True
    numbers = {item["port"] for item in rule["ports"]}
    return port in {target.ports.get(number) if isinstance(number, str) else number for number in numbers}


def allowed(policies: list[Manifest], source: Party, target: Party, port: int) -> bool:
    """Whether a connection passes the policies on both of its ends."""
    return _end(policies, "Egress", source, target, target, port) and _end(
        policies, "Ingress", target, source, target, port
    )


def _end(policies: list[Manifest], way: str, pod: Party, other: Party, target: Party, port: int) -> bool:
    own = [
        policy
        for policy in policies
        if policy["metadata"]["namespace"] == pod.namespace
        and way in policy["spec"]["policyTypes"]
        and selects(policy["spec"]["podSelector"], pod.labels)
    ]
    key, peers = ("egress", "to") if way == "Egress" else ("ingress", "from")
    return not own or any(
        any(is_peer(peer, other, pod.namespace) for peer in rule[peers]) and is_port(rule, target, port)
        for policy in own
        for rule in policy["spec"].get(key, ())
    )


def reachable(overlay: str) -> set[tuple[str, str, int]]:
    """Every connection that is allowed and has one of our pods at an end."""
    policies = of_kind(render(overlay) + render("sandbox"), "NetworkPolicy")
    own = ours(overlay) + [Party(**{**vars(one), "name": "env-os"}) for one in ours("sandbox")]

    def pairs() -> Iterator[tuple[Party, Party]]:
        yield from ((source, target) for source in own for target in (*own, *OTHERS))
        yield from ((source, target) for source in OTHERS for target in own)

    return {
        (source.name, target.name, port)
        for source, target in pairs()
        for port in PROBED_PORTS
        if allowed(policies, source, target, port)
    }


SERVICES: Final = ("env-gateway", "reward", "rollout")
FLEET: Final = {
    ("agent", "env-gateway", 8200),
    ("agent", "rollout", 8202),
    ("rollout", "env-gateway", 8200),
    ("rollout", "reward", 8203),
    ("env-gateway", "env", 8110),
    ("env-gateway", "env-os", 8110),
    ("prometheus", "env-os", 8110),
    *((service, "dns", 53) for service in SERVICES),
}
TRAINER: Final = {("trainer", "dns", 53), ("trainer", "env-gateway", 8200), ("trainer", "rollout", 8212)}
OWN_REDIS: Final = {(client, "redis", 6379) for client in (*SERVICES, "trainer", "keda")}
RAY: Final = {
    *((source, target, port) for source in ("trainer-head", "trainer-gpu") for target in ("trainer-head", "trainer-gpu")
      for port in PROBED_PORTS),
    ("trainer-gpu", "dns", 53),
    ("kuberay", "trainer-head", 8265),
}  # fmt: skip
SCRAPED: Final = {
    ("prometheus", "env", 8110), ("prometheus", "env-gateway", 8200), ("prometheus", "reward", 8203),
    ("prometheus", "rollout", 8202), ("prometheus", "trainer-head", 8204),
}  # fmt: skip
EXPECTED: Final = {
    "dev-cpu": FLEET | TRAINER | OWN_REDIS,
    "gpu": FLEET | TRAINER | OWN_REDIS,
    "prod": FLEET
    | {("trainer-head", target, port) for _, target, port in TRAINER}
    | {(client, "external-redis", 6379) for client in (*SERVICES, "trainer-head")}
    | RAY
    | SCRAPED,
}


@pytest.mark.parametrize("overlay", FLEETS)
def test_exactly_these_connections_are_allowed(overlay: str) -> None:
    assert reachable(overlay) == EXPECTED[overlay]


def test_the_control_port_is_the_trainers_alone() -> None:
    for overlay in FLEETS:
        callers = {source for source, target, port in reachable(overlay) if (target, port) == ("rollout", 8212)}
        assert callers == ({"trainer-head"} if overlay == "prod" else {"trainer"})


def test_nobody_reaches_vllm() -> None:
    for overlay in FLEETS:
        assert not {edge for edge in reachable(overlay) if edge[2] == 8000 and "rollout" in edge[1]}


@pytest.mark.parametrize("overlay", [*FLEETS, "sandbox"])
def test_every_policy_is_about_pods_that_exist(overlay: str) -> None:
    for policy in of_kind(render(overlay), "NetworkPolicy"):
        selector = policy["spec"]["podSelector"]
        assert any(selects(selector, item.labels) for item in workloads(overlay)), policy["metadata"]["name"]
        ports = {
            number
            for item in workloads(overlay)
            if selects(selector, item.labels)
            for number in (*item.ports, *item.ports.values())
        }
        for rule in policy["spec"].get("ingress", ()):
            assert {item["port"] for item in rule.get("ports", ())} <= ports, policy["metadata"]["name"]


@pytest.mark.parametrize("overlay", [*FLEETS, "sandbox"])
def test_what_no_policy_names_is_denied(overlay: str) -> None:
    for namespace in {item.namespace for item in workloads(overlay)}:
        (deny,) = (
            item
            for item in of_kind(render(overlay), "NetworkPolicy")
            if item["metadata"] == {**item["metadata"], "name": "default-deny", "namespace": namespace}
        )
        assert deny["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
