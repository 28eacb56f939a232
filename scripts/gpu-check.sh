#!/usr/bin/env bash
# See on a GPU what no machine without one can show: install gymfleet and vLLM from a directory of wheels, beside the
# torch that is there, run the checks of benchmarks/gpu_check.py, and write what was found to one JSON file.
#
#   scripts/gpu-check.sh WHEELS [OUT.json]     wheels of vllm and of requirements/lock.txt, for this Python
#   scripts/gpu-check.sh --smoke [OUT.json]    the same checks with tiny models on the CPU, in the project's environment
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
OUT=${2:-gpu-check.json}
if [ "$1" = --smoke ]; then
    exec "${GYMFLEET_VENV:-.venv}/bin/python" -m benchmarks.gpu_check --smoke --out "$OUT"
fi
[ -d "$1" ] || { echo "error: $1 is not a directory of wheels" >&2; exit 2; }
VENV=$(mktemp -d)/venv
trap 'rm -rf "$(dirname "$VENV")"' EXIT
python3 -m venv --system-site-packages "$VENV"
# What the machine has, torch before all, stays: the rest comes from the directory alone.
"$VENV/bin/pip" install --quiet --no-index --find-links "$1" vllm
"$VENV/bin/pip" install --quiet --no-index --find-links "$1" --no-build-isolation --editable ".[all]" ||
    "$VENV/bin/pip" install --quiet --no-index --find-links "$1" --editable ".[all]"
"$VENV/bin/python" -m benchmarks.gpu_check --out "$OUT"
