"""All checks that need a GPU, in one go and one file: `python -m benchmarks.gpu_check [--smoke] [--out FILE]`.

`scripts/gpu-check.sh` installs its requirements from a directory of wheels and calls it. Each check runs in its own
process with a deadline, so that one that fails, hangs or runs out of memory affects no other; the file is written after
each. With `--smoke` the same code runs on the CPU with tiny models, as in the gate.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
_TAIL_CHARS: Final = 3000
QWEN3_4B: Final = {
    "vocab_size": 151_936, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
}  # fmt: skip
Figures = dict[str, Any]


def main() -> None:
    """Run the checks, or one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny models on the CPU")
    parser.add_argument("--out", type=Path, default=Path("gpu-check.json"), help="the file of what was found")
    parser.add_argument("--only", nargs="+", choices=list(CHECKS), default=list(CHECKS), metavar="NAME")
    parser.add_argument("--one", choices=list(CHECKS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(CHECKS[arguments.one][0](arguments.smoke)))
        return
    found: dict[str, Any] = {"machine": machine(arguments.smoke), "checks": {}}
    for name in arguments.only:
        print(f"{name} ...", flush=True)
        found["checks"][name] = checked(name, arguments.smoke)
        arguments.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        print(f"{name}: {'ok' if found['checks'][name]['ok'] else 'FAILED'}", flush=True)
    failed = [name for name, one in found["checks"].items() if not one["ok"]]
    print(f"{arguments.out}: {len(found['checks']) - len(failed)} of {len(found['checks'])} checks passed")
    if failed:
        raise SystemExit(1)


def checked(name: str, smoke: bool) -> Figures:
    """Run a check in its own process and return its results; `ok` is false if it failed or took too long."""
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--one", name, *(["--smoke"] if smoke else [])]
    deadline_s = CHECKS[name][1]
    started = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=deadline_s)
    except subprocess.TimeoutExpired as error:
        return {
            "ok": False,
            "seconds": deadline_s,
            "error": f"no result within {deadline_s:g} s",
            "log": _tail(error.stderr),
        }
    seconds = round(time.monotonic() - started, 1)
    if done.returncode:
        return {"ok": False, "seconds": seconds, "error": f"exit code {done.returncode}", "log": _tail(done.stderr)}
    figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return {"ok": figures.pop("ok", True), "seconds": seconds, **figures}


def machine(smoke: bool) -> Mapping[str, str]:
    """Return a description of the machine and the versions."""
    import torch  # noqa: PLC0415 - the checks import it in their own processes

    gpu = "none" if smoke or not torch.cuda.is_available() else torch.cuda.get_device_name()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False, cwd=ROOT
    ).stdout.strip()
    return {"gpu": gpu, "torch": torch.__version__, "python": platform.python_version(), "commit": commit or "unknown"}


def attention(smoke: bool) -> Figures:
    """Compare packed attention, as in training, with one call of SDPA per segment: values and times."""
    import torch  # noqa: PLC0415 - in this process alone
    import torch.nn.functional as F  # noqa: N812, PLC0415
    from gymfleet_trainer.model.attention import packed_attention  # noqa: PLC0415
    from gymfleet_trainer.model.segments import Segments  # noqa: PLC0415

    device, dtype = ("cpu", torch.float32) if smoke else ("cuda", torch.bfloat16)
    heads, kv_heads, size = (4, 2, 16) if smoke else (16, 8, 128)
    lengths = tuple(3 + 7 * place for place in range(5)) if smoke else tuple(512 + 128 * place for place in range(12))
    torch.manual_seed(0)
    query = torch.randn(1, heads, sum(lengths), size, device=device, dtype=dtype)
    key, value = (torch.randn(1, kv_heads, sum(lengths), size, device=device, dtype=dtype) for _ in range(2))
    bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    segments = Segments(lengths, bounds)
    packed, _ = packed_attention(torch.nn.Module(), query, key, value, None, segments=segments)

    def apart() -> torch.Tensor:
        parts = (torch.split(tensor, list(lengths), dim=2) for tensor in (query, key, value))
        attended = [
            F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            for q, k, v in zip(*parts, strict=True)
        ]
        return torch.cat(attended, dim=2).transpose(1, 2)

    difference = float((packed - apart()).abs().max())
    return {
        "ok": difference < (1e-5 if smoke else 2e-2),
        "largest_difference": difference,
        "packed_ms": _milliseconds(
            lambda: packed_attention(torch.nn.Module(), query, key, value, None, segments=segments), device
        ),
        "sdpa_per_segment_ms": _milliseconds(apart, device),
    }


def updates(smoke: bool) -> Figures:
    """Measure tokens/s of GRPO updates of a 0.6B model with micro-batches of 8k and 16k tokens."""
    from benchmarks import bench_gpu  # noqa: PLC0415 - in this process alone

    rows = bench_gpu.measure(bench_gpu.CPU_SMOKE if smoke else bench_gpu.GPU)
    return {"rows": [asdict(row) for row in rows], "ok": all(row.met is not False for row in rows)}


