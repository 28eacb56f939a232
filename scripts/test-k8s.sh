#!/usr/bin/env bash
# Play the light part of deploy/k8s/overlays/dev-cpu for real, from its own YAML, with podman: tests/deploy/k8s says how. Needs
# root, podman, kubectl or kustomize, and the images of scripts/images.sh in Docker; says so and ends well where they are not.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=${GYMFLEET_VENV:-.venv}/bin

lacking=$("$BIN/python" -c 'from tests.deploy.k8s.conftest import missing; print(missing())')
if [ -n "$lacking" ]; then
    echo "test-k8s: NOT TESTED: this needs $lacking"
    exit 0
fi

# From Docker to podman, what podman does not have yet.
for image in $("$BIN/python" -c 'from tests.deploy.k8s.conftest import images_needed; print(*sorted(images_needed()))'); do
    id=$(docker image inspect --format '{{.Id}}' "$image")
    [ "${id#sha256:}" = "$(podman image inspect --format '{{.Id}}' "localhost/$image" 2>/dev/null || true)" ] && continue
    echo "test-k8s: copying $image"
    docker save "$image" | podman load --quiet >/dev/null
done

"$BIN/python" -m pytest -q tests/deploy/k8s "$@"
