#!/usr/bin/env bash
# What the gate runs: format, lint, types, the import table.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=${GYMFLEET_VENV:-.venv}/bin

"$BIN/ruff" format --check .
"$BIN/ruff" check .
"$BIN/mypy"
"$BIN/lint-imports"
