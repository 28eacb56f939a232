#!/usr/bin/env bash
# Build gymfleet's images and show their sizes.
#
#   scripts/images.sh [NAME...]    names: env-textcraft ... env-gateway reward rollout inference-cpu trainer-cuda os-sandbox
#                                  groups: light (default), cpu (inference-cpu, trainer-cpu), cuda, all (light, cpu, os-sandbox)
#
# Where the default package index and a registry are at hand, none of these is needed but for the CPU images:
#   GYMFLEET_REGISTRY   prefix of the images' names, as in registry.example.org/team
#   BASE_IMAGE          instead of debian:12-slim
#   GYMFLEET_WHEELS     directory with every wheel (scripts/wheelhouse.sh makes it); then no package index is asked
#   PIP_CONFIG          a pip.conf for the builds: index, proxy. It is mounted as a secret and stays out of the images
#   CA_BUNDLE           certificates for the builds, PEM; mounted likewise
#   TORCH_CPU_INDEX     URL of PyTorch's index of builds for CPUs: the CPU images need it, or GYMFLEET_WHEELS
#   DOCKER_NETWORK      network of the builds, as in `host`
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "images: error: $*" >&2; exit 1; }

# Environments of one family (a line of families.txt) share an image that is called as the family.
environments() { find environments/gymfleet_envs -mindepth 2 -maxdepth 2 -name environment.py -printf '%P\n' | cut -d/ -f1 | awk 'NR == FNR { for (i = 2; i <= NF; i++) family[$i] = $1; next } { print ($1 in family) ? family[$1] : $1 }' environments/gymfleet_envs/families.txt - | LC_ALL=C sort -u; }

version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
prefix=${GYMFLEET_REGISTRY:+${GYMFLEET_REGISTRY%/}/}gymfleet
light=($(environments | sed 's/^/env-/') env-gateway reward rollout)
cpu=(inference-cpu trainer-cpu)
cuda=(inference-cuda trainer-cuda)

wanted=()
for name in "${@:-light}"; do
    case "$name" in
        light) wanted+=("${light[@]}") ;;
        cpu) wanted+=("${cpu[@]}") ;;
        cuda) wanted+=("${cuda[@]}") ;;
        all) wanted+=("${light[@]}" "${cpu[@]}" os-sandbox) ;;
        *) [[ " ${light[*]} ${cpu[*]} ${cuda[*]} os-sandbox " == *" $name "* ]] || fail "there is no image $name"
           wanted+=("$name") ;;
    esac
done

# A client that speaks BuildKit: with the buildx plugin, or of the versions that could do it by themselves.
client() {
    local program version
    for program in $(type -ap docker); do
        version=$("$program" version --format '{{.Client.Version}}' 2>/dev/null) || continue
        if "$program" buildx version >/dev/null 2>&1 || [ "${version%%.*}" -lt 23 ]; then echo "$program"; return; fi
    done
    fail "BuildKit is needed: install Docker's buildx plugin (Debian: docker-buildx, or docker.io alone on Debian 12)"
}
docker=$(client)
export DOCKER_BUILDKIT=1
common=(--quiet)
[ -z "${DOCKER_NETWORK:-}" ] || common+=(--network "$DOCKER_NETWORK")
[ -z "${BASE_IMAGE:-}" ] || common+=(--build-arg "BASE_IMAGE=$BASE_IMAGE")
options=("${common[@]}" --file deploy/docker/gymfleet.Dockerfile --build-arg "VERSION=$version" --build-arg "REVISION=$revision")
[ -z "${PIP_CONFIG:-}" ] || options+=(--secret "id=pip.conf,src=$PIP_CONFIG")
[ -z "${TORCH_CPU_INDEX:-}" ] || options+=(--build-arg "TORCH_CPU_INDEX=$TORCH_CPU_INDEX")
[ -z "${CA_BUNDLE:-}" ] || options+=(--secret "id=ca,src=$CA_BUNDLE")

if [ -n "${GYMFLEET_WHEELS:-}" ]; then
    [ -d "$GYMFLEET_WHEELS" ] || fail "GYMFLEET_WHEELS: there is no directory $GYMFLEET_WHEELS"
    [ ! "$GYMFLEET_WHEELS" -ef deploy/docker/wheels ] || fail "GYMFLEET_WHEELS: every build empties deploy/docker/wheels; move the wheels elsewhere"
fi
# One build at a time: the directory of wheels is part of the build context.
exec 9>deploy/docker/wheels/.lock
flock 9
find deploy/docker/wheels -type f -not -name '.*' -delete
if [ -n "${GYMFLEET_WHEELS:-}" ]; then
    cp --link "$GYMFLEET_WHEELS"/* deploy/docker/wheels/ 2>/dev/null || cp "$GYMFLEET_WHEELS"/* deploy/docker/wheels/
    options+=(--build-arg PIP_NO_INDEX=1)
fi

tag_of() {  # NAME
    case "$1" in
        *-cpu | *-cuda) echo "$prefix/${1%-*}:$version-${1##*-}" ;;
        *) echo "$prefix/$1:$version" ;;
    esac
}

build() {  # NAME
    local target=${1%-cpu} tag
    target=${target%-cuda}
    tag=$(tag_of "$1")
    case "$1" in
        os-sandbox)
            "$docker" build "${common[@]}" --file deploy/docker/os-sandbox.Dockerfile --tag "$tag" deploy/docker ;;
        env-gateway | reward | rollout) "$docker" build "${options[@]}" --target "$1" --build-arg "EXTRA=$1" --tag "$tag" . ;;
        env-*) "$docker" build "${options[@]}" --target env --build-arg "EXTRA=$1" --tag "$tag" . ;;
        *) "$docker" build "${options[@]}" --target "$target" --build-arg "EXTRA=$target" --build-arg "VARIANT=${1##*-}" --tag "$tag" . ;;
    esac
}

for name in "${wanted[@]}"; do
    start=$SECONDS
    build "$name" >/dev/null || fail "$name did not build"
    echo "images: [$((SECONDS - start))s] $(tag_of "$name")"
done
printf '\n%-44s %8s\n' image size
for name in "${wanted[@]}"; do
    tag=$(tag_of "$name")
    printf '%-44s %5d MB\n' "$tag" $(($(docker image inspect --format '{{.Size}}' "$tag") / 1000000))
done
