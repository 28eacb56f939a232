#!/usr/bin/env bash
# The whole test suite: fast tests on both cores first, then those that start engines and processes, one at a time.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=${GYMFLEET_VENV:-.venv}/bin
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

scripts/system.sh
echo "== fast tests"
"$BIN/python" -m pytest -q -n 2 tests/unit tests/contract "$@"
scripts/peers.sh
echo "== tests with real services, one at a time"
"$BIN/python" -m pytest -q tests/conformance tests/integration tests/chaos tests/deploy tests/e2e "$@"
