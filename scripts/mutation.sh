#!/usr/bin/env bash
# Mutate the sources, one small change at a time, and see whether a test notices. Hours for all of it; arguments go to
# tests/mutation/run.py, for example `--sample 40 --only losses`.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv-mutation
STAMP="$VENV/.gymfleet-$(cat requirements/mutation.txt scripts/mutation.sh | sha256sum | cut -c1-16)"
if [ ! -e "$STAMP" ]; then
    echo "mutation: installing into $VENV"
    "${GYMFLEET_VENV:-.venv}/bin/python" -m venv --clear "$VENV"
    "$VENV/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps --require-hashes \
        -r requirements/mutation.txt
    touch "$STAMP"
fi
exec "$VENV/bin/python" tests/mutation/run.py "$@"
