"""Parts shared by several GPU checks: a random model, and an engine's replies to prompts of random tokens."""

import random
from pathlib import Path
from typing import Any, Final, Literal

import torch
from gymfleet_contracts.rollout import Sampling
from gymfleet_rollout.inference.base import EngineConfig, GenerationRequest
from gymfleet_rollout.inference.engine import VllmCore, build_core
from gymfleet_trainer.model.scratch import build_tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks import bench_gpu

NUM_PROMPTS: Final = 16
_PROMPT_TOKENS: Final = 96
_REPLY_TOKENS: Final = 32
Rows = list[list[int]]


def random_model(directory: Path, smoke: bool) -> Path:
    """Write a random model of Qwen3's shape in bfloat16, with a tokenizer of bytes and words."""
    heads = {"head_dim": 32}  # of the sizes that vLLM's CPU build has
    shape: dict[str, Any] = bench_gpu.SMOKE | heads if smoke else bench_gpu.QWEN3_0_6B
    tokenizer = build_tokenizer(["Thought: a ball. Action: go to red ball 1"], 300)
    torch.manual_seed(0)
    config = Qwen3Config(
        **shape, max_position_embeddings=4096, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None, dtype="bfloat16",
    )  # fmt: skip
    path = directory / "model"
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def small_engine(model: Path, dtype: Literal["float32", "bfloat16", "float16"], *, max_lora_rank: int = 0) -> VllmCore:
    """Return an embedded vLLM with room for the prompts and their replies."""
    return build_core(
        EngineConfig(
            model=model, dtype=dtype, max_model_len=512, max_num_seqs=NUM_PROMPTS, kv_cache_gib=0.5,
            enforce_eager=True, max_lora_rank=max_lora_rank,
        )
    )  # fmt: skip


def random_prompts() -> Rows:
    """Return prompts of tokens that every model here has."""
    rng = random.Random(0)
    return [[rng.randrange(5, 250) for _ in range(_PROMPT_TOKENS)] for _ in range(NUM_PROMPTS)]


def replies(core: VllmCore, prompts: Rows, *, version: int = 0) -> tuple[Rows, list[list[float]]]:
    """Return the engine's tokens for each prompt, and their log-probabilities; the same weights give the same ones.

    Versions share no cached blocks.
    """
    owner = {
        core.add(GenerationRequest(prompt, _REPLY_TOKENS, Sampling(seed=place), (), cache_salt=str(version))): place
        for place, prompt in enumerate(prompts)
    }
    tokens: Rows = [[] for _ in prompts]
    logprobs: list[list[float]] = [[] for _ in prompts]
    left = set(owner)
    while left:
        for request, ids, values, reason, _ in core.step():
            tokens[owner[request]] += ids
            logprobs[owner[request]] += values
            if reason is not None:
                left.discard(request)
    return tokens, logprobs
