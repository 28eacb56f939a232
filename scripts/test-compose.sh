#!/usr/bin/env bash
# The compose stack for real: images built, containers started, killed and measured (tests/deploy/compose), and os in containers of
# its own. Arguments go to pytest, for the former alone.
#
# Uses the Docker Engine that answers. Without one, root on Debian gets one for the time of the tests: docker.io is
# installed where apt can, and a dockerd with its data under a temporary directory is started and stopped. Where that
# cannot be, one line says so and the exit code is 0.
#
# What scripts/images.sh reads (GYMFLEET_WHEELS, PIP_CONFIG, CA_BUNDLE, DOCKER_NETWORK, BASE_IMAGE) reaches it.
#   GYMFLEET_TEST_COMPOSE     the compose program: "docker compose" or "docker-compose"
#   GYMFLEET_TEST_OVERRIDES   compose files that are merged over deploy/docker-compose.yml, separated by spaces
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=${GYMFLEET_VENV:-.venv}/bin
IMAGES=(env-textcraft env-maze env-wordle env-babyai env-os env-gateway reward rollout inference-cpu trainer-cpu os-sandbox)

say() { echo "test-compose: [${SECONDS}s] $*"; }
skip() { echo "test-compose: SKIPPED, the compose stack was NOT tested: $*"; exit 0; }
engine() { docker info >/dev/null 2>&1; }

work=$(mktemp -d)
engine_pid=""
export GYMFLEET_TEST_PROJECT="gymfleet-test-$$"

cleanup() {
    trap - EXIT INT TERM
    set +e
    # pytest takes its stack down itself; this is for when it was not let.
    local ours="label=com.docker.compose.project=$GYMFLEET_TEST_PROJECT"
    {
        docker ps --all --quiet --filter "$ours" | xargs --no-run-if-empty docker rm --force
        docker volume ls --quiet --filter "$ours" | xargs --no-run-if-empty docker volume rm --force
        docker network ls --quiet --filter "$ours" | xargs --no-run-if-empty docker network rm
    } >/dev/null 2>&1
    [ -z "$engine_pid" ] || { kill "$engine_pid" && wait "$engine_pid"; } 2>/dev/null
    umount "$work"/exec/netns/* 2>/dev/null  # a dockerd leaves its own namespace mounted
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

apt_install() {
    command -v apt-get >/dev/null || return 1
    say "installing $*"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } \
        >"$work/apt.log" 2>&1
}

start_engine() {
    [ "$(id -u)" = 0 ] || skip "no Docker Engine answers, and starting one needs root"
    command -v dockerd >/dev/null || apt_install docker.io iptables || skip "no Docker Engine here, and apt cannot install one"
    say "starting a Docker Engine of its own under $work"
    export DOCKER_HOST="unix://$work/docker.sock"
    dockerd --host "$DOCKER_HOST" --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/pid" \
        >"$work/dockerd.log" 2>&1 &
    engine_pid=$!
    for _ in $(seq 150); do
        engine && return
        kill -0 "$engine_pid" 2>/dev/null || break
        sleep 0.2
    done
    tail -n 5 "$work/dockerd.log" >&2
    skip "a Docker Engine cannot be started here (above is what it said)"
}

[ "$(id -u)" = 0 ] || skip "it kills containers' processes from outside, which needs root"
free_gb=$(df -P --block-size=1G "$work" | awk 'NR==2 {print $4}')
[ "$free_gb" -ge 30 ] || skip "images and their building need 30 GB of disk, ${free_gb} GB are left"
engine || start_engine
docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null || apt_install docker-compose \
    || skip "neither 'docker compose' nor docker-compose is here, and apt cannot install it"

if ! docker image inspect debian:12-slim redis:7.2-bookworm >/dev/null 2>&1; then
    # A registry is quicker where there is one.
    { timeout 60 docker pull --quiet debian:12-slim && timeout 60 docker pull --quiet redis:7.2-bookworm; } >/dev/null 2>&1 || {
        command -v debootstrap >/dev/null || apt_install debootstrap || skip "debootstrap is missing and there is no registry"
        DOCKER_NETWORK=${DOCKER_NETWORK:-host} scripts/base-image.sh
    }
fi
# An engine may answer and yet be unable to start containers, as inside some containers and virtual machines.
docker run --rm debian:12-slim true 2>"$work/run.log" || {
    tail -n 5 "$work/run.log" >&2
    skip "the Docker Engine cannot run a container (above is what it said)"
}
# Builds see no directories of this machine, and often no index: they get the wheels that its own pip finds.
if [ -z "${GYMFLEET_WHEELS:-}" ]; then
    say "collecting wheels"
    scripts/wheelhouse.sh "$work/wheels" >"$work/wheels.log" 2>&1 || { tail -n 5 "$work/wheels.log" >&2; exit 1; }
    export GYMFLEET_WHEELS="$work/wheels"
fi
say "building images"
DOCKER_NETWORK=${DOCKER_NETWORK:-host} scripts/images.sh "${IMAGES[@]}"
say "testing"
"$BIN/python" -m pytest -q -s -p no:cacheprovider tests/deploy/compose "$@"
# What `make test` skips for want of an engine: the os environment's Docker backend.
[ $# -gt 0 ] || "$BIN/python" -m pytest -q -n 2 --dist loadfile -p no:cacheprovider tests/integration/test_os_docker_*.py
say "done"
