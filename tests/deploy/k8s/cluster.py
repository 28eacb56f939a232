"""The manifests of an overlay, played by `podman kube play` on this machine.

Podman reads Pods, Deployments and ConfigMaps as they are. What it does not know is done for it, as Kubernetes would:

- a Service: each pod that it selects gets its name in the DNS of the pods' network;
- a volume of a ConfigMap or of Secrets: a directory laid out as the kubelet does, two links deep (podman's own volumes
  are readable by root alone);
- a StatefulSet's claim: a directory of the pod's group;
- probes: the caller asks them, with `Pod.probe`;
- container ports, which it would open on the host: pods are reached by their own addresses.

NetworkPolicies, autoscalers, disruption budgets, drains and Pod Security are not played.
"""

import copy
import os
import resource
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import httpx
import yaml

from tests.deploy.k8s_manifests import Manifest, Workload, mounted_secrets, named, of_kind, selects

PREFIX: Final = "gymfleet-test-k8s"
PAUSE: Final = f"localhost/{PREFIX}-pause:2"
_TIMEOUT_S: Final = 120.0


def run(*command: str, timeout_s: float = _TIMEOUT_S, **environment: str) -> str:
    """Standard output of a program. Raises `AssertionError` with what it said when it fails."""
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=timeout_s, env=os.environ | environment
    )
    assert done.returncode == 0, f"{command[:4]}: {done.stdout[-1000:]} {done.stderr[-3000:]}"
    return done.stdout.strip()


def image_id(program: str, image: str) -> str:
    """What `docker` or `podman` has under the name; empty when nothing."""
    command = [program, "image", "inspect", "--format", "{{.Id}}", image]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60).stdout.strip()


@dataclass
class Pod:
    """One that runs."""

    name: str
    workload: Workload
    address: str

    def url(self, port: str = "http") -> str:
        """Of a port, by its name."""
        return f"http://{self.address}:{self.workload.ports[port]}"

    def probe(self, kind: str) -> bool:
        """Ask the main container's `startupProbe`, `readinessProbe` or `livenessProbe` once."""
        probe = self.workload.pod["containers"][0][kind]
        if "exec" in probe:
            command = ["podman", "exec", f"{self.name}-{self.workload.pod['containers'][0]['name']}"]
            asked = subprocess.run([*command, *probe["exec"]["command"]], check=False, capture_output=True, timeout=30)
            return asked.returncode == 0
        action = probe["httpGet"]
        try:
            answer = httpx.get(
                self.url(action["port"]) + action["path"], timeout=probe["timeoutSeconds"], trust_env=False
            )
        except httpx.TransportError:
            return False
        return answer.is_success


