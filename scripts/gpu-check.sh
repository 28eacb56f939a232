#!/usr/bin/env bash
# See on a GPU what no machine without one can show: install gymfleet and vLLM from a directory of wheels, beside the
# torch that is there, run the checks of benchmarks/gpu_check.py, and write what was found to one JSON file.
#
#   scripts/gpu-check.sh --fetch WHEELS        fill the directory, where there is an index: with the GPU machine's Python
#   scripts/gpu-check.sh WHEELS [OUT.json]     install from it, without an index, and check
#   scripts/gpu-check.sh --smoke [OUT.json]    the same checks with tiny models on the CPU, in the project's environment
#
# The directory has torch for CUDA too, several GB with what it needs. A machine that has that version can do without:
# take torch-*, nvidia_*, cuda_* and triton-* out of it.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] && { [ "$1" != --fetch ] || [ $# = 2 ]; } || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
if [ "$1" = --smoke ]; then
    exec "${GYMFLEET_VENV:-.venv}/bin/python" -m benchmarks.gpu_check --smoke --out "${2:-gpu-check.json}"
fi
argument() { sed -n "s/^ARG $1=//p" deploy/docker/gymfleet.Dockerfile; }
TORCH=$(argument TORCH) VLLM=$(argument VLLM)
[ "$1" = --fetch ] || [ -d "$1" ] || { echo "error: $1 is not a directory of wheels" >&2; exit 2; }
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
# The lock's versions, but those that torch and vLLM for CUDA choose themselves, as in deploy/docker/install.py.
sed -n 's/^\([A-Za-z0-9][^ ]*==[^ ]*\).*/\1/p' requirements/lock.txt | grep -vE '^(apache-tvm-ffi|triton)==' >"$WORK/pins.txt"
if [ "$1" = --fetch ]; then
    # Wheels are made of what has none. Hatchling and editables build gymfleet itself.
    python3 -m venv "$WORK/venv"
    "$WORK/venv/bin/pip" wheel --wheel-dir "$2" --constraint "$WORK/pins.txt" "vllm==$VLLM" ".[all]" hatchling editables
    exit
fi
HAS=$(python3 -c 'import importlib.metadata as m; print(m.version("torch").partition("+")[0])' 2>/dev/null || true)
[ "$HAS" = "$TORCH" ] || compgen -G "$1/torch-$TORCH[+-]*.whl" >/dev/null || {
    echo "error: vLLM $VLLM needs torch $TORCH: this machine has ${HAS:-none}, and $1 has no wheel of it" >&2
    exit 2
}
python3 -m venv --system-site-packages "$WORK/venv"
# Where python3 is an environment's own, that option means the packages of the Python beneath it: name its own too.
python3 -c 'import site; print(*site.getsitepackages(), sep="\n")' \
    >"$("$WORK/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/machine.pth"
# In one go, so that all suit each other, and from the directory alone, whatever PIP_* say. What the machine has in a
# version that suits, torch before all, stays.
"$WORK/venv/bin/pip" --isolated install --quiet --no-index --find-links "$1" --constraint "$WORK/pins.txt" \
    "vllm==$VLLM" --editable ".[all]"
"$WORK/venv/bin/python" -m benchmarks.gpu_check --out "${2:-gpu-check.json}"
