"""The benchmark of publishing makes of a run's records what it says it makes."""

import json
from pathlib import Path

import pytest
from gymfleet_contracts.recipe import load_recipe
from gymfleet_rollout.backend import EngineConfig, GenerationRequest
from gymfleet_rollout.inference.base import WeightsRejected
from gymfleet_trainer.model.weight_files import write_weights
from safetensors.torch import save_file
from torch import arange, bfloat16, zeros

from benchmarks import bench_publish
from benchmarks.bench_publish import Trained, of_memory, of_seconds, of_versions
from benchmarks.random_engine import RandomEngine
from tests.fixtures.scored import make_recipe

PUBLISHED = {"kind": "publish", "write_s": 0.5, "update_s": 0.25, "compare_s": 0.125}
LINES = [
    PUBLISHED | {"step": 0, "seconds": 100.0},
    {"kind": "rl_step", "step": 1, "update_s": 30.0, "num_updates": 1},
    PUBLISHED | {"step": 1, "seconds": 1.0},
    {"kind": "checkpoint", "step": 1, "blocked_s": 0.25, "write_s": 9.0},
    {"kind": "rl_step", "step": 2, "update_s": 20.0, "num_updates": 1},
    PUBLISHED | {"step": 2, "seconds": 2.0},
    {"kind": "checkpoint", "step": 2, "blocked_s": 40.0, "write_s": 50.0},
    {"kind": "rl_step", "step": 3, "update_s": 0.0, "num_updates": 0},
    {"kind": "publish", "step": 3, "seconds": 5.0, "write_s": 5.0, "update_s": 5.0, "compare_s": 5.0},
    {"kind": "checkpoint", "step": 3, "blocked_s": 0.5, "write_s": 80.0},
    {"kind": "rl_step", "step": 4, "update_s": 40.0, "num_updates": 1},
    PUBLISHED | {"step": 4, "seconds": 3.0},
    {"kind": "checkpoint", "step": 4, "blocked_s": 0.75, "write_s": 11.0},
]
"""Of four steps, the third changed nothing."""


def trained(path: Path, **plan: int) -> Trained:
    return Trained(path, plan, peak_bytes=1200 << 20, lines=LINES)


def test_a_step_waits_for_both_and_the_first_version_is_of_no_step(tmp_path: Path) -> None:
    rows = {row.name.strip(): row for row in of_seconds(trained(tmp_path))}

    waits = rows["a step waits for version and checkpoint"]
    # The second step waited for what the first one left, and the fourth for what the third one left.
    assert (waits.value, waits.goal, waits.met) == ((1.25 + 5.5) / 2, 2.0, False)
    assert rows["at most"].value == 5.5
    assert rows["the version: written"].value == 0.5
    assert rows["the version: checked and read by the engine"].value == 0.25
    assert rows["the version: the trainer's pass over the probe"].value == 0.125
    assert rows["the checkpoint: waited for"].value == (0.25 + 0.5) / 2, "no step waits for the last one"
    assert rows["the last one: waited for at the end of the stage"].value == 0.75
    assert rows["the checkpoint: written beside the next batch"].value == 11.0, "the median of 9, 50 and 11"
    assert rows["the update"].value == 30.0


def test_memory_is_compared_with_the_sum_of_the_plan(tmp_path: Path) -> None:
    peak, off = of_memory("all weights", trained(tmp_path, parameters=7, weights=600 << 20, process=400 << 20))

    assert (peak.value, peak.baseline) == (1200.0, 1000.0)
    assert (off.value, off.met) == (0.2, False)


def test_bytes_of_a_version_are_those_of_its_tensors(tmp_path: Path) -> None:
    for name in ("v000001", "v000002"):
        (tmp_path / "weights" / name).mkdir(parents=True)
    write_weights(tmp_path / "weights" / "v000002", [("one", arange(1024, dtype=bfloat16))], 1 << 20)

    (tmp_path / "model").mkdir()
    save_file({"one": zeros(32, 32)}, tmp_path / "model" / "model.safetensors")

    _, data, rest = of_versions(trained(tmp_path))

    assert (data.value, data.met) == (2.0, True)
    assert 0 < rest.value < 1


def test_recipes_are_for_what_was_played_or_for_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_publish, "RUNS", tmp_path)

    played = load_recipe(Path(bench_publish.written("one", 'path = "x"', 3)))
    planned = load_recipe(Path(bench_publish.written("two", 'path = "x"', 3, tokens=77)))

    assert played.inference.dtype == "bfloat16"
    assert played.rollout.limits.max_context_tokens == 1000
    assert played.plan()[0].options["steps"] == 3
    assert planned.rollout.limits.max_context_tokens == planned.plan()[0].options["tokens_per_microbatch"] == 77


def test_its_engine_takes_whole_versions_and_refuses_damaged_ones(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 50}))
    engine = RandomEngine(EngineConfig(model=tmp_path, max_model_len=64))
    engine.build()
    request = GenerationRequest([1], 8, make_recipe().rollout.sampling, (7,), "")
    replies = [engine.sample(request, lambda: False) for _ in range(50)]
    write_weights(tmp_path, [("one", arange(1024, dtype=bfloat16))], 1 << 20)

    engine.read_weights(tmp_path)

    assert engine.weights["one"].equal(arange(1024, dtype=bfloat16))
    assert len({len(reply.token_ids) for reply in replies}) > 3, "they differ in length"
    for reply in replies:
        assert reply.finish_reason == ("stop" if reply.token_ids[-1] == 7 else "length")
        assert 7 not in reply.token_ids[:-1]
        assert max(reply.token_ids) < 50
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(WeightsRejected, match="checksum"):
        engine.read_weights(tmp_path)
