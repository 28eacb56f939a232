"""A real vLLM server on the CPU, on a free port, started as the rollout service needs it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import httpx
from gymfleet_rollout.inference.worker_extension import PolicyLoader

from tests.fixtures.ports import free_port

START_TIMEOUT_S: Final = 200.0


@contextmanager
def vllm_server(
    model: Path, log: Path, *, max_model_len: int, max_num_seqs: int = 64, block_size: int = 32, lora_rank: int = 0
) -> Iterator[str]:
    """The URL of a running server, which takes adapters if a rank of them is given; it ends with the block."""
    settings = {
        "--max-model-len": str(max_model_len), "--block-size": str(block_size), "--max-num-seqs": str(max_num_seqs),
        "--kv-cache-memory-bytes": str(2**29), "--generation-config": "vllm",
        "--logprobs-mode": "processed_logprobs",
        "--worker-extension-cls": f"{PolicyLoader.__module__}.{PolicyLoader.__qualname__}",
    }  # fmt: skip
    flags = ["--enable-scale-out", "--enable-prompt-tokens-details"]
    if lora_rank:
        flags.append("--enable-lora")
        settings |= {"--max-lora-rank": str(lora_rank), "--max-loras": "2"}
    with _running(model, log, settings, *flags) as url:
        yield url


@contextmanager
def pooling_server(model: Path, log: Path, *, max_model_len: int) -> Iterator[str]:
    """The URL of a running server of a reward model; it ends with the block."""
    settings = {
        "--runner": "pooling", "--max-model-len": str(max_model_len), "--kv-cache-memory-bytes": str(2**27),
        "--max-num-seqs": "8", "--served-model-name": "judge-7b",
    }  # fmt: skip
    with _running(model, log, settings) as url:
        yield url


@contextmanager
def _running(model: Path, log: Path, settings: dict[str, str], *more_flags: str) -> Iterator[str]:
    port = free_port()
    common = {"--model": str(model), "--host": "127.0.0.1", "--port": str(port), "--dtype": "float32"}
    flags = ("--enforce-eager", "--no-enable-log-requests", "--disable-uvicorn-access-log", *more_flags)
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *flags]
    command += [part for setting in {**common, **settings}.items() for part in setting]
    environment = os.environ | {
        "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    }  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            with suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).is_success:
                    break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"vLLM did not start: {log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
