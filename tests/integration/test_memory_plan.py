"""The plan against the peak of a process that makes one update."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gymfleet_contracts.recipe import ScratchModel
from gymfleet_trainer.model.scratch import scratch_config
from transformers import Qwen3ForCausalLM

from tests.fixtures.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GYMFLEET_TRAINER_TORCH_THREADS": "1"}
SMALL = ScratchModel(vocab_size=4096, hidden_size=320, intermediate_size=960, num_layers=6, num_heads=4, head_dim=64)
"""About 10 million parameters."""


def peaks(section: ScratchModel, tokens: int, length: int, directory: Path) -> tuple[int, int]:
    """What the plan says of the trainer's process, and what one was seen to take, in bytes."""
    with torch.device("cpu"):
        Qwen3ForCausalLM(scratch_config(section, length, section.vocab_size)).save_pretrained(directory / "model")
    recipe = directory / "recipe.toml"
    recipe.write_text(
        f"""name = "peak"
        environments = [{{ name = "maze" }}]
        model = {{ path = "{directory / "model"}" }}
        inference = {{ max_model_len = {length} }}
        rollout = {{ limits = {{ max_context_tokens = {length} }} }}
        stages = [{{ kind = "reinforce", algorithm = "reinforce_pp", steps = 1, tokens_per_microbatch = {tokens} }}]
        """
    )
    planned = json.loads(said([*TRAINER, "plan", str(recipe), "--gpus", "1xcpu"]))
    (device,) = planned["devices"]
    trainer = device["processes"][0]
    assert trainer["name"] == "trainer, worker 0"
    return sum(part["size_bytes"] for part in trainer["parts"]), int(
        said([sys.executable, "-m", "tests.fixtures.one_update", str(recipe)])
    )


TRAINER = [sys.executable, "-c", "from gymfleet_trainer.main import main; main()"]


def said(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


def test_the_peak_of_an_update_is_what_the_plan_says(tmp_path: Path) -> None:
    planned, seen = peaks(SMALL, 2048, 512, tmp_path)

    print(f"planned {planned / 2**20:.0f} MiB, seen {seen / 2**20:.0f} MiB: {planned / seen - 1:+.1%}")
    assert planned == pytest.approx(seen, rel=0.2)
