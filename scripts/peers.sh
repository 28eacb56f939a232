#!/usr/bin/env bash
# Make .venv-peers with other people's clients, pinned in requirements/peers.txt: OpenEnv's and the MCP client's 1.x line.
# They want other versions than gymfleet does, so they live apart. About 500 MB.
# Safe to run again: it does nothing when the environment is already current.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=${GYMFLEET_PEERS_VENV:-.venv-peers}
STAMP="$VENV/.gymfleet-peers-$(cat requirements/peers.txt scripts/peers.sh | sha256sum | cut -c1-16)"

[ -e "$STAMP" ] && exit 0
if [ -n "${GYMFLEET_PEERS_VENV:-}" ] && [ -x "$VENV/bin/openenv" ]; then
    exit 0 # one of the caller's own
fi

fail() { echo "peers: error: $*" >&2; exit 1; }
python=$(readlink -f "${GYMFLEET_VENV:-.venv}/bin/python" || true)
[ -x "$python" ] || fail "run 'make setup' first"
free_mib=$(df -Pm . | awk 'NR==2 {print $4}')
[ "$free_mib" -ge 1000 ] || fail "1 GB of free disk is needed here, ${free_mib} MB are left"

echo "peers: [$((SECONDS))s] installing into $VENV"
[ -x "$VENV/bin/python" ] || "$python" -m venv "$VENV"
"$VENV/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps --require-hashes \
    -r requirements/peers.txt
rm -f "$VENV"/.gymfleet-peers-*
touch "$STAMP"
echo "peers: [$((SECONDS))s] done"
