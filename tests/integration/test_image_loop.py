"""A policy that sees images through the whole loop: it plays, is trained, is published, and plays again.

vLLM wants torchvision for the models that see; where that is not there, or not one for this torch, nothing is run here.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gymfleet_contracts.trajectory import ScoredTrajectory
from safetensors.torch import load_file

from tests.fixtures.trainer_runs import TrainerRun
from tests.fleet import Fleet
from tests.unit.trainer.test_image_conversations import written

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))  # type: ignore[arg-type]
TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def seeing_model(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    model = written(tmp_path_factory.mktemp("models") / request.param, request.param)
    config = json.loads((model / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 1024
    (model / "config.json").write_text(json.dumps(config))
    return model


@pytest.fixture
def pictures(seeing_model: Path, tmp_path: Path) -> Iterator[Fleet]:
    """A fleet with mazes of which nothing but pictures is shown."""
    settings = {"LEASE_S": "3", "KV_CACHE_GIB": "0.1", "MAX_MODEL_LEN": "1024"}
    shown = {"observation": "image"}
    with Fleet(tmp_path / "fleet", seeing_model, options=shown, rollout=settings) as fleet:
        yield fleet


def test_a_policy_that_sees_through_the_whole_loop(pictures: Fleet, seeing_model: Path, tmp_path: Path) -> None:
    run = TrainerRun(pictures, tmp_path, seeing_model, steps=2, learning_rate=1e-2)
    text = run.recipe.read_text()
    run.recipe.write_text(text.replace("[rollout.limits]", '[rollout]\nimages = "seen"\n[rollout.limits]'))

    run.start()
    assert run.wait(400) == 0, run.tail()  # pictures take longer than text
    summary = json.loads((run.run_dir / "summary.json").read_text())

    assert summary["steps"] == 2
    assert summary["groups"]["trained"] == 4
    assert 0 <= summary["parity_mean_abs"] < TOLERANCE
    played = {line["step"]: line["mean_abs"] for line in run.metrics("batch_parity")}
    assert 2 in played, "the episodes of the second step were sampled from the first one's weights"
    assert max(played.values()) < TOLERANCE
    lines = [line for file in run.run_dir.glob("trajectories/*.jsonl") for line in file.read_text().splitlines()]
    episodes = [ScoredTrajectory.model_validate_json(line).trajectory for line in lines]
    assert episodes
    assert all(episode.turns[0].prompt_images for episode in episodes)
    before, after = (load_file(path / "model.safetensors") for path in (seeing_model, run.run_dir / "model"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert any(".self_attn." in name for name in changed)
    assert not any(".visual." in f".{name}" for name in changed), "what sees images is kept as it is"
