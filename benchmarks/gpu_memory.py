"""The memory of an update compared with `gymfleet plan` for the same recipe: the check `memory` of `gpu_check`.

On a GPU, it uses a model of Qwen3-0.6B's shape in bfloat16 and PyTorch's peak allocation. On a CPU, as the smoke form,
it uses a model of ten million parameters and the resident memory of the process, which the plan counts too.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks import bench_gpu

_ROOT: Final = Path(__file__).parents[1]
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GYMFLEET_TRAINER_TORCH_THREADS": "1"}
_SMALL: Final = bench_gpu.QWEN3_0_6B | {
    "vocab_size": 4096, "hidden_size": 320, "intermediate_size": 960, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
}  # fmt: skip
_NEAR: Final = {"cpu": 0.15, "cuda": 0.25}
"""The largest relative error of the plan, as a share of the measured memory. On an H100 it was 0.4 %."""
_RECIPE: Final = """
name = "peak"
environments = [{{ name = "maze" }}]
model = {{ path = "{model}" }}
inference = {{ max_model_len = {length} }}
rollout = {{ limits = {{ max_context_tokens = {length} }} }}
stages = [{{ kind = "reinforce", algorithm = "reinforce_pp", steps = 2, tokens_per_microbatch = {tokens} }}]
trainer_device = "{device}"
trainer_dtype = "{dtype}"
"""


def measure(smoke: bool) -> dict[str, Any]:
    """Return the planned and the measured memory of the trainer's process, in bytes, and their ratio."""
    device = "cpu" if smoke else "cuda"
    shape, length, tokens, dtype = (
        (_SMALL, 256, 1024, "float32") if smoke else (bench_gpu.QWEN3_0_6B, 1024, 8192, "bfloat16")
    )
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "model"
        config = Qwen3Config(**shape, max_position_embeddings=length)
        Qwen3ForCausalLM(config).to(torch.float32 if smoke else torch.bfloat16).save_pretrained(model)
        recipe = Path(directory) / "recipe.toml"
        recipe.write_text(
            _RECIPE.format(model=model, length=length, tokens=tokens, device=device, dtype=dtype), encoding="utf-8"
        )
        kind = "1xcpu" if smoke else f"1x{torch.cuda.get_device_properties(0).total_memory / 2**30:.1f}GiB"
        trainer = "from gymfleet_trainer.main import main; main()"
        planned = json.loads(said(["-c", trainer, "plan", str(recipe), "--gpus", kind]))
        seen = int(said(["-m", "benchmarks.one_update", str(recipe)]))
    parts = {part["what"]: part["size_bytes"] for part in planned["devices"][0]["processes"][0]["parts"]}
    if not smoke:
        del parts["process"]  # CUDA's context, which PyTorch does not count
    ratio = sum(parts.values()) / seen
    return {
        "parameters": planned["num_parameters"],
        "weights_bytes": parts["weights"],
        "planned_bytes": sum(parts.values()),
        "seen_bytes": seen,
        "planned_over_seen": round(ratio, 3),
        "ok": abs(ratio - 1) <= _NEAR[device],
    }


def said(arguments: list[str]) -> str:
    """Run Python and return its last line of output; if it fails, raise SystemExit with the end of its stderr."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=_ROOT,
        env=os.environ | _ONE_THREAD,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return done.stdout.splitlines()[-1]
