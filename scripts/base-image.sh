#!/usr/bin/env bash
# For machines and CI without an image registry: make the two images that others pull, from Debian's packages alone.
# What the Docker Engine already has is left alone. Needs root, debootstrap and a Debian mirror (DEBIAN_MIRROR).
#
#   debian:12-slim      debootstrap's minbase without manuals and translations
#   redis:7.2-bookworm  the same with Debian's redis-server (7.0), started as the official image is, as user 999
set -euo pipefail

MIRROR=${DEBIAN_MIRROR:-}
BASE=debian:12-slim
REDIS=redis:7.2-bookworm

fail() { echo "base-image: error: $*" >&2; exit 1; }
has() { docker image inspect "$1" >/dev/null 2>&1; }

make_base() {
    [ "$(id -u)" = 0 ] || fail "debootstrap needs root"
    command -v debootstrap >/dev/null || fail "debootstrap is missing (Debian: apt install debootstrap)"
    local work root
    work=$(mktemp -d)
    trap 'rm -rf "$work"' RETURN
    root=$work/root
    echo "base-image: making $BASE from ${MIRROR:-the mirror that debootstrap takes}"
    debootstrap --variant=minbase --include=ca-certificates bookworm "$root" ${MIRROR:+"$MIRROR"} >"$work/log" 2>&1 \
        || { tail -n 20 "$work/log" >&2; fail "debootstrap failed"; }
    cat >"$root/etc/dpkg/dpkg.cfg.d/slim" <<'SLIM'
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
SLIM
    find "$root/usr/share/doc" -type f ! -name copyright -delete
    rm -rf "$root"/usr/share/{man,info,locale}/* "$root"/var/lib/apt/lists/* "$root"/var/cache/{apt,debconf,ldconfig}/* \
        "$root"/var/log/* "$root"/tmp/* "$root/etc/hostname" "$root/etc/resolv.conf"
    tar -C "$root" --sort=name --mtime=@0 --numeric-owner --exclude=./dev/* --exclude=./proc/* --exclude=./sys/* -c . \
        | docker import --change 'CMD ["bash"]' - "$BASE" >/dev/null
}

make_redis() {
    echo "base-image: making $REDIS from $BASE"
    docker build --quiet --network "${DOCKER_NETWORK:-default}" --tag "$REDIS" - >/dev/null <<DOCKERFILE
FROM $BASE
RUN groupadd --system --gid 999 redis && useradd --system --uid 999 --gid redis --home-dir /data redis \\
    && apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends redis-server \\
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin \\
    && install -d -o redis -g redis /data
USER 999:999
WORKDIR /data
VOLUME /data
EXPOSE 6379
CMD ["redis-server"]
DOCKERFILE
}

docker info >/dev/null 2>&1 || fail "no Docker Engine answers"
has "$BASE" || make_base
has "$REDIS" || make_redis
docker image ls --format '{{.Repository}}:{{.Tag}}  {{.Size}}' | grep -Fe "$BASE " -e "$REDIS "
