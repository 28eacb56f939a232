"""The plan against the peak of a process that makes one update."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gymfleet_cli.console import out
from gymfleet_cli.main import run
from gymfleet_contracts.recipe_sections import ScratchModel
from gymfleet_trainer.model.scratch import scratch_config
from transformers import GPT2Config, Qwen3ForCausalLM

from tests.fixtures.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GYMFLEET_TRAINER_TORCH_THREADS": "1",
    # glibc gives back what is freed. By itself it keeps more or less of it, from one machine to the next.
    "MALLOC_MMAP_THRESHOLD_": "65536",
}  # fmt: skip
SMALL = ScratchModel(vocab_size=4096, hidden_size=320, intermediate_size=960, num_layers=6, num_heads=4, head_dim=64)
"""About 10 million parameters."""


LARGER = SMALL.model_copy(update={"vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1536})
"""About 25 million."""


def peaks(
    section: ScratchModel, tokens: int, length: int, directory: Path, *, lora: str = "", kind: str = "adamw"
) -> tuple[int, int]:
    """What the plan says of a trainer's process, but for what glibc keeps, and what one was seen to take, in bytes."""
    with torch.device("cpu"):
        Qwen3ForCausalLM(scratch_config(section, length, section.vocab_size)).save_pretrained(directory / "model")
    recipe = directory / "recipe.toml"
    recipe.write_text(
        f"""name = "peak"
        environments = [{{ name = "maze" }}]
        model = {{ path = "{directory / "model"}"{lora} }}
        inference = {{ max_model_len = {length} }}
        rollout = {{ limits = {{ max_context_tokens = {length} }} }}
        [[stages]]
        kind = "reinforce"
        algorithm = "reinforce_pp"
        steps = 2
        tokens_per_microbatch = {tokens}
        optimizer = {{ kind = "{kind}" }}
        """
    )
    planned = json.loads(said([*TRAINER, "plan", str(recipe), "--gpus", "1xcpu"]))
    (device,) = planned["devices"]
    trainer = device["processes"][0]
    assert trainer["name"] == "trainer, worker 0"
    return sum(part["size_bytes"] for part in trainer["parts"] if part["what"] != "lost between blocks"), int(
        said([sys.executable, "-m", "benchmarks.one_update", str(recipe)])
    )


TRAINER = [sys.executable, "-c", "from gymfleet_trainer.main import main; main()"]


def said(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


def test_the_peak_of_an_update_is_what_the_plan_says(tmp_path: Path) -> None:
    planned, seen = peaks(SMALL, 2048, 512, tmp_path)

    assert planned == pytest.approx(seen, rel=0.15), f"planned {planned / 2**20:.0f} MiB, seen {seen / 2**20:.0f} MiB"


@pytest.mark.long
@pytest.mark.parametrize(
    ("lora", "kind"),
    [
        pytest.param(", lora = { rank = 16 }", "adamw", id="adapters"),
        pytest.param("", "adafactor", id="adafactor"),
        pytest.param("", "adamw_8bit", id="adamw_8bit"),
    ],
)
def test_so_it_is_with_adapters_and_other_optimisers(lora: str, kind: str, tmp_path: Path) -> None:
    planned, seen = peaks(LARGER, 1024, 256, tmp_path, lora=lora, kind=kind)

    assert planned == pytest.approx(seen, rel=0.1), f"planned {planned / 2**20:.0f} MiB, seen {seen / 2**20:.0f} MiB"


TOO_LITTLE = ["--set", "placement.colocated=true", "--set", "inference.kv_cache_gib=0.001"]


def test_the_command_says_what_lies_where_and_what_does_not_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out, "width", 160)
    recipe = str(ROOT / "recipes/tiny-distributed.toml")

    assert run(["plan", recipe, "--gpus", "4xH200"]) == 0
    said_first = capsys.readouterr()
    assert run(["plan", recipe, "--gpus", "2x1.5GiB", *TOO_LITTLE]) == 2
    said_next = capsys.readouterr()
    assert run(["plan", recipe, "--gpus", "8xtoaster"]) == 2

    assert "model.scratch: 984,448 parameters, in stages.reinforce, which needs most" in said_first.out
    assert "2 devices, GPU 0 (H200) to GPU 1 (H200), each: " in said_first.out
    assert re.search(r"^trainer, worker 0 to trainer, worker 1 +weights +1\.9 MiB *$", said_first.out, re.MULTILINE)
    assert re.search(r"^ +reference +1\.9 MiB *$", said_first.out, re.MULTILINE), "it has a KL term"
    assert re.search(r"^engine 0 +weights +3\.8 MiB *$", said_first.out, re.MULTILINE)
    assert said_next.err.startswith("error: GPU 0 (1.5 GiB) has 1.4 GiB, and ")
    assert "give inference.kv_cache_gib at least 0.002, or" in said_next.err
    assert said_next.err.count("\n") == 1
    assert capsys.readouterr().err.startswith("error: --gpus 8xtoaster: give 8xH200, 4x80GiB or 1xcpu; known GPUs: ")


def test_nothing_is_started_for_a_model_that_cannot_be_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    GPT2Config(n_layer=1, n_embd=48).save_pretrained(tmp_path / "gpt2")
    (tmp_path / "gpt2.toml").write_text(
        """name = "gpt2"
        environments = [{ name = "maze" }]
        model = { path = "gpt2" }
        stages = [{ kind = "measure", num_tasks = 1 }]
        """
    )

    assert run(["train", "gpt2.toml"]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    alone = subprocess.run(
        [*TRAINER, "run", "gpt2.toml", "--run-dir", "alone"],
        capture_output=True, text=True, check=False, env=ENVIRONMENT, cwd=tmp_path,
    )  # fmt: skip

    expected = "error: gpt2 cannot be trained: it has no `lm_head`, or a decoder without `embed_tokens` and `layers`"
    assert told.startswith(expected)
    assert not list((tmp_path / "runs/gpt2").rglob("*.log")), "no process has been started"
    assert alone.returncode == 2
    assert alone.stderr.startswith(expected)
    assert {path.name for path in (tmp_path / "alone").iterdir()} <= {".lock"}
