#!/usr/bin/env bash
# Write the hashes of the pinned versions into requirements/*.txt: those of every file that the index has of a version, so
# that they hold for each Python and for sources alike. To change a version, change its `name==version` and run this.
#
# Not in any of the files, and so without a hash: torch, whose builds for CPUs differ from index to index under one
# version, and what pip resolves for CUDA images. Both are pinned by version alone, in scripts/setup.sh and the Dockerfile.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
uv=$(command -v uv || true)
if [ -z "$uv" ]; then
    "${PYTHON:-python3}" -m venv "$work/venv"
    "$work/venv/bin/pip" --disable-pip-version-check --quiet install uv
    uv=$work/venv/bin/uv
fi

for file in "${@:-lock images engine build peers}"; do
    for name in $file; do
        path=requirements/$name.txt
        sed -n '/^#/p' "$path" >"$work/$name.txt"
        sed -n 's/^\([A-Za-z0-9][^ ]*==[^ ]*\).*/\1/p' "$path" >"$work/$name.in"
        "$uv" pip compile --quiet --no-deps --generate-hashes --no-header --no-annotate --python-version 3.11 \
            "$work/$name.in" >>"$work/$name.txt"
        mv "$work/$name.txt" "$path"
        echo "lock: $path, $(grep -c '==' "$path") versions"
    done
done
