"""The light part of overlays/dev-cpu, running; or the reason why it cannot be."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.k8s.cluster import Cluster, image_id
from tests.deploy.k8s_manifests import render, workloads

LIGHT: Final = {"redis": 1, "env-textcraft": 2, "env-maze": 1, "env-gateway": 2, "reward": 1}
"""Pods of each workload; what needs a model is left out."""


def missing() -> str:
    """What the tests lack on this machine; empty when nothing."""
    if os.geteuid() != 0:
        return "root, for podman's network"
    for program in ("podman", "docker"):
        if shutil.which(program) is None:
            return program
    if shutil.which("kubectl") is None and shutil.which("kustomize") is None:
        return "kubectl or kustomize"
    images = [image for image in sorted(images_needed()) if not image_id("docker", image)]
    return f"the images {', '.join(images)}: make them with scripts/images.sh" if images else ""


def images_needed() -> set[str]:
    return {container["image"] for item in workloads("dev-cpu") if item.name in LIGHT for container in item.containers}


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Every pod has been started; whether they are ready is for the first test to see."""
    if reason := missing():
        pytest.skip(f"NOT TESTED: this needs {reason}")
    directory: Path = tmp_path_factory.mktemp("k8s")
    for parent in (directory, *directory.parents):  # pods' users pass through
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    with Cluster(render("dev-cpu"), directory) as cluster:
        for workload in workloads("dev-cpu"):
            for _ in range(LIGHT.get(workload.name, 0)):
                cluster.play(workload)
        yield cluster
