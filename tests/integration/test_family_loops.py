"""Families through the whole loop: a model plays, is trained, is published, and plays again, with real services.

Qwen3 does so in every other test with a fleet. One family alone:
`pytest tests/integration/test_family_loops.py -k llama`.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest
import torch
from gymfleet_trainer.model.families import FAMILIES
from safetensors.torch import load_file

from tests.fixtures.small_models import MAX_POSITIONS, save_small_model
from tests.fixtures.trainer_runs import TrainerRun
from tests.fleet import Fleet
from tests.models import build_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
ELSEWHERE: Final = "qwen3"
"""The family of `tiny_model`."""
IN_LOOP: Final = [family.model_type for family in FAMILIES if family.in_loop and family.model_type != ELSEWHERE]
TOLERANCE: Final = 1e-5


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[] if name.endswith("_moe") else [pytest.mark.long]) for name in IN_LOOP],
)
def family_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = save_small_model(request.param, tmp_path_factory.mktemp("models") / request.param)
    build_tokenizer().save_pretrained(directory)
    return directory


@pytest.fixture
def family_fleet(family_model: Path, tmp_path: Path) -> Iterator[Fleet]:
    settings = {"LEASE_S": "3", "KV_CACHE_GIB": "0.1"}
    with Fleet(tmp_path / "fleet", family_model, rollout=settings) as fleet:
        yield fleet


def test_a_family_through_the_whole_loop(family_fleet: Fleet, family_model: Path, tmp_path: Path) -> None:
    run = TrainerRun(family_fleet, tmp_path, family_model, steps=2, learning_rate=1e-2, sft="")
    text = run.recipe.read_text()
    run.recipe.write_text(text.replace("= 1024", f"= {MAX_POSITIONS}"))

    summary = run.finish()

    assert summary["steps"] == 2
    assert summary["groups"]["trained"] == 4
    assert 0 <= summary["parity_mean_abs"] < TOLERANCE
    played = {line["step"]: line["mean_abs"] for line in run.metrics("batch_parity")}
    assert 2 in played, "the episodes of the second step were sampled from the first one's weights"
    assert max(played.values()) < TOLERANCE
    before, after = (load_file(path / "model.safetensors") for path in (family_model, run.run_dir / "model"))
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved >= {name for name in before if ".self_attn." in name and "_proj" in name}
    assert layers(moved) == layers(before), "of experts those that a token was sent to"


def layers(names: Iterable[str]) -> set[str]:
    """Those that have one of these weights in their feed-forward part."""
    return {name.partition(".mlp.")[0] for name in names if ".mlp." in name and "_proj" in name}