@dataclass
class Cluster:
    """A network of pods. Use as a context manager: nothing of it stays."""

    manifests: tuple[Manifest, ...]
    directory: Path
    pods: list[Pod] = field(default_factory=list)

    def __enter__(self) -> Self:
        (self.directory / "containers.conf").write_text(_containers_conf())
        self.close()
        if not image_id("podman", PAUSE):
            _make_pause_image()
        self._podman("network", "create", PREFIX)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove pods and network, also those of an earlier process."""
        names = self._podman("pod", "ls", "--format", "{{.Name}}").split()
        if mine := [name for name in names if name.startswith(PREFIX)]:
            self._podman("pod", "rm", "--force", "--time", "2", *mine)
        self._podman("network", "rm", "--force", PREFIX)
        self.pods.clear()

    def play(self, workload: Workload) -> Pod:
        """Start one more pod of the workload."""
        number = sum(pod.workload is workload for pod in self.pods)
        name = f"{PREFIX}-{workload.name}-{number}"
        place = self.directory / name
        place.mkdir()
        file = place / "play.yaml"
        configs = of_kind(self.manifests, "ConfigMap")
        file.write_text(yaml.safe_dump_all([*configs, self._reduced(name, workload, place)]))
        services = [
            service["metadata"]["name"]
            for service in of_kind(self.manifests, "Service")
            if selects({"matchLabels": service["spec"]["selector"]}, workload.labels)
        ]
        network = ":".join([PREFIX, ",".join(f"alias={service}" for service in services)]).rstrip(":")
        self._podman("kube", "play", "--network", network, str(file))
        pod = Pod(f"{name}-pod-0", workload, self._address(f"{name}-pod-0"))
        self.pods.append(pod)
        return pod

    def kill(self, pod: Pod) -> None:
        """End all its processes with SIGKILL, and take it from the network."""
        self._podman("pod", "kill", pod.name)
        self._podman("pod", "rm", "--force", "--time", "0", pod.name)
        self.pods.remove(pod)

    def logs(self, pod: Pod) -> str:
        """What its containers printed."""
        return self._podman("pod", "logs", pod.name)

    def _reduced(self, name: str, workload: Workload, place: Path) -> Manifest:
        """The workload as a Deployment that podman understands."""
        spec = copy.deepcopy(workload.pod)
        group = spec["securityContext"]["fsGroup"]
        for container in spec["containers"]:
            for key in ("ports", "startupProbe", "readinessProbe", "livenessProbe"):
                container.pop(key, None)
        mounted = {mount["name"] for container in spec["containers"] for mount in container.get("volumeMounts", ())}
        volumes = spec.setdefault("volumes", [])
        volumes += [{"name": claim} for claim in sorted(mounted - {volume["name"] for volume in volumes})]
        for volume in volumes:
            path = place / volume["name"]
            if "projected" in volume:
                mode = volume.pop("projected")["defaultMode"]
                _write_volume(path, mounted_secrets(workload), mode=mode, group=group)
            elif "configMap" in volume:
                config = named(self.manifests, "ConfigMap", volume.pop("configMap")["name"])
                _write_volume(path, config["data"], mode=0o644, group=group)
            elif volume.keys() == {"name"}:
                path.mkdir()
                os.chown(path, -1, group)
                path.chmod(0o770)
            else:
                continue
            volume["hostPath"] = {"path": str(path), "type": "Directory"}
        labels = dict(workload.labels)
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "labels": labels},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
        }

    def _address(self, pod: str) -> str:
        infra = self._podman("pod", "inspect", "--format", "{{.InfraContainerID}}", pod)
        template = f'{{{{(index .NetworkSettings.Networks "{PREFIX}").IPAddress}}}}'
        return self._podman("container", "inspect", "--format", template, infra)

    def _podman(self, *arguments: str) -> str:
        return run("podman", *arguments, CONTAINERS_CONF=str(self.directory / "containers.conf"))


def _write_volume(path: Path, files: Mapping[str, str], *, mode: int, group: int) -> None:
    """Files as the kubelet lays them: NAME -> ..data/NAME, ..data -> the version."""
    version = path / "..2026_01_01_00_00_00.1"
    version.mkdir(parents=True)
    (path / "..data").symlink_to(version.name)
    for name, text in files.items():
        file = version / name
        file.write_text(text)
        os.chown(file, -1, group)
        file.chmod(mode)
        (path / name).symlink_to(Path("..data") / name)
    for directory in (path, version):
        directory.chmod(0o755)


def _containers_conf() -> str:
    """Podman asks for more than this process may give where it is itself in a container; and brings no pause image."""
    limits = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    most = {
        name: min(16_384, hard) if (hard := resource.getrlimit(kind)[1]) >= 0 else 16_384
        for name, kind in limits.items()
    }
    ulimits = ", ".join(f'"{name}={hard}:{hard}"' for name, hard in most.items())
    return f'[containers]\ndefault_ulimits = [{ulimits}]\n[engine]\ninfra_image = "{PAUSE}"\n'


def _make_pause_image() -> None:
    """What holds a pod's namespaces: any image that can sleep. Podman's own needs a program that may be missing."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "Containerfile"
        file.write_text('FROM localhost/gymfleet/reward:0.1.0\nENTRYPOINT ["sleep", "infinity"]\nCMD []\n')
        run("podman", "build", "--quiet", "--tag", PAUSE, "--file", str(file), scratch)
