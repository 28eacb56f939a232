#!/usr/bin/env bash
# The test suite on both cores: unit tests, then those with real services, of which many wait. Arguments go to pytest,
# both times. Not among them: other people's clients (`make peers`), and what repeats more of the same
# (`make test-long`).
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=${GYMFLEET_VENV:-.venv}/bin
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

scripts/system.sh
echo "== unit tests"
"$BIN/python" -m pytest -q -n 2 -m "not long" tests/unit "$@"
echo "== tests with real services"
"$BIN/python" -m pytest -q -n 2 -m "not peers and not long" --dist loadfile --no-loadscope-reorder --durations=25 --durations-min=5 \
    --ignore tests/deploy/compose --ignore tests/deploy/k8s \
    tests/contract tests/conformance tests/integration tests/chaos tests/deploy tests/e2e "$@"
