"""A run goes on with the model that it began with, or not at all."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gymfleet_trainer.errors import RunDirectoryError, UnsupportedModel
from gymfleet_trainer.learning.learner import LocalLearner
from gymfleet_trainer.model.fingerprint import fingerprint
from gymfleet_trainer.run.checkpoint import Checkpoints
from gymfleet_trainer.run.lifecycle import _restore
from gymfleet_trainer.run.run_directory import RunDirectory
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.run.torch_thread import TorchThread
from safetensors.torch import save_file

from tests.fixtures.scored import make_recipe
from tests.models import build_tiny_model

SIZE = 1 << 20


def saved(directory: Path, weight: torch.Tensor | None = None) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    (directory / "tokenizer.json").write_text("{}")
    save_file({"weight": torch.zeros(SIZE) if weight is None else weight}, directory / "model.safetensors")
    return directory


def test_equal_models_are_the_same_wherever_they_lie(tmp_path: Path) -> None:
    one, other = saved(tmp_path / "one"), saved(tmp_path / "other")
    (other / "README.md").write_text("a note")

    assert fingerprint(str(one)) == fingerprint(str(other)) != fingerprint("org/model") == ""


@pytest.mark.parametrize("place", [0, SIZE // 2, SIZE - 1])
def test_weights_are_told_apart(tmp_path: Path, place: int) -> None:
    """Parts of the file are read, so that a change shorter than the distance between them may be missed."""
    changed = torch.zeros(SIZE)
    changed[max(0, place - SIZE // 60) : place + SIZE // 60] = 1e-3

    assert fingerprint(str(saved(tmp_path / "one"))) != fingerprint(str(saved(tmp_path / "other", changed)))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_configs_and_tokenizers_are_told_apart(tmp_path: Path, name: str) -> None:
    model = saved(tmp_path / "model")
    before = fingerprint(str(model))
    (model / name).write_text('{"model_type": "qwen3"}')

    assert fingerprint(str(model)) != before


def test_a_run_is_not_resumed_with_another_model(tmp_path: Path) -> None:
    model = saved(tmp_path / "model")
    recipe = make_recipe(model={"path": str(model)})

    class Trained:
        def save_checkpoint(self, directory: Path) -> None:
            (directory / "weights").touch()

        def load_checkpoint(self, directory: Path) -> None:
            assert (directory / "weights").is_file()

    def restored() -> RunState:
        def made(*_: object) -> Any:
            return Trained()

        with TorchThread(1) as worker, RunDirectory(tmp_path / "run") as directory:
            checkpoints = Checkpoints(directory.checkpoints, keep=2)
            return asyncio.run(_restore(recipe, directory, checkpoints, worker, "run-1", None, made))[0]

    restored()
    assert restored().counts["resumed"] == 1

    saved(model, torch.ones(SIZE))
    with pytest.raises(RunDirectoryError, match=r"/model is not the model that this run began with: .* have changed"):
        restored()


@pytest.mark.parametrize(("size", "told"), [(100_000, ""), (0, ""), (None, "model.safetensors")])
def test_weights_that_are_cut_short_or_missing_are_one_line(tmp_path: Path, size: int | None, told: str) -> None:
    model = build_tiny_model(tmp_path / "model", tie_embeddings=True, seed=0)
    weights = model / "model.safetensors"
    weights.unlink() if size is None else weights.write_bytes(weights.read_bytes()[:size])
    recipe = make_recipe(model={"path": str(model)})

    with (
        TorchThread(1) as worker,
        RunDirectory(tmp_path / "run") as directory,
        pytest.raises(UnsupportedModel, match=rf"/model: the weights cannot be read: .*{told}") as refused,
    ):
        asyncio.run(_restore(recipe, directory, Checkpoints(directory.checkpoints, keep=2), worker, "run-1", None,
                             LocalLearner))  # fmt: skip

    assert "\n" not in str(refused.value)
