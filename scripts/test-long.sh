#!/usr/bin/env bash
# What `make test` leaves out: the same paths in more settings and at more length, and the services' documents fuzzed
# with more examples. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=${GYMFLEET_VENV:-.venv}/bin
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

scripts/system.sh
"$BIN/python" -m pytest -q -n 2 -m "long and not peers" --dist loadfile --durations=25 --durations-min=5 tests "$@"
GYMFLEET_FUZZ_EXAMPLES=8 "$BIN/python" -m pytest -q tests/contract/test_openapi_fuzz.py
