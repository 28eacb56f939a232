"""The trainer on a GPU: GRPO updates of a randomly initialised Qwen3-0.6B in bfloat16, on packed sequences.

`python -m benchmarks.bench_gpu [--compile] [--liger] [--gradient-checkpointing]`; `--smoke` runs the same code with
a tiny shape on the CPU and records nothing. It needs torch, transformers and pydantic, and no service.

Every token but a segment's first is trained: the head, a third of this model's FLOPs, works at every position.
"""

import importlib
import time
from dataclasses import dataclass
from typing import Any, Final

import torch
from gymfleet_trainer.learning.engine import UpdateEngine
from gymfleet_trainer.learning.options import ReinforceOptions
from gymfleet_trainer.learning.plugins import algorithm_of
from gymfleet_trainer.model.attention import PACKED_ATTENTION
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.model.flops import DecoderShape, training_flops
from gymfleet_trainer.model.policy_model import PolicyModel
from gymfleet_trainer.model.recast import recast_linears
from transformers import AutoModelForCausalLM, Qwen3Config

from benchmarks.command import BenchmarkCommand
from benchmarks.record import Row, record

GOAL_TOKENS_PER_S: Final = 3 * 11_900.0

QWEN3_0_6B: Final = {
    "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
}  # fmt: skip
SMOKE: Final = QWEN3_0_6B | {
    "vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a measurement."""

    device: str
    shape: dict[str, Any]
    microbatches: tuple[int, ...]
    segment_tokens: int
    microbatches_per_update: int
    updates: int
    matmul_size: int


GPU: Final = Plan("cuda", QWEN3_0_6B, (8192, 16384), 1024, 4, 5, 8192)
CPU_SMOKE: Final = Plan("cpu", SMOKE, (256,), 64, 2, 1, 256)


def main() -> None:
    """Measure and record."""
    parser = BenchmarkCommand(__doc__)
    parser.add_argument("--compile", action="store_true", help="torch.compile every decoder layer")
    parser.add_argument("--liger", action="store_true", help="liger-kernel's norm, rotary embedding and SwiGLU")
    parser.add_argument("--gradient-checkpointing", action="store_true", help="recompute layers to save memory")
    arguments = parser.options()
    if not arguments.smoke and not torch.cuda.is_available():
        parser.error("no GPU here: use --smoke, or run it where there is one")
    plan = CPU_SMOKE if arguments.smoke else GPU
    rows = measure(
        plan, compiled=arguments.compile, liger=arguments.liger, checkpointing=arguments.gradient_checkpointing
    )
    ways = {"compile": arguments.compile, "liger": arguments.liger, "checkpointing": arguments.gradient_checkpointing}
    record("-".join(["gpu", *(way for way, chosen in ways.items() if chosen)]), rows, arguments)


def measure(plan: Plan, *, compiled: bool = False, liger: bool = False, checkpointing: bool = False) -> list[Row]:
    """Return tokens/s and model-FLOPs utilisation for every micro-batch size of the plan."""
    name = torch.cuda.get_device_name() if plan.device == "cuda" else "CPU"
    ceiling = matmul_ceiling(plan)
    rows = [Row.of(f"{name}: bfloat16 matrix product of {plan.matmul_size}", ceiling / 1e12, "TFLOP/s")]
    model = build_model(plan, compiled=compiled, liger=liger, checkpointing=checkpointing)
    shape = DecoderShape.from_config(model.config)
    for tokens in plan.microbatches:
        sequences = packed_sequences(plan, tokens)
        rl = ReinforceOptions.model_validate({"tokens_per_microbatch": tokens, "optimizer": {"learning_rate": 1e-6}})
        seconds = time_updates(UpdateEngine(model, algorithm_of(rl), rl), sequences, plan)
        num_tokens = sum(len(sequence.token_ids) for sequence in sequences)
        lengths = [len(sequence.token_ids) for sequence in sequences]
        flops = training_flops(shape, lengths, sum(sequence.num_trained for sequence in sequences))
        goal = GOAL_TOKENS_PER_S if plan.device == "cuda" else None
        rows.append(Row.of(f"update, packed {tokens}", num_tokens / seconds, "tokens/s", goal=goal))
        rows.append(Row.of(f"model FLOPs, packed {tokens}", flops / seconds / 1e12, "TFLOP/s", baseline=ceiling / 1e12))
    if plan.device == "cuda":
        rows.append(Row.of("largest memory", torch.cuda.max_memory_allocated() / 2**30, "GiB"))
    return rows


def build_model(plan: Plan, *, compiled: bool, liger: bool, checkpointing: bool) -> PolicyModel:
    """Return a randomly initialised model of the plan's shape; a run trains the same class."""
    if liger:
        importlib.import_module("liger_kernel.transformers").apply_liger_kernel_to_qwen3(
            cross_entropy=False, fused_linear_cross_entropy=False
        )
    torch.manual_seed(0)
    config = Qwen3Config(**plan.shape, max_position_embeddings=4 * plan.segment_tokens, use_cache=False)
    with torch.device(plan.device):
        model = AutoModelForCausalLM.from_config(config, attn_implementation=PACKED_ATTENTION, dtype=torch.float32)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = PolicyModel(model.train(), compute_dtype=torch.bfloat16, compiled=compiled)
    recast_linears(policy.body)
    return policy


def packed_sequences(plan: Plan, tokens: int) -> list[TrainSequence]:
    """Return sequences that fill exactly `microbatches_per_update` micro-batches."""
    length = plan.segment_tokens
    count = plan.microbatches_per_update * tokens // length
    ids = torch.randint(plan.shape["vocab_size"], (count, length), generator=torch.Generator().manual_seed(0))
    mask = [False] + [True] * (length - 1)
    return [
        TrainSequence(
            token_ids=row,
            loss_mask=mask,
            behaviour_logprobs=[-10.0] * length,
            token_rewards=[0.0] * length,
            staleness=0,
            trajectory_id=f"run/{index // 8}/{index}",
            fields={"advantages": torch.full((length,), 1.0 if index % 2 else -1.0)},
        )
        for index, row in enumerate(ids.tolist())
    ]


def time_updates(engine: UpdateEngine, sequences: list[TrainSequence], plan: Plan) -> float:
    """Return the mean seconds of an update, after two updates to warm up."""
    for _ in range(2):
        engine.update(sequences)
    _wait(plan)
    started = time.perf_counter()
    for _ in range(plan.updates):
        metrics = engine.update(sequences)
    _wait(plan)
    if metrics["num_nonfinite"]:
        raise RuntimeError("an update was refused because its gradient was not finite: the figures mean nothing")
    return (time.perf_counter() - started) / plan.updates


def matmul_ceiling(plan: Plan) -> float:
    """Return the FLOP/s of the machine's fastest large bfloat16 product, the model's baseline."""
    size = plan.matmul_size
    left = torch.randn(size, size, device=plan.device, dtype=torch.bfloat16)
    right = torch.randn(size, size, device=plan.device, dtype=torch.bfloat16)
    fastest = float("inf")
    for _ in range(5):
        _wait(plan)
        started = time.perf_counter()
        for _ in range(10):
            left @ right
        _wait(plan)
        fastest = min(fastest, (time.perf_counter() - started) / 10)
    return 2 * size**3 / fastest


def _wait(plan: Plan) -> None:
    if plan.device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
