"""A version in the memory of a GPU: the check `cuda_ipc` of `gpu_check`.

A separate process holds the version, as a trainer with `publish.transfer = "cuda_ipc"` does, since no process can open
its own memory that way. vLLM loads it from there and from its files, and must give the same replies. Without a GPU,
bytes are laid out and read on the CPU, and vLLM must refuse the handle with a one-line error and keep its weights.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import torch
from gymfleet_contracts.weights import MANIFEST, WeightsManifest, WeightsOnGpu
from gymfleet_rollout.inference.base import WeightsRejected
from gymfleet_rollout.inference.gpu_weights import require_same_bytes, tensors_in
from gymfleet_trainer.model.weight_files import write_weights
from gymfleet_trainer.publish.transfers.cuda_ipc import CudaIpc, described, fill
from safetensors.torch import load_file

from benchmarks import gpu_parts

_BUCKET_BYTES: Final = 64 << 20
_ANY_GPU: Final = "01234567-89ab-cdef-0123-456789abcdef"


def measure(smoke: bool) -> dict[str, Any]:
    """Return the seconds of both ways, and whether the engine gives the same replies after them."""
    with tempfile.TemporaryDirectory() as directory:
        base = gpu_parts.random_model(Path(directory), smoke)
        version = _version(base, Path(directory) / "v000001")
        core = gpu_parts.small_engine(base, "bfloat16")
        prompts = gpu_parts.random_prompts()
        before = gpu_parts.replies(core, prompts)
        if smoke:
            try:
                core.load(version, described(_ANY_GPU, (0, b"handle", 1 << 40, 0, b"counter", 0, b"event", True)))
            except WeightsRejected as error:
                refused = str(error)
            same = gpu_parts.replies(core, prompts, version=1) == before
            return {"refused": refused, "ok": same and _laid_out(version)}
        started = time.perf_counter()
        core.load(version)
        files_s = time.perf_counter() - started
        from_files = gpu_parts.replies(core, prompts, version=2)
        core.load(base)
        holder = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu_ipc", str(version)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with holder:
            assert holder.stdout is not None
            on_gpu = WeightsOnGpu.model_validate_json(holder.stdout.readline())
            started = time.perf_counter()
            core.load(version, on_gpu)
            memory_s = time.perf_counter() - started
            from_memory = gpu_parts.replies(core, prompts, version=3)
            holder.communicate()
    return {
        "files_s": round(files_s, 3),
        "memory_s": round(memory_s, 3),
        "ok": from_memory == from_files != before and holder.returncode == 0,
    }


def _version(base: Path, directory: Path) -> Path:
    """Write weights that differ from a model's, in the form a trainer publishes."""
    directory.mkdir()
    (directory / "config.json").write_bytes((base / "config.json").read_bytes())
    tensors = load_file(base / "model.safetensors")
    write_weights(directory, ((name, tensor * 1.5) for name, tensor in tensors.items()), _BUCKET_BYTES)
    return directory


def _laid_out(version: Path) -> bool:
    """Return whether a memory filled as the trainer fills it holds the same tensors as the files."""
    manifest = WeightsManifest.model_validate_json((version / MANIFEST).read_bytes())
    memory = torch.zeros(manifest.places[-1], dtype=torch.uint8)
    fill(memory, version, manifest)
    require_same_bytes(memory, manifest)
    read = dict(tensors_in(memory, manifest))
    files = {name: one for bucket in manifest.buckets for name, one in load_file(version / bucket.file).items()}
    return read.keys() == files.keys() and all(torch.equal(read[name], one) for name, one in files.items())


def main() -> None:
    """Hold a version on the GPU until standard input ends."""
    version = Path(sys.argv[1])
    transfer = CudaIpc(version.parent)
    print(transfer.hold(version).model_dump_json(), flush=True)
    sys.stdin.read()
    transfer.close()


if __name__ == "__main__":
    main()
