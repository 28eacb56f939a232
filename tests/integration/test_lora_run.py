"""The trainer as a process with `[model.lora]`, against real services whose engine was started for adapters."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.fixtures.trainer_runs import TrainerRun
from tests.fleet import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

RANK: Final = 8
LORA: Final = "[model.lora]\nrank = {rank}\ntarget_modules = {modules}\n"
KL: Final = "kl = { coefficient = 0.01 }"
ADAPTER: Final = {"adapter_config.json", "adapter_model.safetensors"}


@pytest.fixture(scope="module")
def lora_fleet(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Fleet]:
    settings = {"LEASE_S": "3", "MAX_LORA_RANK": str(RANK)}
    with Fleet(tmp_path_factory.mktemp("fleet"), tiny_model, rollout=settings) as fleet:
        yield fleet


def lora(rank: int = RANK, modules: str = '"all-linear"') -> str:
    return LORA.format(rank=rank, modules=modules)


def logprobs(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return torch.as_tensor(model(torch.arange(5, 45)[None]).logits[0].log_softmax(-1))


def test_a_whole_run_that_is_killed_once(lora_fleet: Fleet, tiny_model: Path, tmp_path: Path) -> None:
    run = TrainerRun(lora_fleet, tmp_path, tiny_model, steps=3, learning_rate=1e-2, options=KL, more=lora())
    run.start()
    run.wait_until(lambda: len(run.metrics("rl_step")) == 1, timeout_s=120)
    run.kill()

    summary = run.finish()

    assert summary["groups"]["trained"] == 6
    assert 0 <= summary["parity_mean_abs"] < 1e-4
    assert 0 <= summary["parity_batch_mean_abs"] < 1e-4
    assert {line["step"] for line in run.metrics("batch_parity")} >= {2, 3}, "the first batch after every publish"
    published = sorted((run.run_dir / "weights").iterdir())
    assert len(published) == 2
    assert all({path.name for path in version.iterdir()} == ADAPTER for version in published)
    for checkpoint in (run.run_dir / "checkpoints").glob("checkpoint-*"):
        assert not (checkpoint / "model" / "model.safetensors").exists()
        assert (checkpoint / "model" / "adapter_model.safetensors").is_file()

    model = run.run_dir / "model"
    base = AutoModelForCausalLM.from_pretrained(str(tiny_model))
    start = logprobs(base)
    merged = logprobs(AutoModelForCausalLM.from_pretrained(str(model)))
    adapted = logprobs(PeftModel.from_pretrained(base, str(model / "adapter")))
    assert (merged - adapted).abs().max() < 1e-4
    assert (merged - start).abs().max() > 1e-2
    before, after = (load_file(path / "model.safetensors") for path in (tiny_model, model))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.endswith("_proj.weight")}

    run.start("eval", "--checkpoint", str(model), "--out", str(tmp_path / "eval.json"))
    assert run.wait() == 0, run.tail()
    assert json.loads((tmp_path / "eval.json").read_text())["num_episodes"] == 5
    assert "replica.refused" not in run.tail(20_000)


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        pytest.param(
            lora(RANK + 8),
            "the run publishes adapters of rank 16 (model.lora.rank), and the engines of http://127.0.0.1:{port} were "
            "started for adapters of rank 8 at most",
            id="a rank that the engine was not started for",
        ),
        pytest.param("", "whole weights, as there is no [model.lora], and the engines of", id="no adapters at all"),
        pytest.param(
            lora(modules='["q_proj", "w_proj"]'),
            "error: model.lora.target_modules: the decoder has no linear layer w_proj; it has down_proj, gate_proj",
            id="layers that the model has not got",
        ),
        pytest.param(lora(513), "model.lora.rank: Input should be less than or equal to 512", id="no such rank"),
        pytest.param("[model.lora]\nranks = 8\n", "model.lora.ranks", id="a misspelt key"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_played(
    lora_fleet: Fleet, tiny_model: Path, tmp_path: Path, more: str, complaint: str
) -> None:
    run = TrainerRun(lora_fleet, tmp_path, tiny_model, more=more)
    run.start()

    assert run.wait() == 2

    assert complaint.format(port=lora_fleet.rollout.port) in run.tail()
    assert "Traceback" not in run.tail()
    assert not list((run.run_dir / "trajectories").glob("*"))


@pytest.mark.long
def test_two_workers(lora_fleet: Fleet, tiny_model: Path, tmp_path: Path) -> None:
    run = TrainerRun(
        lora_fleet, tmp_path, tiny_model, steps=1, options=KL, more=lora() + "[trainer]\nworkers = 2\n", sft=""
    )

    summary = run.finish()

    assert summary["groups"]["trained"] == 2
    assert 0 <= summary["parity_mean_abs"] < 1e-4
