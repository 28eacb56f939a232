#!/usr/bin/env bash
# Programs that the tests of some parts start: Java (sciworld), bubblewrap (os), MariaDB (db's second backend), and a
# Redis server beside the embedded one. Installed with apt where that is possible; what is still missing is named, and
# the tests that need it are skipped.
set -euo pipefail

declare -A packages=([java]=openjdk-17-jre-headless [bwrap]=bubblewrap [mariadbd]=mariadb-server [redis-server]=redis-server)

missing() {
    for program in java bwrap mariadbd redis-server; do
        PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || echo "$program"
    done
}

wanted=$(missing)
[ -z "$wanted" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    names=()
    for program in $wanted; do names+=("${packages[$program]}"); done
    echo "system: installing ${names[*]}"
    (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${names[@]}") \
        >/dev/null 2>&1 || true
fi
for program in $(missing); do
    echo "system: $program is missing: its tests are skipped (Debian: apt install ${packages[$program]})"
done
