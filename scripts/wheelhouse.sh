#!/usr/bin/env bash
# Fill a directory with everything that the CPU and the light images install from a package index: for a build without
# one, as in GYMFLEET_WHEELS=DIR scripts/images.sh. Run it where there is an index, with the Python of the images (3.11).
#
#   TORCH_CPU_INDEX=URL scripts/wheelhouse.sh DIR    (the URL of PyTorch's index of builds for CPUs)
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 1 ] || { echo "usage: scripts/wheelhouse.sh DIR" >&2; exit 2; }

argument() { sed -n "s/^ARG $1=//p" deploy/docker/gymfleet.Dockerfile; }
pip() { "${GYMFLEET_VENV:-.venv}/bin/python" -m pip --disable-pip-version-check "$@"; }

mkdir -p "$1"
# Nothing is resolved: the lock is complete. What has no wheel comes as its source and is compiled in the build. torch has no
# hash: its builds for CPUs differ from index to index.
pip download --no-deps --dest "$1" ${TORCH_CPU_INDEX:+--extra-index-url "$TORCH_CPU_INDEX"} "torch==$(argument TORCH)"
pip download --no-deps --dest "$1" --require-hashes --requirement requirements/engine.txt \
    --requirement requirements/lock.txt --requirement requirements/images.txt
pip download --no-deps --dest "$1" --require-hashes --requirement requirements/build.txt
du -sh "$1"