def large_updates(smoke: bool) -> Figures:
    """Measure the same for a 4B model whose layers are recomputed."""
    from dataclasses import replace  # noqa: PLC0415 - in this process alone

    from benchmarks import bench_gpu  # noqa: PLC0415 - in this process alone

    plan = bench_gpu.CPU_SMOKE if smoke else replace(bench_gpu.GPU, shape=QWEN3_4B, microbatches=(8192,), updates=2)
    rows = [replace(row, goal=None, met=None) for row in bench_gpu.measure(plan, checkpointing=True)]
    return {"rows": [asdict(row) for row in rows]}


def parity(smoke: bool) -> Figures:
    """Compare the log-probabilities of vLLM and of the trainer for tokens sampled by vLLM, both in bfloat16."""
    import torch  # noqa: PLC0415 - in this process alone
    from gymfleet_trainer.model.batching import TrainSequence, pack  # noqa: PLC0415
    from gymfleet_trainer.model.policy_model import PolicyModel  # noqa: PLC0415

    from benchmarks import gpu_parts  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as directory:
        path = gpu_parts.random_model(Path(directory), smoke)
        prompts = gpu_parts.random_prompts()
        tokens, logprobs = gpu_parts.replies(gpu_parts.small_engine(path, "bfloat16"), prompts)
        model = PolicyModel.from_pretrained(path, dtype="bfloat16", device="cpu" if smoke else "cuda")
        rows = [
            TrainSequence(
                [*prompt, *reply], [False] * len(prompt) + [True] * len(reply), [0.0] * len(prompt) + said,
                [0.0] * (len(prompt) + len(reply)), 0, f"run/{place}/0",
            )
            for place, (prompt, reply, said) in enumerate(zip(prompts, tokens, logprobs, strict=True))
        ]  # fmt: skip
        differences = []
        with torch.no_grad():
            for batch in pack(rows, 8192, dtype=model.dtype):
                on_device = batch.to(model.device)
                found = model.token_logprobs(on_device).logprobs
                differences.append((found - on_device.behaviour_logprobs)[on_device.trained].abs().cpu())
    together = torch.cat(differences)
    mean = float(together.mean())
    return {"mean_difference": mean, "largest_difference": float(together.max()), "ok": mean < 0.05}


def lora(smoke: bool) -> Figures:
    """Train adapters for two steps and publish them to vLLM by name; compare engine, adapter and merged model."""
    from benchmarks import gpu_lora  # noqa: PLC0415 - in this process alone

    return gpu_lora.measure(smoke)


def memory(smoke: bool) -> Figures:
    """Compare the peak memory of an update with the plan of `gymfleet plan`."""
    from benchmarks import gpu_memory  # noqa: PLC0415 - in this process alone

    return gpu_memory.measure(smoke)


def cuda_ipc(smoke: bool) -> Figures:
    """Load a version that another process holds on the GPU into vLLM, from there and from its files."""
    from benchmarks import gpu_ipc  # noqa: PLC0415 - in this process alone

    return gpu_ipc.measure(smoke)


def whole_loop(smoke: bool) -> Figures:
    """Run two steps of GRPO with engine, environment, rewards and published weights on a random bfloat16 model."""
    from benchmarks import gpu_parts  # noqa: PLC0415 - in this process alone

    with tempfile.TemporaryDirectory() as directory:
        path, run = gpu_parts.random_model(Path(directory), smoke), Path(directory) / "run"
        command = [
            str(Path(sys.executable).with_name("gymfleet")), "train", str(ROOT / "recipes" / "methods" / "grpo.toml"),
            "--run-dir", str(run),
        ]  # fmt: skip
        for change in (
            f"model.path={path}", "inference.dtype=bfloat16", "publish.parity_tolerance=0.05",
            "stages.before.num_tasks=4", "stages.after.num_tasks=4", "stages.reinforce.steps=2",
            "stages.reinforce.groups_per_step=2", "stages.reinforce.updates_per_step=1",
            "stages.reinforce.group_size=4", "reward.length.weight=0.01",
            "rollout.limits.max_context_tokens=4000", "inference.max_model_len=4096", "stages.reinforce.max_wall_s=600",
            *([] if smoke else ["placement.colocated=true"]),  # the one GPU has trainer and engine
        ):  # fmt: skip
            command += ["--set", change]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        if done.returncode:
            raise SystemExit(
                f"gymfleet train ended with exit code {done.returncode}: {_tail(done.stdout + done.stderr)}"
            )
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return {"seconds_of": summary["seconds"], "tokens_trained": summary["tokens_trained"]}


def _milliseconds(call: Callable[[], Any], device: str) -> float:
    import torch  # noqa: PLC0415 - in this process alone

    times = []
    for _ in range(6):
        if device == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return round(1000 * min(times[1:]), 3)


def _tail(text: str | bytes | None) -> str:
    told = text.decode(errors="replace") if isinstance(text, bytes) else text or ""
    return told[-_TAIL_CHARS:]


CHECKS: Final[Mapping[str, tuple[Callable[[bool], Figures], float]]] = {
    "attention": (attention, 180.0),
    "updates": (updates, 480.0),
    "large_updates": (large_updates, 480.0),
    "parity": (parity, 420.0),
    "lora": (lora, 300.0),
    "memory": (memory, 180.0),
    "cuda_ipc": (cuda_ipc, 240.0),
    "whole_loop": (whole_loop, 840.0),
}
"""Each check with its time limit in seconds: 52 minutes in all."""

if __name__ == "__main__":
    main()
