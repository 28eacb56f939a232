"""The trainer's benchmarks run, in a small way, and count what they say they count."""

from pathlib import Path

import pytest
from gymfleet_contracts.recipe_sections import ScratchModel
from gymfleet_kit.chat.tokens import ChatTokens
from gymfleet_trainer.model.flops import DecoderShape
from gymfleet_trainer.model.scratch import build_scratch_model
from transformers import Qwen3Config

from benchmarks import bench_gpu, bench_trainer, bench_trl

SMALL = ScratchModel(
    vocab_size=300, hidden_size=32, intermediate_size=64, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16
)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_gpu_benchmark_runs_small_on_the_cpu(checkpointing: bool) -> None:
    rows = bench_gpu.measure(bench_gpu.CPU_SMOKE, checkpointing=checkpointing)

    assert [row.unit for row in rows] == ["TFLOP/s", "tokens/s", "TFLOP/s"]
    assert all(row.value >= 0 for row in rows)
    assert rows[1].value > 0


def test_the_gpu_benchmark_measures_qwen3_0_6b() -> None:
    shape = DecoderShape.from_config(Qwen3Config(**bench_gpu.QWEN3_0_6B))

    assert shape.matmul_parameters == 440_401_920, "28 layers of 15.7 M"
    assert shape.matmul_parameters + shape.vocab_size * shape.hidden_size == pytest.approx(596e6, rel=1e-3)
    sequences = bench_gpu.packed_sequences(bench_gpu.GPU, 16384)
    assert sum(len(sequence.token_ids) for sequence in sequences) == 4 * 16384


def test_the_cpu_benchmark_runs_small(tmp_path: Path) -> None:
    path = build_scratch_model(["a"], SMALL, tmp_path, 0, max_position=512)

    rows = {row.name: row for row in bench_trainer.measure(path, 3, 1)}

    assert [name for name in rows if "padded" in name] == ["plain padded loop, 3 rows at a time"], "all that there are"
    assert rows["update, micro-batches of 4096"].baseline == rows["plain padded loop, 3 rows at a time"].value
    assert rows["parity of bfloat16 with float32"].value < 0.1


def test_the_plain_loop_is_the_best_of_several_numbers_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_trainer, "PADDED_ROWS", (1, 2, 8))
    path = build_scratch_model(["a"], SMALL, tmp_path, 0, max_position=512)

    rows = {row.name: row for row in bench_trainer.measure(path, 3, 1)}

    padded = {name: row.value for name, row in rows.items() if "padded" in name}
    assert list(padded) == [f"plain padded loop, {number} rows at a time" for number in (1, 2, 3)]
    assert rows["update, micro-batches of 4096"].baseline == max(padded.values())


def test_the_benchmark_beside_trl_runs_small_without_it(tmp_path: Path) -> None:
    path = build_scratch_model(["a"], SMALL, tmp_path, 0, max_position=4096)

    rows = {row.name: row for row in bench_trl.measure(path, bench_trl.demonstrations(4), 2, None)}

    assert {"SFT", "DPO"} < rows.keys()
    assert all(row.value > 0 for row in rows.values())


def test_rows_for_trl_are_an_experts_episodes_and_have_the_tokens_and_the_losses_of_ours(tmp_path: Path) -> None:
    played = bench_trl.demonstrations(4)
    chat = ChatTokens.load(build_scratch_model(["a"], SMALL, tmp_path, 0, max_position=4096))

    rows, pairs = bench_trl.sft_rows(chat, played, 4), bench_trl.dpo_pairs(chat, played)

    lengths = [len(row["input_ids"]) for row in rows]
    assert lengths == sorted(lengths)
    for row in rows:
        trained = [(token, label) for token, label in zip(row["input_ids"], row["labels"], strict=True) if label >= 0]
        assert all(token == label for token, label in trained)
        assert trained[-1][0] == chat.turn_end_id
        assert "Thought:" in chat.text([token for token, _ in trained])
    for pair, messages in zip(pairs, played, strict=True):
        said = [message.content for message in messages if message.role == "assistant"]
        assert chat.text(pair["chosen_ids"]) in said
        assert pair["chosen_ids"] != pair["rejected_ids"]
        assert pair["prompt_ids"][:20] == pairs[0]["prompt_ids"][:20], "the environment's instructions"
